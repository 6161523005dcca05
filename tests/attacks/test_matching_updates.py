"""Gradient matching by L-BFGS, from an estimate, through local steps, and of a ResNet."""

import dataclasses

import pytest
import torch
from gradients import honest, release_of, sent_to, some_digits
from refusals import refused
from simulating import some
from torch import Tensor, nn

from remanence import SGD, Adam, Data, Reconstruction, Training, Victim
from remanence.attacks import L2, LBFGS, Cosine, FirstLayer, GradientMatching, Search, Stein, with_search
from remanence.models import initial_params, mlp, resnet, resnet18, torch_params
from remanence.releases import Gradient, LocalUpdate, gradient_at_initial, local_update
from remanence.releases.releases import BatchNormMode
from remanence.training.losses import CrossEntropy
from remanence_recipes.wang2023.setting import SquareAndCube

MODES: tuple[BatchNormMode, ...] = ("frozen", "training")
MATCHING = GradientMatching(distance=L2(), prior=None, search=Search(optimizer=LBFGS()))


def assert_found(found: Reconstruction, batch: Data, *, within: float) -> None:
    assert sorted(found.y.tolist()) == sorted(batch.y.tolist())
    distances = torch.cdist(batch.x.flatten(1).double(), found.x.flatten(1).double())
    assert distances.min(dim=1).values.max() < within


def sent_after(batch: Data, steps: int, *, momentum: float = 0.0) -> LocalUpdate:
    """In float64."""
    batch = batch.to("cpu", torch.float64)
    model = mlp(batch.shape, 10, hidden=(64,))
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    training = Training(optimizer=SGD(lr=0.1, momentum=momentum), epochs=steps)
    made = Victim(model=model, training=training, initial=initial, final=initial, fixed=batch, private=batch)
    return local_update(made).release


@pytest.mark.slow
def test_lbfgs_finds_a_batch_to_many_digits(digits: Data) -> None:
    batch = some_digits(digits, 10, 2)
    found = with_search(MATCHING, steps=200).run(honest(batch, nn.ELU, hidden=(64,)), seed=0)
    assert_found(found, batch, within=1e-6)
    assert found.objective < 1e-15


@pytest.mark.slow
def test_an_estimate_is_sharpened(digits: Data) -> None:
    batch = some_digits(digits, 0, 4, classes=2)
    release = sent_to(batch, SquareAndCube)
    estimate = Stein(refine=False)
    rough = estimate.run(release, seed=0)
    found = with_search(dataclasses.replace(MATCHING, start=estimate), steps=60).run(release, seed=0)
    errors = [
        torch.cdist(batch.x.flatten(1).double(), x.flatten(1)).min(dim=1).values.max() for x in (rough.x, found.x)
    ]
    assert errors[1] < 0.5 * errors[0]


def test_where_the_start_finds_all_nothing_is_left_to_search(digits: Data) -> None:
    batch = some_digits(digits, 0, 8)
    release = honest(batch, nn.ReLU)
    found = with_search(dataclasses.replace(MATCHING, start=FirstLayer()), steps=3).run(release, seed=0)
    assert_found(found, batch, within=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("shown", [True, False])
def test_an_estimate_of_some_records_is_filled_up(digits: Data, shown: bool) -> None:
    batch = some_digits(digits, 0, 4)
    release = dataclasses.replace(honest(batch, nn.ELU, hidden=(64,)), labels=batch.y if shown else None)
    some = Reconstruction(x=batch.x[[2, 1]].double(), y=batch.y[[2, 1]])
    found = with_search(dataclasses.replace(MATCHING, start=Known(some)), steps=200).run(release, seed=0)
    assert_found(found, batch, within=1e-3)
    assert found.y[:2].tolist() == batch.y[[2, 1]].tolist()


def test_shown_labels_overrule_those_of_the_estimate(digits: Data) -> None:
    batch = some_digits(digits, 0, 3)  # labels 0, 1, 2
    release = dataclasses.replace(honest(batch, nn.ELU, hidden=(64,)), labels=batch.y)
    wrong = Reconstruction(x=batch.x.double(), y=torch.tensor([0, 1, 1]))
    found = with_search(dataclasses.replace(MATCHING, start=Known(wrong)), steps=1).run(release, seed=0)
    assert found.y.tolist() == [0, 2, 1]


@dataclasses.dataclass(frozen=True)
class Known:
    found: Reconstruction

    def run(self, release: object, *, seed: int) -> Reconstruction:
        return self.found


def test_what_the_start_refuses_is_refused(digits: Data) -> None:
    batch = some_digits(digits, 0, 2)
    with refused("not-enough-knowledge"):
        dataclasses.replace(MATCHING, start=Stein()).run(sent_after(batch, 2), seed=0)
    with refused("not-identifiable"):
        dataclasses.replace(MATCHING, start=FirstLayer(guesses=False)).run(honest(batch, nn.ELU), seed=0)
    unlabelled = Known(Reconstruction(x=batch.x.double()))
    with refused("not-enough-knowledge"):
        dataclasses.replace(MATCHING, start=unlabelled).run(honest(batch, nn.ELU), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_local_steps_are_simulated(digits: Data, momentum: float) -> None:
    batch = some_digits(digits, 10, 2)
    release = sent_after(batch, 3, momentum=momentum)
    assert_found(with_search(MATCHING, steps=100).run(release, seed=0), batch, within=1e-3)


@pytest.mark.slow
def test_a_resnet_with_frozen_batchnorm_gives_its_record(digits: Data) -> None:
    batch = some_digits(digits, 4, 1)
    model = resnet(batch.shape, 10, blocks=(1, 1), width=8, activation=nn.ELU)
    at = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    release = release_of(model, at, batch, loss=CrossEntropy())
    assert set(release.gradient) == {name for name, _ in model.named_parameters()} < set(at)
    found = with_search(MATCHING, steps=60).run(release, seed=0)
    # a digit that was not looked for is about three away
    assert_found(found, batch, within=0.3)


def client(batch: Data, model: nn.Module) -> Victim:
    """At weights as torch initialises them."""
    initial = {name: p.to(batch.x) for name, p in torch_params(model, seed=0).items()}
    none = batch.take(slice(0, 0))
    return Victim(model=model, training=Training(), initial=initial, final=initial, fixed=none, private=batch)


def distance(release: Gradient, x: Tensor, labels: Tensor) -> Tensor:
    ours = release.simulate(x, labels)
    return Cosine()(*(torch.cat([each[name].flatten() for name in ours]) for each in (release.sent, ours)))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("batch_norm", MODES)
def test_the_objective_of_a_resnet_is_zero_at_the_truth_and_has_the_gradient_of_differences(
    digits: Data, batch_norm: BatchNormMode, count: int
) -> None:
    batch = some_digits(digits, 4, count).to("cpu", torch.float64)
    batch = dataclasses.replace(batch, x=0.1 + 0.8 * batch.x)  # behind patches of zeros ReLU would be at its kink
    model = resnet(batch.shape, 10, blocks=(1, 1), width=4)
    release = gradient_at_initial(client(batch, model), batch_norm=batch_norm).release
    known = Known(Reconstruction(x=batch.x, y=batch.y))
    resting = GradientMatching(prior=None, start=known, search=Search(optimizer=Adam(lr=1e-12), steps=1, restarts=1))
    assert resting.run(release, seed=0).objective == pytest.approx(0, abs=1e-12)
    generator = torch.Generator().manual_seed(0)
    x = (batch.x + 0.1 * torch.rand(batch.x.shape, generator=generator)).requires_grad_()
    (grad,) = torch.autograd.grad(distance(release, x, batch.y), x)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    with torch.no_grad():
        above, below = (distance(release, x + side * 1e-7 * direction, batch.y) for side in (1, -1))
    assert float((grad * direction).sum()) == pytest.approx(float(above - below) / 2e-7, rel=1e-3)


@pytest.mark.slow
def test_with_batchnorm_in_training_mode_images_that_look_alike_have_unlike_gradients_at_fresh_weights() -> None:
    batch = some(2, side=32)
    near = batch.x + 0.03 * torch.randn(batch.x.shape, generator=torch.Generator().manual_seed(0))
    release = client(batch, resnet18(batch.shape, 10, width=8))
    frozen, training = (
        float(distance(gradient_at_initial(release, batch_norm=mode).release, near, batch.y)) for mode in MODES
    )
    assert frozen < 0.02
    assert training > 0.3
