"""One self-contained HTML page from a run."""

from remanence.report.page import render, verdict, write_page

__all__ = ["render", "verdict", "write_page"]
