"""What the tests of audits share."""

import pytest

from remanence.auditing.attempts import applicability
from remanence.auditing.attempts.resuming import Steps


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches take 60 steps at most: for tests of what an audit does around them, not of what they find."""
    choose = Steps.choose
    monkeypatch.setattr(Steps, "choose", lambda self, attack, steps: choose(self, attack, min(steps, 60)))
    monkeypatch.setattr(applicability, "_PROBE", 0.0)
