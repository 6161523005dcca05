"""Simulated training: it is the victim's, its slope is the true one in any segments, and records come back."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from remanence import (
    DPGD,
    L2,
    SGD,
    Adam,
    AdamW,
    BadInput,
    Cosine,
    Data,
    InitialAndFinalWeights,
    Logistic,
    RMSProp,
    SimuDy,
    SquaredError,
    Training,
    Victim,
    all_but_one,
    centred_mlp,
    cnn,
    initial_and_final,
    initial_params,
    load,
    mlp,
    resnet,
    resnet18,
    train_victim,
    vgg,
)
from remanence.attacks import _simulation
from remanence.attacks._search import coarser, search_in_place
from remanence.attacks._simulation import Coordinates, Simulation, Whole, segment_of
from remanence.attacks._spanned import Spanned
from remanence.attacks.gradient_matching import ByProducts
from remanence.attacks.simudy import mean_gradient
from remanence.errors import Diverged
from remanence.nets import Standardise
from remanence.release import KnowsTraining
from remanence.seeds import stream
from remanence.training import KnownLoss, Optimizer

Net = Callable[[Data], nn.Module]
HARD = Training(
    optimizer=SGD(lr=0.03, momentum=0.9),
    epochs=4,
    batch_size=4,
    shuffled=False,
    weight_decay=0.01,
    stages=((2, 0.5), (3, 0.1)),
)
EASY = Training(optimizer=SGD(lr=0.1), epochs=6)
NETS: dict[str, Net] = {
    "mlp with relu": lambda data: mlp(data.shape, 10, hidden=(24,), activation=nn.ReLU),
    "mlp with elu": lambda data: mlp(data.shape, 10, hidden=(24,)),
    "cnn": lambda data: cnn(data.shape, 10),
    "resnet": lambda data: resnet(data.shape, 10, blocks=(1, 1), width=4, activation=nn.ELU),
    "vgg": lambda data: vgg(data.shape, 10, blocks=(1, 2), width=4, activation=nn.ELU),
}
CUT = replace(HARD, clip=0.3)
by_net = pytest.mark.parametrize("net", NETS.values(), ids=NETS)


def some(count: int, *, side: int = 8) -> Data:
    """Digits of as many classes, in float64."""
    digits = load("digits")
    place = torch.tensor([int((digits.y == label).nonzero()[0, 0]) for label in range(count)])
    x = nn.functional.interpolate(digits.x[place].double(), size=(side, side))
    return Data(x=x, y=digits.y[place], num_classes=10)


def victim(net: Net, data: Data, training: Training, fixed: Data | None = None) -> Victim:
    model = net(data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    return train_victim(model, training, initial, fixed or data.take([]), data, seed=0)


def shown(net: Net = NETS["mlp with relu"], training: Training = EASY) -> InitialAndFinalWeights:
    return initial_and_final(victim(net, some(3), training)).release


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
    release = initial_and_final(victim(NETS["mlp with elu"], data, training)).release
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
    release = initial_and_final(victim(nets[net], data, replace(EASY, optimizer=optimizer, epochs=5))).release
    attack = SimuDy(candidates=6, labels=tuple(data.y.tolist()), tv=0.0, optimizer=Adam(lr=0.03, beta1=0.8, beta2=0.9))
    first, last = (replace(attack, steps=steps).run(release, seed=0).objective for steps in (1, 30))
    assert first is not None
    assert last is not None
    assert last < 0.85 * first


@pytest.mark.parametrize("net", [resnet18, vgg], ids=["ResNet-18", "VGG-16"])
def test_deep_nets_are_simulated_on_images_of_64x64(net: Callable[..., nn.Module]) -> None:
    made = victim(lambda data: net(data.shape, 10, width=2), some(2, side=64), replace(EASY, epochs=2))
    found = SimuDy(candidates=2, labels=(0, 1), steps=2).run(initial_and_final(made).release, seed=0)
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
    single = [attack.run(made, seed=seed) for seed in (0, stream(0, "restart", 1), stream(0, "restart", 2))]
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


def test_what_is_wrongly_described_is_refused() -> None:
    release, attack = shown(), SimuDy(candidates=3, steps=2)
    for classes in (3, 12):
        with pytest.raises(BadInput, match=f"`num_classes` of the release must be 10, the .* outputs, got {classes}"):
            attack.run(replace(release, num_classes=classes), seed=0)
    with pytest.raises(BadInput, match=r"does not take records of the release's `shape` \(1, 9, 9\): mat1 and mat2"):
        attack.run(replace(release, shape=(1, 9, 9)), seed=0)
    with pytest.raises(BadInput, match=r"of one dtype, got torch\.float32 and torch\.float64"):
        attack.run(replace(release, initial={name: p.float() for name, p in release.initial.items()}), seed=0)
    with pytest.raises(BadInput, match="`training` must be a Training, got SGD"):
        attack.run(replace(release, training=SGD(lr=0.1)), seed=0)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="`training` must be a Training, got SGD"):
        SimuDy(training=SGD(lr=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loss", "classes"), [(Logistic(), 2), (SquaredError(), 2), (SquaredError(values=(0.0, 0.5, 1.0)), 3)], ids=repr
)
def test_one_output_stands_for_two_classes_or_for_numbers(loss: KnownLoss, classes: int) -> None:
    data = some(classes)
    made = victim(lambda data: mlp(data.shape, 1, hidden=(24,)), data, replace(EASY, loss=loss))
    release, attack = initial_and_final(made).release, SimuDy(candidates=classes, steps=2)
    assert attack.run(replace(release, num_classes=classes), seed=0).x.isfinite().all()
    with pytest.raises(BadInput, match=f"`num_classes` of the release must be .*{classes}, .* got 10"):
        attack.run(release, seed=0)
    with pytest.raises(BadInput, match=r"give Logistic\(\) or SquaredError\(\)"):
        attack.run(replace(release, training=EASY), seed=0)


class Numbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze()


class Apart:
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - labels).square().mean()


def test_an_output_without_a_dimension_of_its_own_is_one() -> None:
    made = victim(
        lambda data: nn.Sequential(*mlp(data.shape, 1, hidden=(24,)), Numbers()),
        some(3),
        replace(EASY, optimizer=SGD(lr=1e-4), loss=Apart()),
    )
    assert SimuDy(candidates=3, steps=2).run(initial_and_final(made).release, seed=0).x.isfinite().all()


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(24), nn.BatchNorm1d(24, track_running_stats=False)], ids=repr)
def test_statistics_of_a_batch_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), layer, nn.ReLU(), nn.Linear(24, 10))
    start = {name: p.detach().clone() for name, p in model.state_dict().items()}
    end = {name: p + 0.1 if p.is_floating_point() and "running" not in name else p for name, p in start.items()}
    release = replace(shown(), model=model, initial=start, final=end)
    with pytest.raises(BadInput, match="a BatchNorm in training mode"):
        SimuDy(candidates=3, steps=2).run(release, seed=0)


def test_statistics_that_moved_are_refused_until_both_ends_have_the_same() -> None:
    release, attack = shown(NETS["resnet"]), SimuDy(candidates=3, steps=2)
    name = next(name for name in release.final if name.endswith("running_mean"))
    moved = replace(release, final=release.final | {name: release.final[name] + 0.1})
    with pytest.raises(BadInput, match=f"differ in `{name}`, .* To go on nevertheless, give both the same"):
        attack.run(moved, seed=0)
    assert attack.run(replace(moved, initial=moved.initial | {name: moved.final[name]}), seed=0).x.isfinite().all()


def test_layers_that_hide_what_they_did_are_refused() -> None:
    attack = SimuDy(candidates=3, steps=2)
    dropping = shown()
    dropping.model.append(nn.Dropout(0.5))
    with pytest.raises(BadInput, match="drops out at `4`"):
        attack.run(dropping, seed=0)
    dropping.model.eval()
    assert attack.run(dropping, seed=0).x.isfinite().all()
    release = shown(NETS["resnet"])
    release.model.train()
    with pytest.raises(BadInput, match="a BatchNorm in training mode"):
        attack.run(release, seed=0)


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


@pytest.mark.parametrize("training", [EASY, replace(EASY, stages=((3, 0.1),))], ids=["one rate", "two rates"])
def test_the_mean_gradient_follows_from_how_far_the_weights_went(training: Training) -> None:
    made = victim(NETS["mlp with relu"], some(3), training)
    passed = training.trajectory(made.model, made.initial, made.private)
    rates = [0.1 if epoch < 3 or not training.stages else 0.01 for epoch in range(6)]
    gradients = [training.gradient(made.model, weights, made.private.x, made.private.y) for weights in passed]
    total = sum(
        rate * torch.cat([g.flatten() for g in each.values()]) for rate, each in zip(rates, gradients, strict=True)
    )
    told = mean_gradient(initial_and_final(made).release, training, records=3)
    assert told == pytest.approx(float(torch.as_tensor(total).norm()) / sum(rates), rel=1e-6)


def test_a_search_that_diverges_is_told() -> None:
    x = nn.Parameter(torch.zeros(3))
    with pytest.raises(Diverged, match="the search diverged by its step 5: lower the rate"):
        search_in_place(lambda x: (0.0015 - x).sqrt().sum(), x, optimizer=Adam(), steps=5, label="")


def test_what_no_rate_mends_is_not_blamed_on_the_rate() -> None:
    def search(objective: Callable[[Tensor], Tensor]) -> None:
        search_in_place(objective, nn.Parameter(torch.zeros(3)), optimizer=Adam(), steps=1, label="")

    with pytest.raises(Diverged, match="the objective is not finite where the search begins, whatever the rate"):
        search(lambda x: (x - 2).sqrt().sum())
    with pytest.raises(Diverged, match="the slope of the objective is not finite where the search begins"):
        search(lambda x: (x * x).sqrt().sum())


def test_octaves_move_the_coarse_parts_of_images() -> None:
    """Where a slope is mostly noise from pixel to pixel, the mean of many pixels is what can be told."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 1, 16, 16, generator=generator)
    ramp = torch.linspace(0, 1, 16).expand(2, 1, 16, 16)

    def rough(x: Tensor) -> Tensor:
        return (x - ramp).square().sum() + 0.03 * (60 * x + 20 * noise).sin().sum()

    off = []
    for octaves in (0, 3):
        x = nn.Parameter(torch.full((2, 1, 16, 16), 0.5))
        search_in_place(rough, x, optimizer=Adam(lr=0.02), steps=40, label="", octaves=octaves)
        found = x.detach()
        assert 0 <= float(found.min()) <= float(found.max()) <= 1
        off.append(float(nn.functional.avg_pool2d(found - ramp, 4).square().mean()))
    assert off[1] < 0.5 * off[0]


def test_octaves_end_at_one_pixel_and_tables_have_none() -> None:
    assert [tuple(part.shape) for part in coarser(torch.zeros(3, 1, 8, 4), 9)] == [(3, 1, 4, 2), (3, 1, 2, 1)]
    assert coarser(torch.zeros(3, 8), 2) == []


def test_images_can_be_standardised_by_the_model() -> None:
    data = some(3)
    model = nn.Sequential(Standardise(1), *mlp(data.shape, 10, hidden=(8,), activation=nn.ReLU))
    params = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    params |= {"0.mean": params["0.mean"] + 0.3, "0.spread": params["0.spread"] * 0.2}
    written = EASY.gradient_of(model)(params, data.x, data.y)
    torch.testing.assert_close(written, EASY.gradient(model, params, data.x, data.y))
