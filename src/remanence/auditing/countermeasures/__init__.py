"""What would help: stand-ins retrained with defenses, leakage against accuracy."""
