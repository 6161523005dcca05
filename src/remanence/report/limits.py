"""How much a page shows of a run: all of a usual one, and of a very large one as much as a browser can open."""

from dataclasses import dataclass
from math import isqrt
from typing import final

from remanence.experiments.folder import Run

MAX_ROWS = 40_000  # of single records, on one page
MAX_PICTURES = 4000
MAX_PIXELS = 500 * 128**2  # of all pictures
MAX_SIDE, MIN_SIDE = 128, 32  # pixels of one picture


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Rows about single records for each attack, pictures or records in each row of a gallery, and their side."""

    rows: int = MAX_ROWS
    pictures: int = 12
    side: int = MAX_SIDE


def limits_of(run: Run) -> Limits:
    """The limits of the page of `run`."""
    labels = [result.label for result in run.results if result.attack]
    total = sum(len(run.rows_of(label)) for label in labels)
    galleries = max(1, 3 * len(run.images))  # the best, the middle and the worst
    pictures = max(1, min(12, MAX_PICTURES // galleries))
    side = max(MIN_SIDE, min(MAX_SIDE, isqrt(MAX_PIXELS // (galleries * pictures))))
    return Limits(rows=total if total <= MAX_ROWS else MAX_ROWS // len(labels), pictures=pictures, side=side)
