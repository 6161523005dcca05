"""Simulated training: it is the victim's, its slope is the true one in any segments, and records come back."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from simulating import EASY, NETS, Net, shown, some, victim
from torch import Tensor, nn

from remanence import DPGD, SGD, Adam, AdamW, BadInput, RMSProp, Training
from remanence.attacks import L2, Cosine, SimuDy, _simulation
from remanence.attacks._simulation import Coordinates, Simulation, Whole, segment_of
from remanence.attacks._spanned import Spanned
from remanence.attacks.finetuning.simudy import mean_gradient
from remanence.engine import engine_for, loss_gradient, trajectory
from remanence.errors import Diverged
from remanence.models import Standardise, centred_mlp, initial_params, mlp, resnet, resnet18, vgg
from remanence.releases import KnowsTraining, all_but_one, fine_tuned
from remanence.search.distances import ByProducts
from remanence.seeds import derive_seed
from remanence.training import Optimizer

HARD = Training(
    optimizer=SGD(lr=0.03, momentum=0.9),
    epochs=4,
    batch_size=4,
    shuffled=False,
    weight_decay=0.01,
    lr_schedule=((2, 0.5), (3, 0.1)),
)
CUT = replace(HARD, clip=0.3)
by_net = pytest.mark.parametrize("net", NETS.values(), ids=NETS)


def simulated(made: KnowsTraining, labels: Tensor, segment: int, coordinates: Coordinates | None = None) -> Simulation:
    training, batches = made.training, tuple(made.training.batches(len(labels), 0))
    whole = Whole(model=made.model, training=training, initial=made.initial, final=made.final, y=labels, distance=L2())
    return Simulation(training=training, coordinates=coordinates or whole, batches=batches, segment=segment)


by_clip = pytest.mark.parametrize("training", [HARD, CUT], ids=["as they are", "cut"])


@by_net
@by_clip
def test_on_the_true_records_it_ends_where_the_victim_did(net: Net, training: Training) -> None:
    made = victim(net, some(10, side=12), training)
    simulation = simulated(made, made.private.y, 5)
    assert simulation(made.private.x) < 1e-20
    assert simulation(1 - made.private.x) > 0.1


def slope(simulation: Simulation, at: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    return torch.autograd.grad(simulation(x), x)[0]


@by_net
@by_clip
def test_the_slope_is_the_same_in_any_segments_and_that_of_differences(net: Net, training: Training) -> None:
    made = victim(net, some(10, side=12), training)
    generator = torch.Generator().manual_seed(0)
    start, along = (torch.rand(made.private.x.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    whole, *cut = (slope(simulated(made, made.private.y, segment), start) for segment in (12, 5, 1))
    for each in cut:
        torch.testing.assert_close(each, whole, rtol=1e-8, atol=1e-8 * float(whole.abs().max()))
    value, step = simulated(made, made.private.y, 12), 1e-6 * along
    difference = float(value(start + step) - value(start - step)) / 2e-6
    assert float((whole * along).sum()) == pytest.approx(difference, rel=1e-3)  # ELU's curvature jumps


@pytest.mark.parametrize("distance", [L2(), Cosine()], ids=repr)
@pytest.mark.parametrize("training", [EASY, HARD], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("made", ["mlp", "centred", "standardised"])
def test_written_in_the_records_it_is_the_same_training(made: str, training: Training, distance: ByProducts) -> None:
    data = some(10)
    nets: dict[str, Net] = {
        "mlp": NETS["mlp with relu"],
        "centred": lambda data: centred_mlp(data.shape, 10, hidden=(12, 9)),
        "standardised": lambda data: nn.Sequential(Standardise(1), *NETS["mlp with relu"](data)),
    }
    owner = victim(nets[made], data, training)
    written = Spanned.of(owner.model, training, owner.initial, owner.final, data.y, distance)
    assert written is not None
    start = torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    usual = Whole(
        model=owner.model, training=training, initial=owner.initial, final=owner.final, y=data.y, distance=distance
    )
    ours, theirs = (simulated(owner, data.y, 4, coordinates) for coordinates in (written, usual))
    assert float(ours(data.x)) == pytest.approx(0.0, abs=1e-12)
    assert float(ours(start)) == pytest.approx(float(theirs(start)), rel=1e-9)
    torch.testing.assert_close(slope(ours, start), slope(theirs, start), rtol=1e-7, atol=1e-11)


def test_what_cannot_be_written_in_the_records_is_not() -> None:
    data = some(10)
    owner = victim(NETS["mlp with relu"], data, EASY)

    def written(training: Training, model: nn.Module = owner.model, y: Tensor = data.y) -> bool:
        return Spanned.of(model, training, owner.initial, owner.final, y, L2()) is not None

    assert written(EASY)
    assert not written(replace(EASY, optimizer=Adam()))
    assert not written(replace(EASY, privacy=DPGD(clip=1.0)))
    assert not written(replace(EASY, clip=1.0))
    assert not written(EASY, model=NETS["mlp with elu"](data))
    assert not written(EASY, y=torch.zeros(64, dtype=torch.int64))  # as many records as pixels: nothing is gained


@pytest.mark.parametrize("training", [EASY, HARD], ids=["full batch", "mini-batches in order, momentum and decay"])
def test_digits_come_back(training: Training) -> None:
    data = some(6)
    release = fine_tuned(victim(NETS["mlp with elu"], data, training)).release
    attack = SimuDy(candidates=6, labels=tuple(data.y.tolist()), distance=L2(), tv=0.0, steps=100)
    found = replace(attack, optimizer=Adam(lr=0.05, beta1=0.8, beta2=0.9)).run(release, seed=0)
    assert found.y is not None
    assert found.y.tolist() == data.y.tolist()
    assert found.objective is not None
    assert found.objective < 0.02
    distances = torch.cdist(data.x.flatten(1), found.x.flatten(1))
    assert distances.argmin(1).tolist() == list(range(6))  # each its own, by its label
    assert (found.x - data.x).square().mean() < 0.005


@pytest.mark.parametrize("optimizer", [Adam(lr=0.003), AdamW(lr=0.003), RMSProp(lr=0.003)], ids=repr)
@pytest.mark.parametrize("net", ["mlp with relu", "resnet with relu"])
def test_victims_of_optimisers_that_divide_by_a_root_can_be_searched(net: str, optimizer: Optimizer) -> None:
    """Where ReLU lets nothing through what they divide by is nothing too."""
    nets = NETS | {"resnet with relu": lambda data: resnet(data.shape, 10, blocks=(1, 1), width=4)}
    data = some(6)
    release = fine_tuned(victim(nets[net], data, replace(EASY, optimizer=optimizer, epochs=5))).release
    attack = SimuDy(candidates=6, labels=tuple(data.y.tolist()), tv=0.0, optimizer=Adam(lr=0.03, beta1=0.8, beta2=0.9))
    first, last = (replace(attack, steps=steps).run(release, seed=0).objective for steps in (1, 30))
    assert first is not None
    assert last is not None
    assert last < 0.85 * first


@pytest.mark.parametrize("net", [resnet18, vgg], ids=["ResNet-18", "VGG-16"])
def test_deep_nets_are_simulated_on_images_of_64x64(net: Callable[..., nn.Module]) -> None:
    made = victim(lambda data: net(data.shape, 10, width=2), some(2, side=64), replace(EASY, epochs=2))
    found = SimuDy(candidates=2, labels=(0, 1), steps=2).run(fine_tuned(made).release, seed=0)
    assert found.x.shape == (2, 1, 64, 64)
    value = simulated(made, made.private.y, 1)
    along = slope(value, found.x)
    step = 1e-7 * along / along.norm()
    difference = float(value(found.x + step) - value(found.x - step)) / 2e-7
    assert float(along.norm()) == pytest.approx(difference, rel=1e-4)


def test_known_records_are_simulated_too() -> None:
    data, training = some(10), replace(EASY, epochs=3)
    made = victim(NETS["mlp with relu"], data.take([9]), training, data.take(slice(0, 9)))
    attack = SimuDy(candidates=1, labels=(9,), distance=L2(), tv=0.0, steps=120, optimizer=Adam(lr=0.05))
    found = attack.run(all_but_one(made).release, seed=0)
    assert (found.x - data.x[9:]).square().mean() < 0.005


def test_dp_gd_is_simulated_without_its_noise() -> None:
    private = replace(EASY, privacy=DPGD(clip=0.5, noise=1e-9))
    found = SimuDy(candidates=3, labels=(0, 1, 2), steps=10, tv=0.0).run(shown(training=private), seed=0)
    clipped = replace(EASY, privacy=DPGD(clip=0.5))
    same = SimuDy(candidates=3, labels=(0, 1, 2), steps=10, tv=0.0).run(shown(training=clipped), seed=0)
    torch.testing.assert_close(found.x, same.x, rtol=0.0, atol=1e-3)


def test_labels_are_guessed_evenly() -> None:
    found = SimuDy(candidates=20, steps=1).run(shown(), seed=0)
    assert found.y is not None
    assert found.y.bincount().tolist() == [2] * 10
    assert found.y.tolist() != sorted(found.y.tolist())  # or a mini-batch would hold one class


def test_another_training_can_be_simulated() -> None:
    attack = SimuDy(candidates=3, steps=30)
    whole, same, fewer = (
        replace(attack, training=training).run(shown(), seed=0).x for training in (None, EASY, replace(EASY, epochs=2))
    )
    assert torch.equal(whole, same)
    assert not torch.equal(whole, fewer)


def test_a_search_goes_on_from_a_shorter_one() -> None:
    fewer = SimuDy(candidates=3, steps=30, training=replace(EASY, epochs=2), labels=(2, 0, 1))
    begun = fewer.run(shown(), seed=0)
    still = replace(fewer, start=fewer, training=None, steps=1, labels=None, optimizer=Adam(lr=0.0))
    found = still.run(shown(), seed=0)
    assert torch.equal(found.x, begun.x)
    assert found.y is not None
    assert found.y.tolist() == [2, 0, 1]
    whole = replace(still, steps=30, optimizer=fewer.optimizer).run(shown(), seed=0)
    assert found.objective is not None
    assert whole.objective is not None
    assert whole.objective < found.objective
    with pytest.raises(BadInput, match="as many candidates as the search that goes on from it, 4, got 3"):
        SimuDy(candidates=4, start=fewer)


def test_of_several_starts_the_lowest_objective_counts() -> None:
    attack, made = SimuDy(candidates=3, steps=10), shown()
    single = [attack.run(made, seed=seed) for seed in (0, derive_seed(0, "restart", 1), derive_seed(0, "restart", 2))]
    best = min(single, key=lambda found: found.objective or 0.0)
    found = replace(attack, restarts=3).run(made, seed=0)
    assert torch.equal(found.x, best.x)
    assert len({each.objective for each in single}) == 3
    assert found.objective == best.objective


def test_memory_decides_how_many_steps_share_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model, like = mlp((784,), 10, hidden=(100,)), torch.zeros(1)

    def chosen(free: int, *, steps: int = 100, batch: int = 10) -> int:
        monkeypatch.setattr(_simulation, "free_memory", lambda _: free)
        return segment_of(model, (784,), steps=steps, batch=batch, copies=2, like=like)

    assert chosen(1 << 40) == 100
    assert chosen(1 << 20) == 10  # a graph of a step holds two copies of the weights, as a cut does
    assert chosen(1 << 20, batch=1_000_000) == 1  # activations outweigh the weights: replay single steps
    assert chosen(1 << 20, steps=1) == 1


def test_free_memory_is_what_the_system_tells() -> None:
    assert 1 << 20 < _simulation.free_memory(torch.device("cpu")) < 1 << 50


@pytest.mark.parametrize("segment", [1, 4])
def test_an_attack_in_segments_is_the_same_attack(segment: int) -> None:
    attack = SimuDy(candidates=3, labels=(0, 1, 2), steps=20)
    whole, cut = (replace(attack, segment=n).run(shown(), seed=0).x for n in (None, segment))
    torch.testing.assert_close(whole, cut, rtol=0.0, atol=1e-6)


def test_what_cannot_be_simulated_is_refused() -> None:
    release, attack = shown(), SimuDy(candidates=3, steps=2)
    with pytest.raises(BadInput, match=r"of one net, and differ in 3\.bias"):
        attack.run(replace(release, final=release.final | {"3.bias": torch.zeros(4)}), seed=0)
    short = {name: p for name, p in release.final.items() if name != "3.bias"}
    with pytest.raises(BadInput, match=r"lack the model's 3\.bias"):
        attack.run(replace(release, initial=short, final=short), seed=0)
    with pytest.raises(BadInput, match="the same weights"):
        attack.run(replace(release, final=release.initial), seed=0)
    with pytest.raises(BadInput, match="not finite"):
        attack.run(replace(release, final={n: p / 0 for n, p in release.final.items()}), seed=0)
    with pytest.raises(BadInput, match=r"one of 0\.\.9 for each of the 3 candidates, got 2"):
        replace(attack, labels=(0, 1)).run(release, seed=0)
    for wrong in ({"segment": 0}, {"candidates": 0}, {"training": replace(EASY, epochs=0)}):
        with pytest.raises(BadInput, match=r"of (SimuDy|Training) must be 1 or more, got 0"):
            replace(attack, **wrong).run(release, seed=0)
    with pytest.raises(BadInput, match=r"got 3 with \[10\]"):
        replace(attack, labels=(0, 1, 10)).run(release, seed=0)


def test_a_rate_that_diverges_is_told_with_its_step() -> None:
    wild = replace(shown(), training=replace(EASY, optimizer=SGD(lr=1e200)))
    with pytest.raises(BadInput, match=r"diverges at its step \d of 6 on random records"):
        SimuDy(candidates=3, steps=5).run(wild, seed=0)


@pytest.mark.parametrize("net", ["mlp with relu", "mlp with elu", "resnet with relu"])
@pytest.mark.parametrize("rate", [10.0, 100.0, 1e5])
def test_a_way_of_a_thousand_times_the_victims_is_told(net: str, rate: float) -> None:
    """Written in the records, by autograd and by passes."""
    nets = NETS | {"resnet with relu": lambda data: resnet(data.shape, 10, blocks=(1, 1), width=4)}
    wild = replace(shown(nets[net]), training=replace(EASY, optimizer=SGD(lr=rate)))
    with pytest.raises(Diverged, match=r"diverges at its step \d of 6 on random records"):
        SimuDy(candidates=3, steps=1).run(wild, seed=0)


def test_a_layer_that_hardly_moved_is_no_divergence() -> None:
    release = shown()
    bias = release.initial["3.bias"] + 1e-9
    still = replace(release, final=release.final | {"3.bias": bias})
    assert SimuDy(candidates=3, steps=1, whitening=0.5).run(still, seed=0).x.isfinite().all()


def test_simulated_gradients_can_be_cut_to_those_of_the_victim() -> None:
    wild = replace(shown(), training=replace(EASY, optimizer=SGD(lr=1e200)))
    assert SimuDy(candidates=3, steps=5, clip=10.0).run(wild, seed=0).x.isfinite().all()
    with pytest.raises(BadInput, match="for trainings by SGD, got Adam"):
        SimuDy(candidates=3, steps=5, clip=10.0).run(shown(training=replace(EASY, optimizer=Adam(lr=0.01))), seed=0)


def test_a_training_that_moves_nothing_has_no_mean_gradient() -> None:
    with pytest.raises(BadInput, match="for trainings that move the weights, got one with a rate of 0"):
        SimuDy(candidates=3, clip=10.0, training=replace(EASY, optimizer=SGD(lr=0.0))).run(shown(), seed=0)


def test_what_is_cut_follows_from_the_training_that_is_simulated_alone() -> None:
    release, attack = shown(), SimuDy(candidates=3, labels=(0, 1, 2), steps=3, clip=1.0, training=EASY)
    other = replace(release, training=replace(EASY, optimizer=SGD(lr=50.0)))
    assert attack.run(release, seed=0).objective == attack.run(other, seed=0).objective


@pytest.mark.parametrize("training", [EASY, replace(EASY, lr_schedule=((3, 0.1),))], ids=["one rate", "two rates"])
def test_the_mean_gradient_follows_from_how_far_the_weights_went(training: Training) -> None:
    made = victim(NETS["mlp with relu"], some(3), training)
    passed = trajectory(training, made.model, made.initial, made.private)
    rates = [0.1 if epoch < 3 or not training.lr_schedule else 0.01 for epoch in range(6)]
    gradients = [
        loss_gradient(made.model, weights, made.private.x, made.private.y, loss=training.loss) for weights in passed
    ]
    total = sum(
        rate * torch.cat([g.flatten() for g in each.values()]) for rate, each in zip(rates, gradients, strict=True)
    )
    told = mean_gradient(fine_tuned(made).release, training, records=3)
    assert told == pytest.approx(float(torch.as_tensor(total).norm()) / sum(rates), rel=1e-6)


def test_images_can_be_standardised_by_the_model() -> None:
    data = some(3)
    model = nn.Sequential(Standardise(1), *mlp(data.shape, 10, hidden=(8,), activation=nn.ReLU))
    params = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    params |= {"0.mean": params["0.mean"] + 0.3, "0.spread": params["0.spread"] * 0.2}
    written = engine_for(model, EASY, data.shape).gradient(params, data.x, data.y)
    torch.testing.assert_close(written, loss_gradient(model, params, data.x, data.y, loss=EASY.loss))
