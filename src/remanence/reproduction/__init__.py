"""What papers claim, and what committed results say about it: the table that `remanence reproduce` prints, and the runs
that would close its gaps."""

from remanence.reproduction.criteria import (
    AboveChance,
    Criterion,
    Estimate,
    Exceeds,
    Increasing,
    LowerBound,
    Printed,
    Quantity,
    UpperBound,
    Verdict,
)
from remanence.reproduction.paper import Contradiction, Paper, PaperClaim
from remanence.reproduction.plan import GAPS, Plan, Work, plan_runs, run_plan, total_minutes
from remanence.reproduction.pooling import Archive, read_archive
from remanence.reproduction.table import STATUSES, Decided, Row, Status, decide

__all__ = [
    "GAPS",
    "STATUSES",
    "AboveChance",
    "Archive",
    "Contradiction",
    "Criterion",
    "Decided",
    "Estimate",
    "Exceeds",
    "Increasing",
    "LowerBound",
    "Paper",
    "PaperClaim",
    "Plan",
    "Printed",
    "Quantity",
    "Row",
    "Status",
    "UpperBound",
    "Verdict",
    "Work",
    "decide",
    "plan_runs",
    "read_archive",
    "run_plan",
    "total_minutes",
]
