import dataclasses
import math
from typing import final

import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn.functional import cross_entropy

from remanence import Adam, Data, Reconstruction, Training, Victim
from remanence.attacks import L2, Cosine, GradientMatching, Search, TotalVariation, with_search
from remanence.data import Split
from remanence.models import initial_params, mlp
from remanence.releases import Gradient, KnowsGradient, gradient_at_initial
from remanence.search.priors import total_variation


def release_of(batch: Data, fixed: Data, hidden: int = 64) -> Gradient:
    model = mlp(batch.shape, batch.num_classes, hidden=(hidden,))
    initial = initial_params(model, seed=0)
    made = Victim(model=model, training=Training(), initial=initial, final=initial, fixed=fixed, private=batch)
    return gradient_at_initial(made).release


@pytest.mark.slow
@pytest.mark.parametrize("distance", [Cosine(), L2()], ids=repr)
def test_finds_the_images_and_labels_of_a_batch(parts: Split, distance: Cosine | L2) -> None:
    batch = parts.private.take(slice(0, 4))
    attack = GradientMatching(distance=distance, prior=None, search=Search(optimizer=Adam(lr=0.1), steps=300))
    found = attack.run(release_of(batch, parts.fixed), seed=0)
    assert found.y.tolist() == sorted(batch.y.tolist())
    error = (torch.cdist(batch.x.flatten(1), found.x.flatten(1)) ** 2 / 64).min(dim=1).values
    # the images the attack never saw differ from one another by 0.05 and more
    assert error.max() < 0.01


@pytest.mark.slow
def test_works_on_table_rows(parts: Split) -> None:
    batch = Data(x=parts.private.x[:2].flatten(1), y=parts.private.y[:2], num_classes=10)
    fixed = Data(x=parts.fixed.x.flatten(1), y=parts.fixed.y, num_classes=10)
    found = with_search(GradientMatching(), steps=200, restarts=1).run(release_of(batch, fixed), seed=0)
    assert (torch.cdist(batch.x, found.x) ** 2 / 64).min(dim=1).values.max() < 0.01


def test_given_labels_are_used(parts: Split) -> None:
    batch = parts.private.take(slice(0, 3))
    release = dataclasses.replace(release_of(batch, parts.fixed), labels=batch.y, batch_size=None)
    found = with_search(GradientMatching(), steps=5).run(release, seed=0)
    assert torch.equal(found.y, batch.y)


def test_says_what_it_lacks(parts: Split) -> None:
    release = release_of(parts.private.take(slice(0, 2)), parts.fixed)
    with refused("not-enough-knowledge", "batch_size"):
        with_search(GradientMatching(), steps=5).run(dataclasses.replace(release, batch_size=None), seed=0)
    with torch.device("meta"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    without_bias = {"1.weight": torch.rand(10, 64)}
    with refused("not-enough-knowledge", "labels"):
        with_search(GradientMatching(), steps=5).run(
            dataclasses.replace(release, model=model, at=without_bias, gradient=without_bias), seed=0
        )


def test_the_order_of_the_names_does_not_matter(parts: Split) -> None:
    release = release_of(parts.private.take(slice(0, 2)), parts.fixed)
    turned = dataclasses.replace(release, gradient=dict(reversed(release.gradient.items())))
    attack = with_search(GradientMatching(), steps=10)
    assert torch.equal(attack.run(release, seed=0).x, attack.run(turned, seed=0).x)


def test_the_objective_of_the_best_restart_is_what_autograd_says(parts: Split) -> None:
    release = release_of(parts.private.take(slice(0, 3)), parts.fixed)
    found = with_search(GradientMatching(prior=TotalVariation(weight=0.01)), steps=20, restarts=4).run(release, seed=0)
    real = mlp(parts.fixed.shape, 10, hidden=(64,)).to_empty(device="cpu")
    real.load_state_dict(release.at)
    cross_entropy(real(found.x), found.y).backward()
    ours = torch.cat([p.grad.flatten() for p in real.parameters() if p.grad is not None])
    sent = torch.cat([release.gradient[name].flatten() for name, _ in real.named_parameters()])
    cosine = (ours @ sent) / (ours.norm() * sent.norm())
    rough = (found.x[..., 1:] - found.x[..., :-1]).abs().mean() + (found.x[:, :, 1:] - found.x[:, :, :-1]).abs().mean()
    assert found.objective == pytest.approx(float(1 - cosine + 0.01 * rough), abs=1e-5)


def test_total_variation_is_the_mean_absolute_difference() -> None:
    x = torch.tensor([[0.0, 1.0], [0.5, 0.5]])[None, None]
    assert float(total_variation(x)) == pytest.approx((1 + 0) / 2 + (0.5 + 0.5) / 2)
    assert float(total_variation(torch.rand(3, 5))) == 0


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Diverged:
    """An attack whose estimate is no number."""

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        x = torch.full((release.batch_size or 1, *release.shape), torch.nan)
        return Reconstruction(x=x, y=torch.arange(len(x)))


def test_a_restart_that_diverged_is_not_the_best(parts: Split) -> None:
    attack = with_search(GradientMatching(start=Diverged()), steps=2, restarts=2)
    with pytest.warns(RuntimeWarning, match="1 of 2 restarts"):
        found = attack.run(release_of(parts.private.take(slice(0, 2)), parts.fixed), seed=0)
    assert found.x.isfinite().all()
    assert math.isfinite(found.objective)


def test_a_search_that_would_be_none_is_refused() -> None:
    for wrong in ({"steps": 0}, {"restarts": 0}, {"scales": -1}, {"halvings": -1}):
        with refused("out-of-range", next(iter(wrong))):
            with_search(GradientMatching(), **wrong)
    with refused("out-of-range", "label_rounds"):
        GradientMatching(label_rounds=-1)
    for weight in (-1.0, math.nan):
        with refused("out-of-range", "weight"):
            TotalVariation(weight=weight)


@pytest.mark.slow
def test_the_published_method_finds_a_record(parts: Split) -> None:
    batch = parts.private.take(slice(0, 1))
    attack = dataclasses.replace(with_search(GradientMatching.paper(), steps=300), prior=None)
    found = attack.run(release_of(batch, parts.fixed), seed=0)
    assert (found.x - batch.x).square().mean() < 0.01
