"""Labels that are moved with the records: shares of classes in their place."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import one_hot

from remanence import SGD, Adam, Data, Logistic, Training, Victim, load, train_victim
from remanence.attacks import L2, SimuDy
from remanence.attacks._convolved import Convolved
from remanence.attacks._gates import Gates
from remanence.attacks._simulation import Coordinates, Simulation, Whole
from remanence.attacks._spanned import Spanned
from remanence.models import initial_params, mlp, resnet
from remanence.releases import fine_tuned

TRAINING = Training(optimizer=SGD(lr=0.05), epochs=3, batch_size=4, shuffled=False, weight_decay=0.01)
NETS: dict[str, Callable[[Data], nn.Module]] = {
    "mlp": lambda data: mlp(data.shape, 10, hidden=(24, 14), activation=nn.ReLU),
    "resnet": lambda data: resnet(data.shape, 10, blocks=(1, 1), width=4).eval(),
}
UNEVEN = (0, 0, 0, 3, 3, 3, 5, 5, 5, 8)


def victim(net: str, training: Training = TRAINING) -> Victim:
    digits = load("digits")
    place = [int((digits.y == label).nonzero()[UNEVEN[:i].count(label), 0]) for i, label in enumerate(UNEVEN)]
    data = digits.take(place).to("cpu", torch.float64)
    model = NETS[net](data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    return train_victim(model, training, initial, data.take([]), data, seed=0)


def simulations(made: Victim) -> dict[str, Simulation]:
    """In the coordinates that the net has, whole and in segments; those of gates in convolutional nets take the slope
    of ReLU for their own too, and are compared with autograd's elsewhere."""
    parts = made.model, made.training, made.initial, made.final, made.private.y, L2()
    names = "model", "training", "initial", "final", "y", "distance"
    found: dict[str, Coordinates] = {"whole": Whole(**dict(zip(names, parts, strict=True)))}
    if spanned := Spanned.of(*parts):
        whitened = spanned.whitened(0.5, shrunk=1.0)
        assert whitened is not None
        found |= {
            "spanned": spanned,
            "gates": replace(whitened, gates=Gates.of((2.0, 40.0), torch.tensor(1.0).double())),
        }
    else:
        convolved = Convolved.of(*parts, shape=made.private.shape)
        assert convolved is not None
        found |= {"convolved": convolved, "in parts": replace(convolved, kept=False, at_once=3)}
    batches = tuple(made.training.batches(len(UNEVEN), 0))
    return {
        f"{name}, {segment} to a graph": Simulation(
            training=made.training, coordinates=each, batches=batches, segment=segment
        )
        for name, each in found.items()
        for segment in (len(batches), 2)
    }


@pytest.mark.parametrize("net", NETS)
def test_the_slope_by_shares_is_that_of_differences(net: str) -> None:
    made = victim(net)
    generator = torch.Generator().manual_seed(1)
    x, leanings, along = (
        torch.rand(shape, generator=generator, dtype=torch.float64)
        for shape in (made.private.x.shape, (len(UNEVEN), 10), (len(UNEVEN), 10))
    )
    slopes = dict[str, Tensor]()
    for name, simulation in simulations(made).items():
        at = leanings.clone().requires_grad_()
        (slopes[name],) = torch.autograd.grad(simulation(x, at.softmax(-1)), at)
        more, less = (float(simulation(x, (leanings + step * along).softmax(-1))) for step in (1e-6, -1e-6))
        assert float((slopes[name] * along).sum()) == pytest.approx((more - less) / 2e-6, rel=1e-4), name
    for name, each in slopes.items():
        if "gates" not in name:
            torch.testing.assert_close(each, next(iter(slopes.values())), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("net", NETS)
def test_all_of_one_class_is_a_label(net: str) -> None:
    made = victim(net)
    x = torch.rand(made.private.x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for name, simulation in simulations(made).items():
        sure = simulation(x, one_hot(made.private.y, 10).double())
        assert float(sure) == pytest.approx(float(simulation(x)), rel=1e-9), name


def test_whether_it_diverges_is_asked_of_the_shares_that_a_search_begins_with() -> None:
    """A net that puts out zeros is at rest where all classes are alike, and at no rate moves from there."""
    made = victim("mlp", Training(optimizer=SGD(lr=1e6), epochs=3))
    last = {name: torch.zeros_like(made.initial[name]) for name in list(made.initial)[-2:]}
    silent = replace(made, initial=made.initial | last, final={name: p + 1 for name, p in made.initial.items()})
    simulation = simulations(silent)["whole, 3 to a graph"]
    assert simulation.diverges_at(made.private.x) is not None
    assert simulation.diverges_at(made.private.x, torch.full((len(UNEVEN), 10), 0.1).double()) is None


def agreeing(labels: Tensor) -> int:
    return sum((Counter(labels.tolist()) & Counter(UNEVEN)).values())


def test_labels_that_are_not_balanced_are_found_with_the_records() -> None:
    made = victim("mlp", Training(optimizer=SGD(lr=0.1), epochs=10))
    search = SimuDy(
        candidates=len(UNEVEN),
        distance=L2(),
        steps=150,
        whitening=0.5,
        sharpness=(2.0, 40.0),
        optimizer=Adam(lr=0.05, beta1=0.8, beta2=0.9),
    )
    release = fine_tuned(made).release
    even, soft = (replace(search, soft_labels=way).run(release, seed=0) for way in (False, True))
    assert even.y is not None
    assert soft.y is not None
    assert agreeing(soft.y) == len(UNEVEN) > agreeing(even.y)
    assert even.objective is not None
    assert soft.objective is not None
    assert soft.objective < 0.2 * even.objective
    slow = replace(search, steps=1, optimizer=Adam(lr=1e-3))
    leaning = replace(slow, labels=UNEVEN, soft_labels=True).run(release, seed=0)
    assert leaning.y is not None
    assert leaning.y.tolist() == list(UNEVEN)
    on = replace(search, steps=1, start=replace(search, soft_labels=True)).run(release, seed=0)
    assert on.y is not None
    assert torch.equal(on.y, soft.y)


def test_shares_are_those_of_classes() -> None:
    release = fine_tuned(victim("mlp")).release
    two = replace(release.training, loss=Logistic())
    model = mlp(release.shape, 1, hidden=(24,), activation=nn.ReLU)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    final = {name: p + 0.1 for name, p in initial.items()}
    shown = replace(release, model=model, initial=initial, final=final, training=two, num_classes=2)
    with refused("unsupported-training"):
        SimuDy(candidates=2, soft_labels=True).run(shown, seed=0)
