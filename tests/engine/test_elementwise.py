"""The Triton kernels of element-wise passes against torch's operations: compiled on a CUDA device, run by Triton's
interpreter elsewhere."""

import os

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softshrink

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined, so before they are imported
pytest.importorskip("triton", reason="Triton comes with the test extra on Linux")

from remanence import SGD  # noqa: E402
from remanence.attacks import KKT, KKTRun, Stationarity, with_search  # noqa: E402
from remanence.attacks.weights.kkt import ExplainedWeights  # noqa: E402
from remanence.engine import elementwise  # noqa: E402
from remanence.models import centred_mlp, initial_params  # noqa: E402
from remanence.releases import WeightsOnly  # noqa: E402
from remanence.search.solver import Stack, StackedSGD  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter; 1 / (1 + inf) is 0


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.fixture
def stacks() -> list[Tensor]:
    return [normal(3, 50, 41, seed=seed) for seed in range(4)]  # two blocks and a part of one to each matrix


@pytest.mark.parametrize("alpha", [torch.tensor(7.0), torch.tensor([2.0, 30.0, 300.0])[:, None, None]])
def test_relu_and_its_surrogate_derivative(stacks: list[Tensor], alpha: Tensor) -> None:
    values, alpha = stacks[0], alpha.to(DEVICE)
    relu, gates = values.relu(), (alpha * values).sigmoid()
    assert torch.allclose(elementwise.relu_and_sigmoid(values, alpha), gates, atol=1e-6)
    assert torch.equal(values, relu)


def test_the_gradient_through_a_surrogate(stacks: list[Tensor]) -> None:
    total, grad_deltas, deltas, gates = stacks
    gates, alpha = gates.sigmoid(), torch.tensor([2.0, 30.0, 300.0], device=DEVICE)[:, None, None]
    expected = gates * total + (1 - gates) * alpha * grad_deltas * deltas
    found = elementwise.through_surrogate(total, grad_deltas, deltas, gates, alpha)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_squares_outside_of_a_box_and_their_gradient(stacks: list[Tensor]) -> None:
    x, grad, *_ = stacks
    outside = softshrink(x, 0.7)
    expected = grad + 2 * outside
    found = elementwise.add_outside(x, grad, 0.7)
    assert torch.allclose(found, outside.square().sum((1, 2)), rtol=1e-5)
    assert torch.allclose(grad, expected, atol=1e-6)


def run_in_kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the kernels be used on this device too; the number of stacks of each use."""
    uses = list[int]()

    def applies(*stacks: Tensor, numbers: Tensor | None = None) -> bool:
        alike = all(s.is_contiguous() and s.shape == stacks[0].shape for s in stacks)
        taken = alike and (numbers is None or elementwise.one_for_each_restart(stacks[0], numbers))
        uses.extend([len(stacks)] * taken)
        return taken

    monkeypatch.setattr(elementwise, "applies", applies)
    return uses


def test_momentum_with_one_learning_rate_for_all_restarts_or_one_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = run_in_kernels(monkeypatch)
    params = [torch.nn.Parameter(normal(3, 40, 31, seed=k), requires_grad=False) for k in range(2)]
    expected = [[torch.nn.Parameter(each.clone()) for each in p] for p in params]
    rates = [0.3, torch.tensor([0.1, 0.2, 0.4])]
    optimizer = StackedSGD(SGD(lr=1.0, momentum=0.9), [[p] for p in params], rates)
    alone = zip([*expected[0], *expected[1]], [0.3, 0.3, 0.3, 0.1, 0.2, 0.4], strict=True)
    reference = torch.optim.SGD([{"params": [each], "lr": lr} for each, lr in alone], lr=1.0, momentum=0.9)
    for step in range(3):
        for p, of_restarts in zip(params, expected, strict=True):
            p.grad = normal(*p.shape, seed=10 + step)
            for each, grad in zip(of_restarts, p.grad, strict=True):
                each.grad = grad.clone()
        optimizer.step()
        reference.step()
    assert all(torch.allclose(p, torch.stack(each), atol=1e-5) for p, each in zip(params, expected, strict=True))
    assert uses == [3] * 6


def test_steps_of_kkt_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = centred_mlp((30,), 4, hidden=(20, 15))
    final = {name: p.to(DEVICE) for name, p in initial_params(model, seed=0).items()}
    release = WeightsOnly(model=model, final=final, shape=(30,), num_classes=4)
    runs = KKTRun(init_std=1.0), KKTRun(init_std=2.0, alpha=20.0)

    def stepped() -> Stack:
        attack = with_search(KKT(candidates=8, runs=runs), tf32=True)
        objective = ExplainedWeights.from_release(attack, release, seed=0)
        stack = Stack(objective, objective.init(), attack.search)
        for _ in range(3):
            stack.step()
        return stack

    with monkeypatch.context() as plain:
        plain.setattr(elementwise, "applies", lambda *_, **__: False)
        expected = stepped()
    uses = run_in_kernels(monkeypatch)
    found = stepped()
    assert sorted(set(uses)) == [1, 2, 3, 4]  # all four kernels
    assert torch.allclose(found.value, expected.value, rtol=1e-5)
    for name, value in expected.values.items():
        assert torch.allclose(found.values[name], value, rtol=1e-4, atol=1e-5)
        assert not torch.equal(value, expected.objective.init()[name].init)


def test_the_surrogate_of_stationarity_has_a_number_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    model = centred_mlp((30,), 4, hidden=(20, 15))
    final = {name: p.to(DEVICE) for name, p in initial_params(model, seed=0).items()}
    release = WeightsOnly(model=model, final=final, shape=(30,), num_classes=4)
    attack = with_search(Stationarity(candidates=8), steps=3)
    expected = attack.run(release, seed=0)
    run_in_kernels(monkeypatch)
    assert torch.allclose(attack.run(release, seed=0).x, expected.x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "taken"), [((), True), ((3, 1, 1), True), ((1, 1, 1), True), ((3, 50, 1), False), ((1, 50, 1), False)]
)
def test_the_kernels_take_one_number_for_each_restart(
    stacks: list[Tensor], shape: tuple[int, ...], taken: bool
) -> None:
    assert elementwise.one_for_each_restart(stacks[0], torch.ones(shape)) is taken
