"""A release whose bank is made in many small chunks, in a moment."""

import pytest
from banks import small_release

import remanence.engine.ensembles.chunked
from remanence.releases import AllButOne


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> AllButOne:
    monkeypatch.setattr(remanence.engine.ensembles.chunked, "CPU_CHUNK", 8)
    return small_release()
