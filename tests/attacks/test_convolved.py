"""Simulated with its gradient written out, the training of a convolutional net is the same training."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remanence import DPGD, SGD, Adam, Data, Training, Victim, load, train_victim
from remanence.attacks import L2, Cosine, SimuDy, _convolved
from remanence.attacks._convolved import Convolved
from remanence.attacks._simulation import Coordinates, Simulation, Whole
from remanence.engine import trajectory
from remanence.engine.cnn_reading import rectified
from remanence.engine.cuda import torch_optimizer, update
from remanence.models import Standardise, apply, initial_params, resnet, vgg
from remanence.releases import fine_tuned
from remanence.search.distances import ByProducts
from remanence.training import Optimizer
from remanence.types import Params

NETS: dict[str, Callable[[Data], nn.Module]] = {
    "resnet": lambda data: nn.Sequential(Standardise(1), *resnet(data.shape, 10, blocks=(1, 1), width=4)).eval(),
    "vgg": lambda data: vgg(data.shape, 10, blocks=(1, 2), width=4),
}
COSINE = Cosine()
BATCHED = Training(
    optimizer=SGD(lr=0.03), epochs=3, batch_size=4, shuffled=False, weight_decay=0.01, lr_schedule=((2, 0.5),)
)


def victim(training: Training, net: str = "resnet") -> Victim:
    """Ten digits and a net in float64, whose norms are not the identity."""
    digits, generator = load("digits"), torch.Generator().manual_seed(0)
    place = torch.tensor([int((digits.y == label).nonzero()[0, 0]) for label in range(10)])
    data = Data(x=digits.x[place].double(), y=digits.y[place], num_classes=10)
    model = NETS[net](data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    drawn = {name: 0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in initial.items()}
    initial |= {name: p + drawn[name] for name, p in initial.items() if p.ndim == 1 and not name.endswith("var")}
    initial |= {name: p + drawn[name].abs() for name, p in initial.items() if name.endswith(("var", "spread"))}
    return train_victim(model, training, initial, data.take([]), data, seed=0)


def written(of: Victim, distance: ByProducts = COSINE) -> Convolved:
    ends = of.initial, of.final, of.private.y, distance
    found = Convolved.of(of.model, of.training, *ends, shape=of.private.shape)
    assert found is not None
    return found


def usual(of: Victim, distance: ByProducts = COSINE) -> Whole:
    parts = {"initial": of.initial, "final": of.final, "y": of.private.y, "distance": distance}
    return Whole(model=of.model, training=of.training, **parts)


def slope(
    of: Victim, coordinates: Coordinates, segment: int | None = None, *, at_truth: float = 1e-12
) -> tuple[Tensor, ...]:
    """How far training on random images ends from the victim's, and its slope; and by shares of classes for labels."""
    batches = tuple(of.training.batches(10, 0))
    simulation = Simulation(
        training=of.training, coordinates=coordinates, batches=batches, segment=segment or len(batches)
    )
    assert simulation(of.private.x) < at_truth
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(of.private.x.shape, generator=generator, dtype=torch.float64).requires_grad_()
    leanings = torch.rand(10, 10, generator=generator, dtype=torch.float64).requires_grad_()
    value, shared = simulation(x), simulation(x, leanings.softmax(-1))
    return value.detach(), *torch.autograd.grad(value, x), *torch.autograd.grad(shared, [x, leanings])


def assert_same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-9, atol=0.0)
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("distance", [L2(), Cosine()], ids=repr)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.03), SGD(lr=0.03, momentum=0.9), Adam(lr=0.01)], ids=repr)
def test_written_out_it_is_the_same_training(net: str, optimizer: Optimizer, distance: ByProducts) -> None:
    made = victim(replace(BATCHED, optimizer=optimizer), net)
    assert_same(slope(made, written(made, distance)), slope(made, usual(made, distance)))


@pytest.mark.parametrize("net", NETS)
def test_its_weights_take_the_way_of_the_victims(net: str) -> None:
    made = victim(replace(BATCHED, optimizer=SGD(lr=0.03, momentum=0.9)), net)
    training, ours = made.training, written(made)
    weights, read = ours.start(made.private.x), ours.read(made.private.x)
    state = training.optimizer.init(weights)
    moves = Simulation(training=training, coordinates=ours, batches=tuple(training.batches(10, 0)), segment=1).moves(10)
    passed = trajectory(training, made.model, made.initial, made.private, seed=0)
    for move, expected in zip(moves, [*passed[1:], made.final], strict=True):
        grads = ours.gradient(weights, read, made.private.y, move.batch)
        weights, state = training.step(move.optimizer, weights, grads, state, move.step)
        for name, p in ours.net.order.named(weights["all"]).items():
            torch.testing.assert_close(p, expected[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("batch", [None, 4], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("kept", [True, False], ids=["tapes kept", "made again"])
@pytest.mark.parametrize("at_once", [None, 3, 1])
@pytest.mark.parametrize("segment", [None, 2, 1])
def test_memory_changes_nothing(batch: int | None, kept: bool, at_once: int | None, segment: int | None) -> None:
    made = victim(replace(BATCHED, batch_size=batch))
    ours = replace(written(made), kept=kept, at_once=at_once)
    assert_same(slope(made, ours, segment), slope(made, usual(made)))


class Gate(torch.autograd.Function):
    """ReLU whose slope is a sigmoid."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, steepness: Tensor) -> Tensor:
        return x.relu()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        x, steepness = ctx.saved_tensors
        return slope * (steepness * x).sigmoid(), None


@dataclass(eq=False)
class GatedReLU(nn.Module):
    steepness: Tensor

    def __post_init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return Gate.apply(x, self.steepness)  # type: ignore[no-any-return, no-untyped-call]


def with_gates(model: nn.Module, steepness: dict[str, Tensor]) -> nn.Module:
    found = deepcopy(model)
    for path, each in steepness.items():
        found.set_submodule(path, GatedReLU(each))
    return found


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("kept", [True, False], ids=["tapes kept", "made again"])
@pytest.mark.parametrize("segment", [None, 2])
def test_gates_in_place_of_kinks_are_those_of_autograd(net: str, kept: bool, segment: int | None) -> None:
    made = victim(BATCHED, net)
    start = torch.rand(made.private.x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ours = replace(written(made).gated((2.0, 40.0), start), kept=kept, at_once=None if kept else 3)
    ours.prepare(0.4)
    names = list(rectified(written(made).net.layers))
    inputs = dict[str, Tensor]()
    for name in names:
        module = made.model.get_submodule(name)
        module.register_forward_hook(lambda _, given, __, name=name: inputs.__setitem__(name, given[0]))
    apply(made.model, made.initial, start)
    steepness = {name: 2.0 * 20**0.5 / x.square().mean().sqrt() for name, x in inputs.items()}
    theirs = replace(usual(made), model=with_gates(made.model, steepness))
    assert_same(slope(made, ours, segment, at_truth=1.0), slope(made, theirs, at_truth=1.0))
    ours.prepare(1.0)
    assert float(slope(made, ours, at_truth=1.0)[0]) != float(slope(made, theirs, at_truth=1.0)[0])


def test_a_gate_that_nothing_enters_stays_finite() -> None:
    made = victim(BATCHED)
    gone = {name: torch.zeros_like(p) for name, p in made.initial.items() if name.endswith(("weight", "bias"))}
    made = replace(made, initial=made.initial | gone)
    ours = written(made).gated((2.0, 40.0), made.private.x)
    assert ours.gates is not None
    assert ours.gates.now.tolist() == [2.0] * len(ours.gates.now)


def test_a_net_without_kinks_has_no_gates() -> None:
    made = victim(BATCHED)
    linear = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(72, 10))
    initial = {name: p.double() for name, p in initial_params(linear, seed=0).items()}
    made = train_victim(linear, BATCHED, initial, made.private.take([]), made.private, seed=0)
    assert_same(slope(made, written(made).gated((2.0, 40.0), made.private.x)), slope(made, usual(made)))


def test_a_tape_of_gates_holds_no_more_than_its_passes_read() -> None:
    made = victim(BATCHED, "vgg")
    kinks, gates = written(made), written(made).gated((2.0, 40.0), made.private.x)
    entered = kinks.net.entering(kinks.begun, kinks.read(made.private.x[:1])[0])
    more = gates.net.held((1, 8, 8), 1) - kinks.net.held((1, 8, 8), 1)
    assert 0 < more <= 2 * sum(x.numel() for x in entered.values())


def test_gates_bring_back_what_kinks_hide() -> None:
    made = victim(Training(optimizer=SGD(lr=0.05), epochs=3), "resnet")
    release = fine_tuned(made).release
    attack = SimuDy(candidates=10, labels=tuple(made.private.y.tolist()), steps=60, optimizer=Adam(lr=0.05), tv=0.0)
    errors = [
        float((replace(attack, sharpness=sharpness).run(release, seed=0).x - made.private.x).square().mean())
        for sharpness in (None, (2.0, 40.0))
    ]
    assert errors[1] < 0.8 * errors[0]


def test_gradients_are_cut_alike() -> None:
    made = victim(replace(BATCHED, clip=0.2))
    assert_same(slope(made, written(made)), slope(made, usual(made)))


def test_channels_last_is_the_same_training() -> None:
    made = victim(BATCHED)
    first = written(made)
    order = replace(first.net.order, form=torch.channels_last)
    begun, end = order.packed(made.initial), order.packed(made.final)
    last = replace(first, net=replace(first.net, order=order), begun=begun, moved=end - begun)
    assert not torch.equal(begun, first.begun)
    assert_same(slope(made, last), slope(made, usual(made)))


def test_a_slope_of_another_layout_reaches_the_optimiser_in_that_of_its_records() -> None:
    x = nn.Parameter(torch.rand(2, 3, 4, 4))
    before = x.detach().clone()
    update(torch_optimizer(Adam(), [x]), x.contiguous(memory_format=torch.channels_last).square().sum())
    assert x.grad is not None
    assert x.grad.stride() == x.stride()
    assert torch.equal(x.grad, 2 * before)


def test_memory_decides_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    net = written(victim(BATCHED))
    weights, tape = net.begun.nbytes, 8 * net.net.held((1, 8, 8), 1)
    work = 8 * weights + 2 * tape

    def chosen(free: float, segment: int | None = None) -> tuple[bool, int]:
        monkeypatch.setattr(_convolved, "free_memory", lambda _: free / _convolved.SHARE_OF_MEMORY)
        fitted, steps = net.fitted((1, 8, 8), steps=100, batch=1, copies=2, segment=segment)
        return fitted.kept, steps

    assert chosen(1.01 * (100 * (tape + weights) + work)) == (True, 100)
    assert chosen(0.99 * (100 * (tape + weights) + work)) == (False, 100)
    few = round((200 * weights / (weights + tape)) ** 0.5)
    cuts = -(-100 // few) * 2 * weights  # what stays between segments counts too
    assert chosen(0.99 * (100 * weights + work)) == (True, few)
    assert chosen(1.01 * (few * (tape + weights) + cuts + work)) == (True, few)
    assert chosen(0.99 * (few * (tape + weights) + cuts + work)) == (False, 14)  # the root of two copies of a hundred
    assert chosen(1.0) == (False, 14)
    assert chosen(1.01 * (5 * (tape + weights) + 20 * 2 * weights + work), segment=5) == (True, 5)
    assert chosen(0.99 * (5 * (tape + weights) + 20 * 2 * weights + work), segment=5) == (False, 5)


def test_memory_decides_how_many_records_are_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    net = written(victim(BATCHED))

    def chosen(records: int) -> int | None:
        """With twice what a pass of so many works on."""
        work = 8 * net.begun.nbytes + 2 * 8 * net.net.held((1, 8, 8), records)
        monkeypatch.setattr(_convolved, "free_memory", lambda _: 2.01 * work / _convolved.SHARE_OF_MEMORY)
        return net.fitted((1, 8, 8), steps=100, batch=10, copies=2, segment=None)[0].at_once

    assert [chosen(records) for records in (10, 9, 5, 4, 1)] == [None, 5, 5, 3, 1]


def test_what_was_chosen_is_told() -> None:
    made = victim(BATCHED)
    ours, batches = replace(written(made), kept=False, at_once=3), tuple(made.training.batches(10, 0))
    told = Simulation(training=made.training, coordinates=ours, batches=batches, segment=2).told()
    graphs, again = "5 segments, one graph for 2 of 9 steps", "each step made again on the way back"
    assert told == f"{graphs}, {again}, records taken 3 at a time"
    kept = Simulation(training=made.training, coordinates=written(made), batches=batches, segment=9)
    assert kept.told() == "one graph"


@dataclass(frozen=True)
class ByLayer:
    """An optimiser of somebody else, which may treat each layer by itself."""

    lr: float = 0.1

    def init(self, params: Params) -> tuple[Params, ...]:
        return ()

    def update(
        self, params: Params, grads: Params, state: tuple[Params, ...], step: int
    ) -> tuple[Params, tuple[Params, ...]]:
        return {name: p - self.lr * grads[name] / grads[name].norm() for name, p in params.items()}, state


def test_clipped_gradients_and_other_distances_are_left_to_autograd() -> None:
    made = victim(BATCHED)
    clipped = replace(BATCHED, privacy=DPGD(clip=1.0))
    ends = made.initial, made.final, made.private.y
    assert Convolved.of(made.model, clipped, *ends, COSINE, shape=(1, 8, 8)) is None
    theirs = replace(BATCHED, optimizer=ByLayer())
    assert Convolved.of(made.model, theirs, *ends, COSINE, shape=(1, 8, 8)) is None
    assert Convolved.of(made.model, BATCHED, *ends, lambda a, b: (a - b).abs().sum(), shape=(1, 8, 8)) is None


def test_the_attack_takes_it_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    release = fine_tuned(victim(replace(BATCHED, optimizer=SGD(lr=0.1, momentum=0.5)))).release
    attack = SimuDy(candidates=10, steps=5, octaves=2)
    ours = attack.run(release, seed=0)
    with monkeypatch.context() as patched:
        patched.setattr(Convolved, "of", lambda *_, **__: None)
        theirs = attack.run(release, seed=0)
    assert ours.objective == pytest.approx(theirs.objective, rel=1e-6)
    torch.testing.assert_close(ours.x, theirs.x, rtol=0.0, atol=1e-6)
