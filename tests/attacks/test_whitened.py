"""Simulated training read through whitened layers and gates: the formulas, the slope, the span, and what comes back."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stopping import stopped
from torch import Tensor, nn

from remanence import DPGD, SGD, Adam, BadInput, Data, FineTuned, Training, Victim, train_victim
from remanence.attacks import L2, Cosine, SimuDy
from remanence.attacks._gates import Gates
from remanence.attacks._simulation import Simulation
from remanence.attacks._spanned import Spanned
from remanence.engine import engine_for, on_batches
from remanence.models import Standardise, centred_mlp, initial_params, mlp, resnet
from remanence.releases import all_but_one, fine_tuned
from remanence.search.distances import ByProducts
from remanence.search.whitening import Whitening
from remanence.training.decay import remaining_fraction
from remanence.types import Params

Net = Callable[[Data], nn.Module]
SQUARES = L2()
ONE = torch.ones((), dtype=torch.float64)
FULL = Training(optimizer=SGD(lr=0.1), epochs=6)
HARD = Training(
    optimizer=SGD(lr=0.03, momentum=0.9),
    epochs=4,
    batch_size=4,
    shuffled=False,
    weight_decay=0.01,
    lr_schedule=((2, 0.5),),
)
NETS: dict[str, Net] = {
    "mlp": lambda data: mlp(data.shape, 10, hidden=(24, 14), activation=nn.ReLU),
    "centred": lambda data: centred_mlp(data.shape, 10, hidden=(24, 14)),
    "standardised": lambda data: nn.Sequential(Standardise(1), *mlp(data.shape, 10, hidden=(24,), activation=nn.ReLU)),
}
by_net = pytest.mark.parametrize("net", NETS.values(), ids=NETS)
by_training = pytest.mark.parametrize("training", [FULL, HARD], ids=["full batch", "mini-batches, momentum and decay"])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def power(matrix: Tensor, exponent: float, *, least: float = 0.0) -> Tensor:
    """Of a symmetric matrix, its eigenvalues being at least so much."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(least) ** exponent) @ vectors.T


def victim(digits: Data, net: Net, training: Training, count: int = 10) -> Victim:
    data = digits.take(slice(0, count)).to("cpu", torch.float64)
    model = net(data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    if "0.spread" in initial:
        initial |= {"0.mean": initial["0.mean"] + 0.3, "0.spread": initial["0.spread"] * 0.4}
    return train_victim(model, training, initial, data.take([]), data, seed=0)


def spanned(made: Victim, distance: ByProducts = SQUARES, *, whitening: float, gates: Gates | None = None) -> Spanned:
    written = Spanned.of(made.model, made.training, made.initial, made.final, made.private.y, distance)
    assert written is not None
    steps = len(list(made.training.batches(len(made.private), 0)))
    written = written.whitened(whitening, shrunk=remaining_fraction(made.training, steps, records=len(made.private)))
    assert written is not None
    return replace(written, gates=gates)


def simulated(made: Victim, coordinates: Spanned, segment: int = 99) -> Simulation:
    batches = tuple(made.training.batches(len(made.private), 0))
    return Simulation(training=made.training, coordinates=coordinates, batches=batches, segment=segment)


def slope(simulation: Simulation, at: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    return torch.autograd.grad(simulation(x), x)[0]


@pytest.mark.parametrize("shape", [(7, 7), (9, 5), (5, 9)], ids=str)
def test_whitening_divides_by_powers_of_the_singular_values_on_both_sides(shape: tuple[int, int]) -> None:
    way, other = drawn(*shape), drawn(*shape, seed=1)
    records = 4
    least = float(torch.linalg.svdvals(way)[records - 1]) ** 2
    rows, columns = (power(gram, -0.35, least=least) for gram in (way @ way.T, way.T @ way))
    whitening = Whitening.of(way, power=0.7, first=records)
    for each in (way, other):
        expected = (rows @ each @ columns * each).sum()
        assert float(whitening(each).square().sum()) == pytest.approx(float(expected), rel=1e-10)
    torch.testing.assert_close(whitening.target, whitening(way))
    torch.testing.assert_close(whitening.target.diagonal()[:records], torch.linalg.svdvals(way)[:records] ** 0.3)


def test_no_power_leaves_every_distance_as_it_was() -> None:
    way, other = drawn(6, 8), drawn(6, 8, seed=1)
    assert float(Whitening.of(way, power=0.0, first=3)(other).norm()) == pytest.approx(float(other.norm()))


@by_net
@by_training
def test_at_the_true_records_nothing_is_left_to_explain(digits: Data, net: Net, training: Training) -> None:
    made = victim(digits, net, training)
    simulation = simulated(made, spanned(made, whitening=0.5))
    assert simulation(made.private.x) < 1e-16
    assert simulation(1 - made.private.x) > 0.1


def test_what_decay_alone_does_to_weights_is_no_way(digits: Data) -> None:
    """However many epochs are simulated."""
    made = victim(digits, next(iter(NETS.values())), replace(FULL, weight_decay=0.05))
    coordinates, x = spanned(made, whitening=0.5), made.private.x
    begun, read = coordinates.start(x), coordinates.read(x)
    shrunk = {name: 0.9 * p for name, p in begun.items()}
    torch.testing.assert_close(coordinates.apart(shrunk, read), coordinates.apart(begun, read))


def apart_by_training(made: Victim, x: Tensor, whitening: float, distance: ByProducts) -> Tensor:
    """The reference: trained plainly, and each layer whitened by powers of its Gram matrices."""
    batches = list(made.training.batches(len(x), 0))
    gradient = on_batches(engine_for(made.model, made.training, x.shape[1:]).gradient, x, made.private.y)
    end = made.training.descend(gradient, made.initial, batches, records=len(x), noise_seed=0)
    left = remaining_fraction(made.training, len(batches), records=len(x))
    names = [name for name, _ in made.model.named_parameters()]
    last = [name for name in names if name.endswith("weight")][-1]
    records, parts = len(x), []
    ends: tuple[Params, Params] = (made.final, end)
    for name in names:
        sent, ours = (params[name] - left * made.initial[name] for params in ends)
        if name.endswith("weight") and name != last:
            values = torch.linalg.svdvals(sent)
            least = float(values[min(records, len(values)) - 1]) ** 2
            rows = power(sent @ sent.T, -whitening / 4, least=least)
            columns = power(sent.T @ sent, -whitening / 4, least=least)
            sent, ours = (rows @ each @ columns for each in (sent, ours))
        parts.append(distance(sent.flatten(), ours.flatten()))
    return torch.stack(parts).sum()


@by_net
@by_training
@pytest.mark.parametrize("distance", [L2(), Cosine()], ids=repr)
def test_it_is_the_distance_of_whitened_layers_behind_a_plain_training(
    digits: Data, net: Net, training: Training, distance: ByProducts
) -> None:
    made = victim(digits, net, training)
    coordinates = spanned(made, distance, whitening=0.5)
    x = coordinates.within(torch.rand(made.private.x.shape, generator=torch.Generator().manual_seed(3)).double())
    ours = float(simulated(made, coordinates)(x))
    assert ours == pytest.approx(float(apart_by_training(made, x, 0.5, distance)), rel=1e-7)


@by_net
def test_what_is_simulated_lies_in_the_span_of_the_records(digits: Data, net: Net) -> None:
    made = victim(digits, net, FULL)
    coordinates = spanned(made, whitening=0.5)
    simulation = simulated(made, coordinates)
    x = torch.rand(made.private.x.shape, generator=torch.Generator().manual_seed(3)).double()
    inside = coordinates.within(x)
    assert (inside - x).norm() > 1
    torch.testing.assert_close(coordinates.within(made.private.x), made.private.x)
    torch.testing.assert_close(simulation(inside), simulation(x))
    seen, truth = (coordinates.net.read(made.initial, each) for each in (inside, made.private.x))
    assert torch.linalg.matrix_rank(torch.cat([seen, truth]), rtol=1e-8) == len(truth)


@by_net
@by_training
def test_the_slope_is_the_same_in_any_segments_and_that_of_differences(
    digits: Data, net: Net, training: Training
) -> None:
    made = victim(digits, net, training)
    gates = Gates.of((2.0, 40.0), ONE)
    coordinates = spanned(made, whitening=0.5, gates=gates)
    start, along = drawn(*made.private.x.shape, seed=1).sigmoid(), drawn(*made.private.x.shape, seed=2)
    whole, *cut = (slope(simulated(made, coordinates, segment), start) for segment in (99, 5, 1))
    for each in cut:
        torch.testing.assert_close(each, whole, rtol=1e-8, atol=1e-9 * float(whole.abs().max()))
    value, step = simulated(made, coordinates), 1e-6 * along
    difference = float(value(start + step) - value(start - step)) / 2e-6
    assert float((whole * along).sum()) == pytest.approx(difference, rel=1e-5)


def test_gates_grow_from_wide_to_the_step_of_relu(digits: Data) -> None:
    gates = Gates.of((2.0, 32.0), ONE)
    out = 5 * drawn(30, 20)
    shares = []
    for done in (0.0, 0.4, 0.8, 1.0):
        gates.sharpen(done)
        torch.testing.assert_close(gates(out), gates(7 * out))  # in units of what enters
        shares.append(float(gates.now))
    assert shares == pytest.approx([2.0, 8.0, 32.0, 32.0])
    made = victim(digits, NETS["mlp"], FULL)
    steep = spanned(made, whitening=0.5, gates=Gates.of((1e9, 1e9), ONE))
    x = drawn(*made.private.x.shape, seed=1).sigmoid()
    plain = simulated(made, spanned(made, whitening=0.5))(x)
    assert float(simulated(made, steep)(x)) == pytest.approx(float(plain), rel=1e-6)


def release(digits: Data, count: int = 4) -> FineTuned:
    return fine_tuned(victim(digits, NETS["mlp"], FULL, count)).release


def test_a_search_that_was_stopped_ends_with_the_same_bits(
    digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = SimuDy(candidates=4, steps=9, optimizer=Adam(lr=0.03), octaves=1, whitening=0.5, sharpness=(2.0, 40.0))
    shown, kept = release(digits), replace(attack, checkpoints=tmp_path)
    whole = attack.run(shown, seed=0)

    with stopped(monkeypatch, after=4):
        kept.run(shown, seed=0)
    for _ in range(2):  # from the middle, and what has ended
        found = kept.run(shown, seed=0)
        assert torch.equal(found.x, whole.x)
        assert found.objective == whole.objective


def test_many_records_come_back_that_plain_simulation_does_not_find(digits: Data) -> None:
    """Of half as many records as neurons."""
    net: Net = lambda data: mlp(data.shape, 10, hidden=(80, 80), activation=nn.ReLU)  # noqa: E731
    data = digits.take(slice(0, 40)).to("cpu", torch.float64)
    made = victim(digits, net, replace(FULL, optimizer=SGD(lr=0.02), epochs=4), count=40)
    plain = SimuDy(
        candidates=40,
        labels=tuple(data.y.tolist()),
        distance=L2(),
        tv=0.0,
        steps=200,
        optimizer=Adam(lr=0.05, beta1=0.8, beta2=0.9),
    )
    ours = replace(plain, whitening=0.5, sharpness=(2.0, 40.0))
    shown = fine_tuned(made).release
    near = [
        float((torch.cdist(data.x.flatten(1), attack.run(shown, seed=0).x.flatten(1)).amin(1) < 1).double().mean())
        for attack in (plain, ours)
    ]
    assert near[0] < 0.4
    assert near[1] > 0.75


def test_known_records_count_too(digits: Data) -> None:
    data = digits.take(slice(0, 6)).to("cpu", torch.float64)
    model = NETS["mlp"](data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    made = train_victim(model, FULL, initial, data.take(slice(0, 5)), data.take([5]), seed=0)
    attack = SimuDy(candidates=1, labels=(int(data.y[5]),), distance=L2(), tv=0.0, steps=120, optimizer=Adam(lr=0.05))
    found = replace(attack, whitening=0.5, sharpness=(2.0, 40.0)).run(all_but_one(made).release, seed=0)
    assert (found.x - data.x[5:]).square().mean() < 0.001


class OwnNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp((1, 8, 8), 10, hidden=(24,), activation=nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def with_hidden(*hidden: int, activation: type[nn.Module] = nn.ReLU) -> Net:
    return lambda data: mlp(data.shape, 10, hidden=hidden, activation=activation)


def strange_distance(sent: Tensor, ours: Tensor) -> Tensor:
    return (sent - ours).abs().sum()


WHITENED = SimuDy(candidates=4, steps=2, whitening=0.5)
GATED = SimuDy(candidates=4, steps=2, sharpness=(2.0, 40.0))
BIASED = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
)
GROUPED = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
)


@pytest.mark.parametrize(
    ("attack", "net", "training", "why"),
    [
        (WHITENED, NETS["mlp"], replace(FULL, privacy=DPGD(clip=1.0)), "DP-GD cuts the gradient of each record"),
        (WHITENED, NETS["mlp"], replace(FULL, clip=1.0), r"gradients are cut \(`clip`\)"),
        (replace(GATED, clip=10.0), NETS["mlp"], FULL, r"gradients are cut \(`clip`\)"),
        (WHITENED, NETS["mlp"], replace(FULL, optimizer=Adam(lr=0.01)), "the optimiser is Adam"),
        (replace(GATED, distance=strange_distance), NETS["mlp"], FULL, r"neither `L2\(\)` nor `Cosine\(\)`"),
        (WHITENED, lambda _: OwnNet(), FULL, "a class of its own, OwnNet: write it as an `nn.Sequential` of Flatten"),
        (GATED, with_hidden(24, activation=nn.ELU), FULL, "the activation `2` of the net is ELU, not ReLU"),
        (GATED, lambda _: nn.Sequential(*NETS["mlp"](_), nn.Dropout(0.0)), FULL, "a layer `6`, Dropout"),
        (replace(GATED, candidates=64), NETS["mlp"], FULL, "there are 64 records, and a record has only 64 numbers"),
        (WHITENED, with_hidden(4), FULL, "there are 4 records, and the first layer has only 4 neurons"),
        (WHITENED, with_hidden(), FULL, "no hidden layer"),
        (WHITENED, lambda _: GROUPED, FULL, "a layer `0`, Conv2d"),
        (GATED, lambda _: BIASED.eval(), FULL, r"the convolution `0` in front of a BatchNorm has a bias"),
        (GATED, lambda _: GROUPED, FULL, r"a layer `2`, Conv2d\(4, 4, .*groups=2"),
        (GATED, lambda _: resnet((1, 8, 8), 10, blocks=(1,), width=4, activation=nn.ELU), FULL, "is ELU, not ReLU"),
    ],
)
def test_where_it_cannot_be_used_the_one_reason_is_told(
    digits: Data, attack: SimuDy, net: Net, training: Training, why: str
) -> None:
    shown = fine_tuned(victim(digits, net, training)).release
    what = "whitening" if attack.whitening else "sharpness"
    with pytest.raises(BadInput, match=f"`{what}` cannot be used here, leave it out: .*{why}"):
        attack.run(shown, seed=0)


def test_gates_take_few_neurons(digits: Data) -> None:
    few = fine_tuned(victim(digits, with_hidden(4), FULL)).release
    assert GATED.run(few, seed=0).x.isfinite().all()
    with pytest.raises(BadInput, match="`whitening` of SimuDy must be 0 or more, got -1"):
        SimuDy(whitening=-1)
