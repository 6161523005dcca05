"""What is looked at before any attack, in seconds: do the model, its weights and the records fit together?"""

from time import perf_counter
from typing import Any

from remanence.auditing.report import Check, PreflightSummary
from remanence.types import Data


def preflight(release: Any, private: Data, held_out: Data) -> PreflightSummary:
    """The checks of a release and its records; `estimates` are added when the attacks were asked."""
    start = perf_counter()
    checks: list[Check] = []
    return PreflightSummary(
        checks=tuple(checks), numbers={}, updated_layers=(), estimates=(), seconds=perf_counter() - start
    )
