"""The audit of one's own release: every attack that applies, the evidence beside them, one report."""

from remanence.auditing.answer.report import AttackRow, Evidence, Report
from remanence.auditing.attempts.applicability import Applicability, applicable
from remanence.auditing.inputs.sklearn import from_sklearn
from remanence.auditing.pipeline import audit

__all__ = ["Applicability", "AttackRow", "Evidence", "Report", "applicable", "audit", "from_sklearn"]
