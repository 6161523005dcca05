"""A release whose bank is made in many small chunks, in a moment."""

import pytest
from banks import small_release

import remanence.engine.ensembles.train
from remanence.releases import AllButOne


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> AllButOne:
    monkeypatch.setattr(remanence.engine.ensembles.train, "CPU_CHUNK", 8)
    return small_release()
