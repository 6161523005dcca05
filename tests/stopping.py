"""A search that is stopped after one of its steps, which it has kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from remanence.search import solver as _search
from remanence.search.checkpoint import keep


@contextmanager
def stopped(monkeypatch: pytest.MonkeyPatch, *, after: int) -> Iterator[None]:
    def broken(path: Path, stepper: torch.optim.Optimizer, done: int) -> None:
        keep(path, stepper, done)
        if done == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as often:
        often.setattr(_search, "_KEPT_EVERY", 0.0)
        often.setattr(_search, "keep", broken)
        with pytest.raises(KeyboardInterrupt):
            yield
