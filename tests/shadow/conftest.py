"""A release whose bank is made in many small chunks, in a moment."""

import pytest
from banks import small_release

import remanence.training.stacked
from remanence.releases import AllButOne


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> AllButOne:
    monkeypatch.setattr(remanence.training.stacked, "CPU_CHUNK", 8)
    return small_release()
