"""The command line; `main` runs it."""

from remanence.cli.program import app, main

__all__ = ["app", "main"]
