"""The solver on planted objectives: minima, restarts, divergence, scales, halving, schedules and checkpoints."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from remanence import SGD, Adam, RMSProp
from remanence.errors import Diverged
from remanence.progress import time_limit
from remanence.search import (
    LBFGS,
    Constant,
    CosineAnnealing,
    MultiStep,
    Search,
    Solution,
    Variable,
    Variables,
    minimise,
    solver,
)
from remanence.search.scales import coarser, gradient_at_scale, upsampled


@dataclass(frozen=True, kw_only=True, eq=False)
class Bowl:
    """|x - target|^2 of each restart, with what the solver may be asked to do with its variable."""

    target: Tensor  # (restarts, d)
    variable: Variable
    evaluations: list[int] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    stop_at: int | None = None
    capturable: bool = True

    def init(self) -> dict[str, Variable]:
        return {"x": self.variable}

    def set_progress(self, progress: float) -> None:
        self.progress.append(progress)

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        self.evaluations.append(len(v["x"]))
        if len(self.evaluations) == self.stop_at:
            raise KeyboardInterrupt
        off = v["x"] - self.target
        return off.square().flatten(1).sum(1), {"x": 2 * off}

    def select(self, restarts: Tensor) -> "Bowl":
        return replace(self, target=self.target[restarts])


def bowl(*rows: float, **settings: object) -> Bowl:
    target = torch.tensor(rows, dtype=torch.float64)[:, None].expand(-1, 3).contiguous()
    return Bowl(target=target, variable=Variable(init=torch.zeros_like(target), **settings))


def test_a_limit_of_time_leaves_quasi_newton_steps_with_what_they_have() -> None:
    """One step of the first of two restarts."""
    made = bowl(1.0, 2.0)
    with time_limit(0.0) as limit:
        found = minimise(made, Search(optimizer=LBFGS(), steps=50))
    assert limit.reached
    assert found.restarts.tolist() == [0]
    expected = minimise(bowl(1.0), Search(optimizer=LBFGS(), steps=1))
    assert torch.equal(found.variables["x"], expected.variables["x"])
    assert float(found.value) < float(made.target[0].square().sum())


@pytest.mark.parametrize("optimizer", [Adam(lr=0.05), SGD(lr=0.1, momentum=0.5), RMSProp(lr=0.02), LBFGS()], ids=repr)
def test_each_restart_reaches_its_own_minimum_within_bounds(optimizer: Adam) -> None:
    found = minimise(bowl(0.3, 0.7, 2.0, bounds=(0.0, 1.0)), Search(optimizer=optimizer, steps=300))
    torch.testing.assert_close(found.variables["x"][:, 0].tolist(), [0.3, 0.7, 1.0], atol=1e-3, rtol=0.0)
    assert found.value.tolist() == pytest.approx([0.0, 0.0, 3.0], abs=1e-2)
    best, index = found.best()
    assert found.value[index] == found.value.min()
    assert torch.equal(best["x"], found.variables["x"][index])


def test_a_restart_that_diverges_is_dropped_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="1 of 3 restarts of a search diverged"):
        found = minimise(bowl(0.3, torch.inf, 0.7), Search(optimizer=SGD(lr=0.1), steps=150))
    assert found.restarts.tolist() == [0, 2]
    assert found.variables["x"][:, 0].tolist() == pytest.approx([0.3, 0.7], abs=1e-3)


def test_where_all_diverge_it_is_an_error() -> None:
    with pytest.raises(Diverged) as late:
        minimise(bowl(1.0), Search(optimizer=SGD(lr=1e9), steps=150))
    assert late.value.code == "diverged"
    with pytest.raises(Diverged) as early:  # no learning rate would help
        minimise(bowl(torch.nan), Search(optimizer=SGD(lr=0.1), steps=1))
    assert early.value.code == "not-finite"


def test_halvings_keep_the_better_half_and_what_they_remember() -> None:
    objective, search = bowl(5.0, 0.1, 3.0, 0.2), Search(optimizer=SGD(lr=0.01, momentum=0.9), steps=20, halvings=2)
    found = minimise(objective, search)
    assert found.restarts.tolist() == [1]
    assert objective.evaluations == [4] * 5 + [2] * 5 + [1] * 11  # the last evaluates what is returned
    alone = minimise(bowl(0.1), replace(search, halvings=0))
    torch.testing.assert_close(found.variables["x"], alone.variables["x"])


def test_learning_rates_may_differ_by_variable_and_restart() -> None:
    rates = torch.tensor([0.1, 0.2], dtype=torch.float64)
    found = minimise(bowl(1.0, 1.0, lr=rates), Search(optimizer=SGD(lr=9.0), steps=1, schedule=Constant()))
    assert found.variables["x"][:, 0].tolist() == pytest.approx([0.2, 0.4])
    halved = bowl(1.0, 1.0, lr=0.1, damping=torch.tensor([[0.0], [0.5]], dtype=torch.float64))
    found = minimise(halved, Search(optimizer=SGD(lr=9.0), steps=1, schedule=Constant()))
    assert found.variables["x"][:, 0].tolist() == pytest.approx([0.2, 0.1])


def test_moments_can_be_reset() -> None:
    """A variable whose moments are reset halfway goes on as if it began there."""
    search = Search(optimizer=Adam(lr=0.01), steps=20, schedule=Constant())
    half = minimise(bowl(1.0), replace(search, steps=10)).variables["x"]
    again = Bowl(target=torch.ones_like(half), variable=Variable(init=half))
    expected = minimise(again, replace(search, steps=10)).variables["x"]
    torch.testing.assert_close(minimise(bowl(1.0, reset_at=0.5), search).variables["x"], expected)


def test_schedules() -> None:
    assert [CosineAnnealing()(step, 4) for step in range(5)] == pytest.approx([1, 0.853553, 0.5, 0.146447, 0], abs=1e-6)
    assert [CosineAnnealing(period=2)(step, 9) for step in range(5)] == pytest.approx([1, 0.5, 0, 0.5, 1])
    assert [MultiStep()(step, 8) for step in (0, 2, 3, 5, 7)] == pytest.approx([1, 1, 0.1, 0.01, 0.001])
    objective = bowl(0.5)
    minimise(objective, Search(steps=4))
    assert objective.progress == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_signed_gradients_have_no_length() -> None:
    found = minimise(bowl(1.0, 5.0), Search(optimizer=SGD(lr=0.1), steps=1, signed=True))
    assert found.variables["x"].unique().tolist() == pytest.approx([0.1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Rough:
    """A ramp whose gradient is mostly noise from pixel to pixel: the mean of many pixels is what can be found."""

    ramp: Tensor
    noise: Tensor
    capturable: bool = True

    def init(self) -> dict[str, Variable]:
        return {"x": Variable(init=torch.full_like(self.ramp, 0.5), bounds=(0.0, 1.0), multiscale=True)}

    def set_progress(self, progress: float) -> None:
        pass

    @torch.enable_grad()
    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        x = v["x"].detach().requires_grad_()
        rough = (x - self.ramp).square().sum() + 0.03 * (60 * x + 20 * self.noise).sin().sum()
        return rough.detach()[None], {"x": torch.autograd.grad(rough, x)[0]}

    def select(self, restarts: Tensor) -> "Rough":
        return self


def test_scales_update_the_coarse_parts_of_images() -> None:
    noise = torch.randn(1, 2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    objective, errors = Rough(ramp=torch.linspace(0, 1, 16).expand(1, 2, 1, 16, 16).contiguous(), noise=noise), []
    for scales in (0, 3):
        found = minimise(objective, Search(optimizer=Adam(lr=0.02), steps=40, scales=scales)).variables["x"]
        assert 0 <= float(found.min()) <= float(found.max()) <= 1
        errors.append(float(nn.functional.avg_pool2d((found - objective.ramp)[0], 4).square().mean()))
    assert errors[1] < 0.5 * errors[0]


def test_the_gradient_at_a_scale_is_the_adjoint_of_upsampling() -> None:
    generator = torch.Generator().manual_seed(0)
    fine = torch.randn(1, 2, 3, 8, 6, generator=generator, dtype=torch.float64)
    for part in coarser(fine, 9):
        coarse = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        adjoint = gradient_at_scale(fine, coarse)
        assert float((upsampled(coarse, fine) * fine).sum()) == pytest.approx(float((coarse * adjoint).sum()))
    assert [tuple(part.shape[-2:]) for part in coarser(fine, 9)] == [(4, 3), (2, 1)]
    assert coarser(torch.zeros(1, 3, 8), 2) == []  # table rows have none


SEARCHES = {
    "adam, at scales": Search(optimizer=Adam(lr=0.03), steps=6, scales=2),
    "momentum": Search(optimizer=SGD(lr=0.1, momentum=0.9), steps=6),
    "plain sgd": Search(optimizer=SGD(lr=0.1), steps=6),
    "rmsprop": Search(optimizer=RMSProp(lr=0.01), steps=6),
    "rmsprop of optax": Search(optimizer=RMSProp(lr=0.01, eps_in_root=True), steps=6),
    "halved": Search(optimizer=Adam(lr=0.03), steps=6, halvings=1),
}


@pytest.mark.parametrize("broken", [1, 4, 6])
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_search_that_was_stopped_resumes_and_ends_with_the_same_bits(
    search: Search, broken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "_SAVE_EVERY", 0.0)

    def images(stop_at: int | None = None) -> Bowl:
        target = torch.rand(3, 2, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return Bowl(target=target, variable=Variable(init=torch.zeros_like(target), multiscale=True), stop_at=stop_at)

    def same(one: Solution, other: Solution) -> bool:
        pairs = (one.variables["x"], other.variables["x"]), (one.value, other.value), (one.restarts, other.restarts)
        return all(torch.equal(*pair) for pair in pairs)

    total, path = minimise(images(), search), tmp_path / "folder" / "search.safetensors"
    with pytest.raises(KeyboardInterrupt):
        minimise(images(stop_at=broken), search, checkpoint=path)
    for steps in (6 - (broken - 1), 0):  # what has ended is only evaluated
        again = images()
        assert same(minimise(again, search, checkpoint=path), total)
        assert len(again.evaluations) == steps + 1
