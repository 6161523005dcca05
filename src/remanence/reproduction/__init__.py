"""What papers claim, and what committed results say about it: the table that `remanence reproduce` prints, and the runs
that would close its gaps."""

from remanence.reproduction.criteria import (
    AboveChance,
    AtLeast,
    AtMost,
    Criterion,
    Estimate,
    Exceeds,
    Increasing,
    Printed,
    Quantity,
    Verdict,
)
from remanence.reproduction.paper import Contradiction, Paper, PaperClaim
from remanence.reproduction.plan import GAPS, Plan, Work, plan, run_plan
from remanence.reproduction.pooling import Archive, read_archive
from remanence.reproduction.table import STATUSES, Decided, Row, Status, decide

__all__ = [
    "GAPS",
    "STATUSES",
    "AboveChance",
    "Archive",
    "AtLeast",
    "AtMost",
    "Contradiction",
    "Criterion",
    "Decided",
    "Estimate",
    "Exceeds",
    "Increasing",
    "Paper",
    "PaperClaim",
    "Plan",
    "Printed",
    "Quantity",
    "Row",
    "Status",
    "Verdict",
    "Work",
    "decide",
    "plan",
    "read_archive",
    "run_plan",
]
