"""SimuDy: records come back, settings do what they say, and what cannot be simulated is refused."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from refusals import refused
from simulating import EASY, HARD, NETS, Net, shown, some, victim
from torch import Tensor, nn

from remanence import DPGD, SGD, Adam, AdamW, Data, FineTuned, Logistic, RMSProp, Training, train_victim
from remanence.attacks import (
    L2,
    Cosine,
    CosineAnnealing,
    Search,
    SimuDy,
    Simulation,
    SoftLabels,
    Surrogate,
    TotalVariation,
    Whitening,
    with_search,
)
from remanence.attacks.finetuning.simulation import mean_gradient_norm
from remanence.engine import loss_gradient, trajectory
from remanence.models import initial_params, mlp, resnet, resnet18, vgg
from remanence.releases import all_but_one, fine_tuned
from remanence.seeds import derive_seed
from remanence.training import Optimizer

FAST = Adam(lr=0.05, beta1=0.8, beta2=0.9)
PLAIN = SimuDy(
    candidates=3,
    prior=TotalVariation(weight=0.005),
    search=Search(optimizer=Adam(lr=0.01, beta1=0.8, beta2=0.9), steps=30),
    whitening=None,
    surrogate=None,
    simulation=Simulation(clip=None),
)
SHARP = {"whitening": Whitening(), "surrogate": Surrogate()}
RELU_RESNET: Net = lambda data: resnet(data.shape, 10, blocks=(1, 1), width=4)  # noqa: E731


def searching(labels: tuple[int, ...], steps: int, optimizer: Optimizer = FAST) -> SimuDy:
    """For records with these labels, without a prior."""
    search = Search(optimizer=optimizer, steps=steps)
    return replace(PLAIN, candidates=len(labels), labels=labels, distance=L2(), prior=None, search=search)


def simulating(attack: SimuDy, **changes: object) -> SimuDy:
    return replace(attack, simulation=replace(attack.simulation, **changes))


@pytest.mark.slow
@pytest.mark.parametrize("training", [EASY, HARD], ids=["full batch", "mini-batches in order, momentum and decay"])
def test_digits_come_back(training: Training) -> None:
    data = some(6)
    release = fine_tuned(victim(NETS["mlp with elu"], data, training)).release
    found = searching(tuple(data.y.tolist()), 100).run(release, seed=0)
    assert found.y.tolist() == data.y.tolist()
    assert found.objective < 0.02
    assert (found.x - data.x).square().mean() < 0.005


@pytest.mark.slow
def test_many_records_come_back_that_plain_simulation_does_not_find(digits: Data) -> None:
    """Half as many records as neurons."""
    data = digits.take(slice(0, 40)).to("cpu", torch.float64)
    made = victim(
        lambda data: mlp(data.shape, 10, hidden=(80, 80), activation=nn.ReLU),
        data,
        replace(EASY, optimizer=SGD(lr=0.02), epochs=4),
    )
    plain, shown = searching(tuple(data.y.tolist()), 200), fine_tuned(made).release
    near = [
        float((torch.cdist(data.x.flatten(1), attack.run(shown, seed=0).x.flatten(1)).amin(1) < 1).double().mean())
        for attack in (plain, replace(plain, **SHARP))
    ]
    assert near[0] < 0.4
    assert near[1] > 0.75


@pytest.mark.slow
def test_a_surrogate_finds_records_that_no_neuron_responds_to_at_first() -> None:
    """Each neuron responds to one record and to no random candidate: ReLU's derivative is zero at all of them."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.stack([torch.randperm(64, generator=generator) < 32 for _ in range(4)]).double()
    data = Data(x=patterns.view(4, 1, 8, 8), y=torch.arange(4), num_classes=10)
    model = mlp(data.shape, 10, hidden=(8,), activation=nn.ReLU)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    initial["1.weight"] = (2 * patterns - 1).repeat(2, 1) / 8
    initial["1.bias"] = torch.full((8,), -0.8 * 32 / 8, dtype=torch.float64)
    release = fine_tuned(train_victim(model, EASY, initial, data.take([]), data, seed=0)).release
    plain = searching((0, 1, 2, 3), 150)
    errors = [
        float((replace(plain, surrogate=surrogate).run(release, seed=0).x - data.x).square().mean())
        for surrogate in (None, Surrogate())
    ]
    assert errors[0] > 0.2  # none has moved
    assert errors[1] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [Adam(lr=0.003), AdamW(lr=0.003), RMSProp(lr=0.003)], ids=repr)
@pytest.mark.parametrize("net", [NETS["mlp with relu"], RELU_RESNET], ids=["mlp", "resnet"])
def test_victims_of_adaptive_optimizers_can_be_searched(net: Net, optimizer: Optimizer) -> None:
    """Where ReLU lets nothing through, they divide by nothing."""
    data = some(6)
    release = fine_tuned(victim(net, data, replace(EASY, optimizer=optimizer, epochs=5))).release
    attack = replace(PLAIN, candidates=6, labels=tuple(data.y.tolist()), prior=None)
    first, last = (with_search(attack, optimizer=FAST, steps=n).run(release, seed=0).objective for n in (1, 30))
    assert first is not None
    assert last < 0.85 * first


@pytest.mark.parametrize("net", [resnet18, vgg], ids=["ResNet-18", "VGG-16"])
def test_deep_nets_are_simulated_on_images_of_64x64(net: Callable[..., nn.Module]) -> None:
    made = victim(lambda data: net(data.shape, 10, width=2), some(2, side=64), replace(EASY, epochs=2))
    attack = with_search(replace(PLAIN, candidates=2, labels=(0, 1)), steps=2, scales=4)
    found = attack.run(fine_tuned(made).release, seed=0)
    assert found.x.shape == (2, 1, 64, 64)
    assert found.x.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, SHARP], ids=["plain", "whitened, with a surrogate"])
def test_known_records_are_simulated_too(settings: dict[str, Whitening | Surrogate]) -> None:
    data, training = some(6), replace(EASY, epochs=3)
    net: Net = lambda data: mlp(data.shape, 10, hidden=(24, 14), activation=nn.ReLU)  # noqa: E731
    made = victim(net, data.take([5]), training, data.take(slice(0, 5)))
    found = replace(searching((5,), 120), **settings).run(all_but_one(made).release, seed=0)
    assert (found.x - data.x[5:]).square().mean() < 0.005


@pytest.mark.slow
def test_dp_gd_is_simulated_without_its_noise() -> None:
    attack, privacy = with_search(replace(PLAIN, labels=(0, 1, 2)), steps=10), DPGD(clip=0.5)
    noisy, same = (
        attack.run(shown(training=replace(EASY, privacy=each)), seed=0).x
        for each in (replace(privacy, noise=1e-9), privacy)
    )
    torch.testing.assert_close(noisy, same, rtol=0.0, atol=1e-3)


UNEVEN = (0, 0, 0, 3, 3, 3, 5, 5, 5, 8)


def uneven(digits: Data) -> FineTuned:
    index = [int((digits.y == label).nonzero()[UNEVEN[:i].count(label), 0]) for i, label in enumerate(UNEVEN)]
    net: Net = lambda data: mlp(data.shape, 10, hidden=(24, 14), activation=nn.ReLU)  # noqa: E731
    data = digits.take(index).to("cpu", torch.float64)
    return fine_tuned(victim(net, data, Training(optimizer=SGD(lr=0.1), epochs=10))).release


def labels_of(attack: SimuDy, release: FineTuned) -> list[int]:
    found = attack.run(release, seed=0).y
    return found.tolist()


@pytest.mark.slow
def test_labels_are_balanced_unless_given_or_optimised(digits: Data) -> None:
    guessed = labels_of(with_search(replace(PLAIN, candidates=20), steps=1), shown())
    assert sorted(guessed) == sorted(list(range(10)) * 2) != guessed  # or a mini-batch would hold one class
    release, attack = uneven(digits), replace(searching(UNEVEN, 150), **SHARP)
    soft = replace(attack, labels=SoftLabels())
    found = labels_of(soft, release)
    assert Counter(found) == Counter(UNEVEN)
    still = with_search(attack, steps=1, optimizer=Adam(lr=1e-3))
    assert labels_of(replace(still, labels=SoftLabels(initial=UNEVEN)), release) == list(UNEVEN)
    assert labels_of(replace(still, labels=None, start=soft), release) == found


def test_soft_labels_need_classes() -> None:
    model = mlp((1, 8, 8), 1, hidden=(24,), activation=nn.ReLU)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    final = {name: p + 0.1 for name, p in initial.items()}
    training = replace(EASY, loss=Logistic())
    release = replace(shown(), model=model, initial=initial, final=final, training=training, num_classes=2)
    with refused("unsupported-training", "labels"):
        replace(PLAIN, candidates=2, labels=SoftLabels()).run(release, seed=0)


@pytest.mark.slow
def test_another_training_can_be_simulated() -> None:
    total, same, fewer = (
        simulating(PLAIN, training=training).run(shown(), seed=0).x
        for training in (None, EASY, replace(EASY, epochs=2))
    )
    assert torch.equal(total, same)
    assert not torch.equal(total, fewer)


@pytest.mark.slow
def test_a_search_starts_from_a_shorter_one() -> None:
    fewer = simulating(replace(PLAIN, labels=(2, 0, 1)), training=replace(EASY, epochs=2))
    initial = fewer.run(shown(), seed=0)
    still = with_search(replace(PLAIN, start=fewer), steps=1, optimizer=Adam(lr=0.0))
    found = still.run(shown(), seed=0)
    assert torch.equal(found.x, initial.x)
    assert found.y.tolist() == [2, 0, 1]
    longer = replace(still, search=PLAIN.search).run(shown(), seed=0)
    assert longer.objective < found.objective
    with refused("conflict", "start"):
        replace(PLAIN, candidates=4, start=fewer)


def test_of_several_restarts_the_lowest_objective_counts() -> None:
    attack, made = with_search(PLAIN, steps=10), shown()
    single = [attack.run(made, seed=seed) for seed in (0, derive_seed(0, "restart", 1), derive_seed(0, "restart", 2))]
    best = min(single, key=lambda found: found.objective or 0.0)
    found = with_search(attack, restarts=3).run(made, seed=0)
    assert torch.equal(found.x, best.x)
    assert len({each.objective for each in single}) == 3
    assert found.objective == best.objective


@pytest.mark.slow
@pytest.mark.parametrize("segment", [1, 4])
def test_an_attack_in_segments_is_the_same_attack(segment: int) -> None:
    total, split = (simulating(PLAIN, segment=n).run(shown(), seed=0).x for n in (None, segment))
    torch.testing.assert_close(total, split, rtol=0.0, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    release, attack = shown(), with_search(PLAIN, steps=2)
    with refused("shape-mismatch", "labels"):
        replace(attack, labels=(0, 1)).run(release, seed=0)
    with refused("out-of-range", "labels"):
        replace(attack, labels=(0, 1, 10)).run(release, seed=0)
    for wrong in ({"segment": 0}, {"training": replace(EASY, epochs=0)}):
        with refused("out-of-range"):
            simulating(attack, **wrong).run(release, seed=0)


@pytest.mark.parametrize("net", [NETS["mlp with relu"], NETS["mlp with elu"], RELU_RESNET], ids=["span", "any", "cnn"])
@pytest.mark.parametrize("rate", [10.0, 1e5, 1e200])
def test_a_training_that_diverges_is_refused_with_its_step(net: Net, rate: float) -> None:
    wild = replace(shown(net), training=replace(EASY, optimizer=SGD(lr=rate)))
    with refused("diverged") as error:
        with_search(PLAIN, steps=1).run(wild, seed=0)
    assert re.search(r"at its step \d of 6", str(error.value))


def test_a_layer_that_hardly_changed_is_no_divergence() -> None:
    release = shown()
    still = replace(release, final=release.final | {"3.bias": release.initial["3.bias"] + 1e-9})
    attack = with_search(replace(PLAIN, whitening=Whitening()), steps=1)
    assert attack.run(still, seed=0).x.isfinite().all()


def test_simulated_gradients_can_be_clipped_to_those_of_the_victim() -> None:
    attack = simulating(with_search(PLAIN, steps=3), clip=10.0)
    wild = replace(shown(), training=replace(EASY, optimizer=SGD(lr=1e200)))
    assert attack.run(wild, seed=0).x.isfinite().all()
    for training in (replace(EASY, optimizer=Adam(lr=0.01)), replace(EASY, optimizer=SGD(lr=0.0))):
        with refused("unsupported-training", "clip"):
            simulating(attack, training=training).run(shown(), seed=0)
    known, other = simulating(attack, training=EASY), replace(shown(), training=replace(EASY, optimizer=SGD(lr=50.0)))
    assert known.run(shown(), seed=0).objective == known.run(other, seed=0).objective


@pytest.mark.parametrize("training", [EASY, replace(EASY, lr_schedule=((3, 0.1),))], ids=["one rate", "two rates"])
def test_the_mean_gradient_follows_from_how_far_the_weights_went(training: Training) -> None:
    made = victim(NETS["mlp with relu"], some(3), training)
    steps = trajectory(training, made.model, made.initial, made.private)
    rates = [0.1 if epoch < 3 or not training.lr_schedule else 0.01 for epoch in range(6)]
    gradients = [
        loss_gradient(made.model, weights, made.private.x, made.private.y, loss=training.loss) for weights in steps
    ]
    total = sum(
        rate * torch.cat([g.flatten() for g in each.values()]) for rate, each in zip(rates, gradients, strict=True)
    )
    found = mean_gradient_norm(fine_tuned(made).release, training, records=3)
    assert found == pytest.approx(float(torch.as_tensor(total).norm()) / sum(rates), rel=1e-6)


def with_hidden(*hidden: int, activation: type[nn.Module] = nn.ReLU) -> Net:
    return lambda data: mlp(data.shape, 10, hidden=hidden, activation=activation)


def strange_distance(target: Tensor, update: Tensor) -> Tensor:
    return (target - update).abs().sum()


WHITENED = with_search(replace(PLAIN, candidates=4, whitening=Whitening()), steps=2)
SURROGATE = with_search(replace(PLAIN, candidates=4, surrogate=Surrogate()), steps=2)
GROUPED = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
)


@pytest.mark.parametrize(
    ("attack", "net", "training"),
    [
        (WHITENED, with_hidden(24), replace(EASY, privacy=DPGD(clip=1.0))),
        (WHITENED, with_hidden(24), replace(EASY, clip=1.0)),
        (replace(SURROGATE, simulation=Simulation(clip=10.0)), with_hidden(24), EASY),
        (WHITENED, with_hidden(24), replace(EASY, optimizer=Adam(lr=0.01))),
        (replace(SURROGATE, distance=strange_distance), with_hidden(24), EASY),
        (SURROGATE, with_hidden(24, activation=nn.ELU), EASY),
        (replace(SURROGATE, candidates=64), with_hidden(24), EASY),  # as many records as pixels
        (WHITENED, with_hidden(4), EASY),  # as many as neurons
        (WHITENED, with_hidden(), EASY),
        (WHITENED, lambda _: GROUPED, EASY),
        (SURROGATE, lambda _: GROUPED, EASY),
    ],
)
def test_where_whitening_or_a_surrogate_cannot_be_used_it_is_refused(
    attack: SimuDy, net: Net, training: Training
) -> None:
    with refused("unsupported-model", "whitening" if attack.whitening else "surrogate"):
        attack.run(shown(net, training), seed=0)


@pytest.mark.parametrize(
    ("net", "training", "same_as"),
    [
        (with_hidden(24), EASY, {"distance": L2(), "whitening": Whitening(), "surrogate": Surrogate()}),
        (with_hidden(3), EASY, {"surrogate": Surrogate()}),  # as many records as neurons
        (RELU_RESNET, EASY, {"surrogate": Surrogate(), "simulation": Simulation(clip=10.0)}),
        (NETS["mlp with elu"], EASY, {}),
        (with_hidden(24), replace(EASY, optimizer=Adam(lr=0.003)), {}),
        (RELU_RESNET, replace(EASY, optimizer=Adam(lr=0.003)), {"surrogate": Surrogate()}),
    ],
    ids=["mlp", "narrow mlp", "resnet", "elu", "mlp by Adam", "resnet by Adam"],
)
def test_by_default_it_takes_what_the_network_allows(net: Net, training: Training, same_as: dict[str, Any]) -> None:
    release, best = shown(net, training), with_search(SimuDy(candidates=3), steps=3)
    plain = replace(best, distance=Cosine(), whitening=None, surrogate=None, simulation=Simulation(clip=None))
    assert torch.equal(best.run(release, seed=0).x, replace(plain, **same_as).run(release, seed=0).x)


@pytest.mark.slow
def test_the_published_search_reconstructs_digits() -> None:
    data = some(3)
    release = fine_tuned(victim(NETS["mlp with elu"], data, EASY)).release
    attack = replace(with_search(SimuDy.paper(candidates=3), steps=400, optimizer=FAST), labels=tuple(data.y.tolist()))
    assert attack.search.schedule == CosineAnnealing(period=100)
    assert (attack.run(release, seed=0).x - data.x).square().mean() < 0.05
