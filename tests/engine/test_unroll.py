"""Unrolled training: it is the victim's, and its gradient is the true one, in any coordinates and any memory."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from simulating import EASY, HARD, NETS, Net, some, victim
from torch import Tensor, nn
from torch.nn.functional import one_hot

from remanence import DPGD, SGD, Adam, Training, Victim, train_victim
from remanence.engine import engine_for, on_batches, unroll, unroll_cnn
from remanence.engine.cnn_structure import relu_names
from remanence.engine.surrogate import Surrogate, SurrogateState
from remanence.engine.unroll import Dynamics, GenericDynamics, Unrolled, segment_length
from remanence.engine.unroll_cnn import CNNDynamics
from remanence.engine.unroll_mlp import SpanDynamics
from remanence.models import Standardise, apply, centred_mlp, initial_params, mlp, resnet, vgg
from remanence.search import L2, ByProducts, Cosine
from remanence.search.distances import between
from remanence.training import Optimizer, remaining_fraction
from remanence.types import Params

BATCHED = replace(HARD, optimizer=SGD(lr=0.03), epochs=3, lr_schedule=((2, 0.5),))
MLPS: dict[str, Net] = {
    "mlp": lambda data: mlp(data.shape, 10, hidden=(24, 14), activation=nn.ReLU),
    "centred": lambda data: centred_mlp(data.shape, 10, hidden=(24, 14)),
    "standardised": lambda data: nn.Sequential(Standardise(1), *NETS["mlp with relu"](data)),
}
CNNS: dict[str, Net] = {
    "resnet": lambda data: nn.Sequential(Standardise(1), *resnet(data.shape, 10, blocks=(1, 1), width=4)).eval(),
    "vgg": lambda data: vgg(data.shape, 10, blocks=(1, 2), width=4),
}
by_distance = pytest.mark.parametrize("distance", [L2(), Cosine()], ids=repr)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_norms(net: Net, training: Training) -> Victim:
    """Ten digits and a net whose norms are not the identity."""
    data, generator = some(10), torch.Generator().manual_seed(0)
    model = net(data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    noise = {name: 0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in initial.items()}
    initial |= {name: p + noise[name] for name, p in initial.items() if p.ndim == 1 and not name.endswith("var")}
    initial |= {name: p + noise[name].abs() for name, p in initial.items() if name.endswith(("var", "std"))}
    return train_victim(model, training, initial, data.take([]), data, seed=0)


def generic(made: Victim) -> GenericDynamics:
    return GenericDynamics.from_release(made.model, made.training, made.initial, made.final)


def span(made: Victim) -> SpanDynamics:
    records = len(made.private)
    endpoints, shape = (made.model, made.training, made.initial, made.final), made.private.shape
    found = SpanDynamics.from_release(*endpoints, records=records, shape=shape)
    assert found is not None
    return found


def in_basis(made: Victim) -> SpanDynamics:
    records = len(made.private)
    steps = len(list(made.training.batches(records, 0)))
    found = span(made).in_basis(records, decay=remaining_fraction(made.training, steps, records=records))
    assert found is not None
    return found


def cnn(made: Victim) -> CNNDynamics:
    sizes = {"records": len(made.private), "shape": made.private.shape}
    found = CNNDynamics.from_release(made.model, made.training, made.initial, made.final, **sizes)
    assert found is not None
    return found


def unrolled(made: Victim, dynamics: Dynamics, segment: int = 99) -> Unrolled:
    batches = tuple(made.training.batches(len(made.private), 0))
    return Unrolled(training=made.training, dynamics=dynamics, batches=batches, segment=segment)


def distance_to(
    made: Victim, dynamics: Dynamics, segment: int = 99, by: ByProducts | None = None
) -> Callable[..., Tensor]:
    """How far training on records ends from the victim, as a function of them and of their labels."""
    training = unrolled(made, dynamics, segment)

    def value(x: Tensor, y: Tensor = made.private.y) -> Tensor:
        return between(by or L2(), dynamics.compare(*training(x, y)))

    return value


def gradients(value: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """The value at random images, its gradient, and its gradients by images and logits of soft labels."""
    x, logits = uniform(10, 1, 8, 8, seed=1).requires_grad_(), uniform(10, 10, seed=2).requires_grad_()
    hard, soft = value(x), value(x, logits.softmax(-1))
    return hard.detach(), *torch.autograd.grad(hard, x), *torch.autograd.grad(soft, [x, logits])


def assert_same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-9, atol=0.0)
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9 * float(other.abs().max()))


def assert_gradient(grad: Tensor, value: Callable[[Tensor], Tensor], at: Tensor, *, rel: float) -> None:
    """Against a difference along a random direction."""
    direction = uniform(*at.shape, seed=7)
    difference = float(value(at + 1e-6 * direction) - value(at - 1e-6 * direction)) / 2e-6
    assert float((grad * direction).sum()) == pytest.approx(difference, rel=rel)


@pytest.mark.slow
@pytest.mark.parametrize("training", [HARD, replace(HARD, clip=0.3)], ids=["plain", "clipped"])
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_any_network_by_autograd_in_any_segments(net: Net, training: Training) -> None:
    made = victim(net, some(10, side=12), training)
    value = distance_to(made, generic(made))
    assert value(made.private.x) < 1e-20
    assert value(1 - made.private.x) > 0.1
    found, at = [], uniform(*made.private.x.shape)
    for segment in (12, 5, 1):
        x = at.clone().requires_grad_()
        found += torch.autograd.grad(distance_to(made, generic(made), segment)(x), x)
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=1e-8, atol=1e-8 * float(found[0].abs().max()))
    assert_gradient(found[0], value, at, rel=1e-3)  # ELU's second derivative jumps


@by_distance
@pytest.mark.parametrize("training", [EASY, HARD], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("net", MLPS)
def test_an_mlp_in_the_span_of_its_records_is_the_same_training(
    net: str, training: Training, distance: ByProducts
) -> None:
    made = victim(MLPS[net], some(10), training)
    ours, theirs = (distance_to(made, each, 4, by=distance) for each in (span(made), generic(made)))
    assert float(ours(made.private.x)) == pytest.approx(0.0, abs=1e-12)
    assert_same(gradients(ours), gradients(theirs))


@pytest.mark.parametrize("training", [EASY, HARD], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("net", MLPS)
def test_in_their_basis_layers_change_as_by_a_plain_training(net: str, training: Training) -> None:
    made = victim(MLPS[net], some(10), training)
    ours = in_basis(made)
    x = ours.project(uniform(10, 1, 8, 8, seed=3))
    batches = list(training.batches(10, 0))
    gradient = on_batches(engine_for(made.model, training, x.shape[1:]).gradient, x, made.private.y)
    final = training.descend(gradient, made.initial, batches, records=10, noise_seed=0)
    left = remaining_fraction(training, len(batches), records=10)
    layers = ours.layers(*unrolled(made, ours)(x, made.private.y))
    for name, p in layers.items():
        expected, victims = (each[name] - left * made.initial[name] for each in (final, made.final))
        if name == ours.first:
            torch.testing.assert_close(p @ ours.basis, expected, rtol=1e-7, atol=1e-10)
            expected, victims = expected @ ours.basis.T, victims @ ours.basis.T
        torch.testing.assert_close(p, expected, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(ours.update[name], victims, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("net", MLPS)
def test_what_lies_outside_the_span_changes_nothing(net: str) -> None:
    made, x = victim(MLPS[net], some(10), EASY), uniform(10, 1, 8, 8, seed=3)
    ours = in_basis(made)
    inside, value = ours.project(x), distance_to(made, ours)
    assert (inside - x).norm() > 1
    torch.testing.assert_close(ours.project(made.private.x), made.private.x)
    torch.testing.assert_close(value(inside), value(x))


@pytest.mark.parametrize("net", MLPS)
def test_the_gradient_through_a_surrogate_is_that_of_differences(net: str) -> None:
    made = victim(MLPS[net], some(10), HARD)
    state = SurrogateState.initial(Surrogate(), torch.ones((), dtype=torch.float64))
    value = distance_to(made, replace(in_basis(made), surrogate=state))
    x = uniform(10, 1, 8, 8, seed=1).requires_grad_()
    assert_gradient(torch.autograd.grad(value(x), x)[0], value, x.detach(), rel=1e-5)


def test_a_surrogate_sharpens_into_the_derivative_of_relu() -> None:
    surrogate = Surrogate(beta=(2.0, 32.0))
    assert [surrogate.beta_at(progress) for progress in (0.0, 0.4, 0.8, 1.0)] == pytest.approx([2.0, 8.0, 32.0, 32.0])
    state, a = SurrogateState.initial(surrogate, torch.ones(())), uniform(30, 20) - 0.5
    torch.testing.assert_close(state.derivative(a), state.derivative(7 * a))  # in units of its inputs
    made, x = victim(MLPS["mlp"], some(10), EASY), uniform(10, 1, 8, 8, seed=1)
    sharp = SurrogateState.initial(Surrogate(beta=(1e9, 1e9)), torch.ones((), dtype=torch.float64))
    ours, plain = (distance_to(made, replace(span(made), surrogate=each))(x) for each in (sharp, None))
    assert float(ours) == pytest.approx(float(plain), rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "distance"),
    [(SGD(lr=0.03), L2()), (SGD(lr=0.03, momentum=0.9), Cosine()), (Adam(lr=0.01), L2())],
    ids=repr,
)
@pytest.mark.parametrize("net", CNNS)
def test_a_cnn_in_closed_form_is_the_same_training(net: str, optimizer: Optimizer, distance: ByProducts) -> None:
    made = with_norms(CNNS[net], replace(BATCHED, optimizer=optimizer))
    ours, theirs = (distance_to(made, each, by=distance) for each in (cnn(made), generic(made)))
    assert float(ours(made.private.x)) == pytest.approx(0.0, abs=1e-12)
    assert_same(gradients(ours), gradients(theirs))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 4], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize(("store_tapes", "chunk", "segment"), [(True, 3, 99), (False, None, 2), (False, 1, 1)])
def test_memory_changes_nothing(batch: int | None, store_tapes: bool, chunk: int | None, segment: int) -> None:
    made = with_norms(CNNS["resnet"], replace(BATCHED, batch_size=batch, clip=0.2))
    ours = replace(cnn(made), store_tapes=store_tapes, chunk=chunk)
    assert_same(gradients(distance_to(made, ours, segment)), gradients(distance_to(made, generic(made))))


def test_channels_last_is_the_same_training() -> None:
    made = with_norms(CNNS["resnet"], BATCHED)
    first = cnn(made)
    order = replace(first.net.layout, memory_format=torch.channels_last)
    start = order.pack(made.initial)
    last = replace(first, net=replace(first.net, layout=order), start=start, update=order.pack(made.final) - start)
    assert not torch.equal(start, first.start)
    assert_same(gradients(distance_to(made, last)), gradients(distance_to(made, generic(made))))


class Relu(torch.autograd.Function):
    """ReLU whose derivative is a sigmoid."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, beta: Tensor) -> Tensor:
        return x.relu()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, beta = ctx.saved_tensors
        return grad * (beta * x).sigmoid(), None


@dataclass(eq=False)
class SurrogateReLU(nn.Module):
    beta: Tensor

    def __post_init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return Relu.apply(x, self.beta)


@pytest.mark.slow
@pytest.mark.parametrize(("store_tapes", "chunk", "segment"), [(True, None, 99), (False, 3, 2)])
@pytest.mark.parametrize("net", CNNS)
def test_a_cnn_with_a_surrogate_is_that_of_autograd(
    net: str, store_tapes: bool, chunk: int | None, segment: int
) -> None:
    made, start = with_norms(CNNS[net], BATCHED), uniform(10, 1, 8, 8, seed=2)
    ours = replace(cnn(made).with_surrogate(Surrogate(), start), store_tapes=store_tapes, chunk=chunk)
    ours.set_progress(0.4)
    inputs, changed = dict[str, Tensor](), deepcopy(made.model)
    for name in relu_names(cnn(made).net.layers):
        module = made.model.get_submodule(name)
        module.register_forward_hook(lambda _, given, __, name=name: inputs.__setitem__(name, given[0]))
    apply(made.model, made.initial, start)
    for name, x in inputs.items():
        parent, _, child = name.rpartition(".")
        setattr(changed.get_submodule(parent), child, SurrogateReLU(2.0 * 20**0.5 / x.square().mean().sqrt()))
    theirs = replace(generic(made), model=changed)
    assert_same(gradients(distance_to(made, ours, segment)), gradients(distance_to(made, theirs)))


def test_a_relu_without_inputs_has_a_finite_surrogate() -> None:
    made = with_norms(CNNS["resnet"], BATCHED)
    zero = {name: torch.zeros_like(p) for name, p in made.initial.items() if name.endswith(("weight", "bias"))}
    made = replace(made, initial=made.initial | zero)
    state = cnn(made).with_surrogate(Surrogate(), made.private.x).surrogate
    assert state.beta.tolist() == [2.0] * len(state.beta)


def test_label_probabilities_of_one_class_are_a_label() -> None:
    for made, dynamics in (
        (mlp_victim := victim(MLPS["mlp"], some(10), HARD), span(mlp_victim)),
        (cnn_victim := with_norms(CNNS["resnet"], BATCHED), cnn(cnn_victim)),
    ):
        value, x = distance_to(made, dynamics), uniform(10, 1, 8, 8, seed=1)
        assert float(value(x, one_hot(made.private.y, 10).double())) == pytest.approx(float(value(x)), rel=1e-9)


def test_divergence_depends_on_the_labels() -> None:
    """A net with zeros for outputs is stationary where all classes are alike, and at no learning rate leaves it."""
    made = victim(MLPS["mlp"], some(10), Training(optimizer=SGD(lr=1e6), epochs=3))
    last = {name: torch.zeros_like(made.initial[name]) for name in list(made.initial)[-2:]}
    silent = replace(made, initial=made.initial | last, final={name: p + 1 for name, p in made.initial.items()})
    training = unrolled(silent, generic(silent))
    assert training.diverges_at(made.private.x, made.private.y) == 1
    assert training.diverges_at(made.private.x, torch.full((10, 10), 0.1).double()) is None


@dataclass(frozen=True)
class ByLayer:
    """An optimizer of somebody else's, which may treat each layer by itself."""

    lr: float = 0.1

    def init(self, params: Params) -> tuple[Params, ...]:
        return ()

    def update(
        self, params: Params, grads: Params, state: tuple[Params, ...], step: int
    ) -> tuple[Params, tuple[Params, ...]]:
        return {name: p - self.lr * grads[name] / grads[name].norm() for name, p in params.items()}, state


def test_what_has_no_closed_form_is_left_to_autograd() -> None:
    made, deep = victim(MLPS["mlp"], some(10), EASY), with_norms(CNNS["resnet"], BATCHED)
    endpoints = made.initial, made.final

    def spans(training: Training, model: nn.Module = made.model, records: int = 10) -> bool:
        return SpanDynamics.from_release(model, training, *endpoints, records=records, shape=(1, 8, 8)) is not None

    assert spans(EASY)
    for other in (replace(EASY, optimizer=Adam()), replace(EASY, privacy=DPGD(clip=1.0)), replace(EASY, clip=1.0)):
        assert not spans(other)
    assert not spans(replace(EASY, weight_decay=0.1, decay_biases=False))
    assert not spans(EASY, model=NETS["mlp with elu"](some(3)))
    assert not spans(EASY, records=64)  # as many records as pixels: nothing is gained
    undecayed = replace(BATCHED, weight_decay=0.1, decay_biases=False)
    for other in (replace(BATCHED, privacy=DPGD(clip=1.0)), replace(BATCHED, optimizer=ByLayer()), undecayed):
        sizes = {"records": 10, "shape": (1, 8, 8)}
        assert CNNDynamics.from_release(deep.model, other, deep.initial, deep.final, **sizes) is None


def test_free_memory_decides_how_many_steps_form_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 << 20 < unroll.free_memory(torch.device("cpu")) < 1 << 50
    model, like = mlp((784,), 10, hidden=(100,)), torch.zeros(1)

    def chosen(free: int, *, steps: int = 100, batch: int = 10) -> int:
        monkeypatch.setattr(unroll, "free_memory", lambda _: free)
        return segment_length(model, (784,), steps=steps, batch=batch, copies=2, like=like)

    assert chosen(1 << 40) == 100
    assert chosen(1 << 20) == 10  # a step's graph holds two copies of the weights, as what is between segments does
    assert chosen(1 << 20, batch=1_000_000) == 1  # activations outweigh the weights
    assert chosen(1 << 20, steps=1) == 1


def test_free_memory_decides_what_a_cnn_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    net = cnn(with_norms(CNNS["resnet"], BATCHED))
    weights, tape = net.start.nbytes, 8 * net.net.tape_values((1, 8, 8), 1)
    work = 8 * weights + 3 * tape

    def chosen(free: float, *, batch: int = 1, segment: int | None = None) -> tuple[bool, int | None, int]:
        monkeypatch.setattr(unroll_cnn, "free_memory", lambda _: free / unroll_cnn.USABLE_FRACTION)
        fitted, steps = net.fit_memory((1, 8, 8), steps=100, batch=batch, copies=2, segment=segment)
        return fitted.store_tapes, fitted.chunk, steps

    assert chosen(1.01 * (100 * (tape + weights) + work)) == (True, None, 100)
    assert chosen(0.99 * (100 * (tape + weights) + work)) == (False, None, 100)
    few = round((200 * weights / (weights + tape)) ** 0.5)
    between_segments = -(-100 // few) * 2 * weights
    assert chosen(1.01 * (few * (tape + weights) + between_segments + work)) == (True, None, few)
    assert chosen(0.99 * (few * (tape + weights) + between_segments + work)) == (False, None, 14)
    assert chosen(1.0) == (False, None, 14)
    assert chosen(0.99 * (5 * (tape + weights) + 20 * 2 * weights + work), segment=5) == (False, None, 5)
    for records, chunk in ((10, None), (9, 5), (5, 5), (4, 3), (1, 1)):  # with twice what such a pass works on
        free = 2.01 * (8 * weights + 3 * 8 * net.net.tape_values((1, 8, 8), records))
        assert chosen(free, batch=10)[1] == chunk


def test_what_was_chosen_is_described() -> None:
    made = with_norms(CNNS["resnet"], BATCHED)
    assert unrolled(made, cnn(made)).describe() == "one graph"
    short = unrolled(made, replace(cnn(made), store_tapes=False, chunk=3), segment=2)
    again = "each step run again in the backward pass"
    assert short.describe() == f"5 segments, one graph for 2 of 9 steps, {again}, records taken 3 at a time"
