"""One self-contained HTML page from a run."""

from remanence.report.page import render, write_page
from remanence.report.sentences import verdict

__all__ = ["render", "verdict", "write_page"]
