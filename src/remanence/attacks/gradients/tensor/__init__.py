"""The parts of Stein's tensor method (Wang, Lee, Lei 2023)."""
