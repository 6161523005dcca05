"""An audit that is repeated with the same store does not repeat its searches."""

from pathlib import Path

import pytest
import torch
from torch import nn

from remanence import Gradient, audit, load
from remanence.auditing.attempts.resuming import Steps
from remanence.engine import loss_gradient
from remanence.models import mlp, torch_params
from remanence.training import CrossEntropy


def test_steps_are_chosen_once(tmp_path: Path) -> None:
    assert Steps(tmp_path).choose("KKT()", 40) == 40
    assert Steps(tmp_path).choose("KKT()", 70) == 40
    assert Steps(tmp_path).choose("SimuDy()", 70) == 70
    (tmp_path / "steps.json").write_text("{damaged")
    assert Steps(tmp_path).choose("KKT()", 70) == 70
    assert Steps(None).choose("KKT()", 70) == 70


@pytest.mark.slow
@pytest.mark.usefixtures("short_searches")
def test_a_repeated_audit_takes_its_searches_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits")
    truth, held_out = digits.take(slice(0, 4)), digits.take(slice(4, 404))
    model = mlp(digits.shape, 10, hidden=(32,), activation=nn.ReLU)
    at = torch_params(model, seed=0)
    gradient = loss_gradient(model, at, truth.x, truth.y, loss=CrossEntropy())
    release = Gradient(
        model=model, at=at, gradient=gradient, labels=truth.y, batch_size=4, shape=digits.shape, loss=CrossEntropy()
    )

    def audited() -> torch.Tensor:
        report = audit(release, truth=truth, held_out=held_out, budget=60, attacks=["GradientMatching"], store=tmp_path)
        return report.findings["GradientMatching"].reconstruction.x

    first = audited()
    assert list(tmp_path.glob("search-*.safetensors"))
    monkeypatch.setattr("remanence.search.solver.Stack.step", _must_not_run)
    monkeypatch.setattr("remanence.auditing.attempts.applicability._probe", lambda *_: (1.0, None))
    assert torch.equal(audited(), first)


def _must_not_run(*_: object) -> None:
    raise AssertionError("the search ran again")
