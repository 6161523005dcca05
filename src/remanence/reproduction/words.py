"""A row of the table in words, for the terminal, the page and the documentation."""

from remanence.experiments.words import between, number, score
from remanence.reproduction.table import Row


def measured_words(row: Row) -> str:
    """Ours with its interval; nothing where nothing was measured."""
    if row.ours is None:
        return ""
    interval = between(row.low, row.high)
    return f"{score(row.ours)} ({interval})" if interval else score(row.ours)


def number_words(value: float | None) -> str:
    """Three digits; nothing where there is no number."""
    return "" if value is None else number(value)


def budget_words(row: Row) -> str:
    """Fractions of the paper's budget, the smallest first."""
    return ", ".join(f"{x:.2g} of the {name}" for name, x in sorted(row.budget.items(), key=lambda item: item[1]))
