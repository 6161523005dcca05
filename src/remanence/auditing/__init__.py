"""The audit of one's own release: every attack that applies, the evidence beside them, one report."""

from remanence.auditing.applicability import Applicability, applicable
from remanence.auditing.pipeline import audit
from remanence.auditing.report import AttackRow, Evidence, Report
from remanence.auditing.sklearn import from_sklearn

__all__ = ["Applicability", "AttackRow", "Evidence", "Report", "applicable", "audit", "from_sklearn"]
