"""A row of the table in words, for the terminal, the page and the documentation."""

from remanence.experiments.words import between, number
from remanence.reproduction.paper import Contradiction
from remanence.reproduction.table import Row

TOLERANCE = 0.1  # of most claims, as a fraction of the printed number


def measured_words(row: Row) -> str:
    """Ours with its interval; nothing where nothing was measured."""
    if row.ours is None:
        return ""
    interval = between(row.low, row.high)
    return f"{number(row.ours)} ({interval})" if interval else number(row.ours)


def printed_words(row: Row) -> str:
    """The printed number, with the tolerance of the claim where that is not the usual one."""
    usual = row.tolerance in (None, TOLERANCE)
    return number_words(row.printed) if usual else f"{number_words(row.printed)} ± {row.tolerance:.0%}"


def number_words(value: float | None) -> str:
    """Three digits; nothing where there is no number."""
    return "" if value is None else number(value)


def count_words(count: int, what: str) -> str:
    """So many of something."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def contradiction_words(contradiction: Contradiction, row: Row) -> str:
    """What we saw, with the number of the row."""
    return contradiction.saw.format(ours=measured_words(row), seeds=", ".join(map(str, row.seeds)))


def budget_words(row: Row) -> str:
    """Fractions of the paper's budget, the smallest first."""
    return ", ".join(f"{x:.2g} of the {name}" for name, x in sorted(row.budget.items(), key=lambda item: item[1]))


def run_words(row: Row) -> str:
    """Seeds, budget and minutes in one phrase."""
    seeds = f"seed{'s' * (len(row.seeds) > 1)} {', '.join(map(str, row.seeds))}" if row.seeds else ""
    return "; ".join(part for part in (seeds, budget_words(row), f"{row.minutes:g} min") if part)
