"""Training records from the weights before and after training, by linear theories of it: SimuDy's baselines.

Loo, Hasani, Lechner, Rus, "Dataset Distillation Fixes Dataset Reconstruction Attacks" (2023), take the update of the
weights for a sum of gradients at the initial and at the final weights; Buzaglo et al. 2023 for one at the final ones.
Both as Tian et al. (ICLR 2025) compare them: gradients of the loss, multipliers of either sign, any network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence.bounds import sample_about_centre
from remanence.engine import updated_names
from remanence.errors import check_min
from remanence.models import apply
from remanence.releases import KnowsTraining, require
from remanence.releases.checks import check_endpoints
from remanence.search import (
    Cosine,
    CosineAnnealing,
    Distance,
    Prior,
    Search,
    TotalVariation,
    Variable,
    Variables,
    balanced,
    checkpoint_path,
    minimise,
)
from remanence.training import Adam, Loss
from remanence.types import Params, Reconstruction, float_like


@final
@dataclass(frozen=True, kw_only=True)
class Linearised:
    """Candidates are optimised together with a multiplier of each at each of the two weights, until the gradients times
    the multipliers sum up to the update."""

    candidates: int = 200  # Tian et al.: twice as many as records
    initial_gradients: bool = True  # False: gradients at the final weights alone
    distance: Distance = Cosine()  # of the update from the sum of gradients
    prior: Prior | None = TotalVariation(weight=0.005)  # added to the distance: how images look
    search: Search = Search(optimizer=Adam(lr=0.01, beta1=0.8, beta2=0.9), steps=5000)
    init_std: float = 0.1  # of the initial candidates' pixels, around the middle

    def __post_init__(self) -> None:
        check_min(self, candidates=1, init_std=0)

    @classmethod
    def paper(cls, *, candidates: int = 200, initial_gradients: bool = True) -> "Linearised":
        """The settings of Tian et al.: 100,000 steps at a learning rate that falls and rises every 2,000 steps.

        In pixels in place of normalised ones. Theirs begins with squared distances, and takes another optimizer for the
        multipliers.
        """
        search = Search(
            optimizer=Adam(lr=6e-5, beta1=0.8, beta2=0.9), steps=100_000, schedule=CosineAnnealing(period=2000)
        )
        return cls(candidates=candidates, initial_gradients=initial_gradients, search=search)

    def run(self, release: KnowsTraining, *, seed: int) -> Reconstruction:
        require(release, KnowsTraining, by=type(self).__name__)
        check_endpoints(release)
        generator, like = torch.Generator().manual_seed(seed), float_like(release.final)
        shape, restarts = (self.candidates, *release.shape), self.search.restarts
        x = sample_about_centre(restarts, *shape, bounds=release.bounds, std=self.init_std, generator=generator)
        points = (release.final, release.initial) if self.initial_gradients else (release.final,)
        multipliers = torch.rand(restarts, len(points), self.candidates, generator=generator) - 0.5
        names = updated_names(release.model, release.initial, release.final)
        objective = _Explained(
            attack=self,
            release=release,
            names=names,
            points=points,
            target=torch.cat([(release.initial[name] - release.final[name]).flatten() for name in names]),
            labels=balanced(self.candidates, release.num_classes).to(like.device),
            initial={"x": x.to(like), "multipliers": multipliers.to(like)},
        )
        checkpoint = checkpoint_path(self.search.checkpoints, self, release, seed)
        found = minimise(objective, self.search, checkpoint=checkpoint, label="linearised training")
        best, index = found.best()
        return Reconstruction(x=best["x"], y=objective.labels, objective=float(found.value[index]))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Explained:
    """distance(update, sum of multiplied gradients) + prior, over candidates and multipliers."""

    attack: Linearised
    release: KnowsTraining
    names: Sequence[str]
    points: Sequence[Params]  # weights at which gradients are taken
    target: Tensor
    labels: Tensor
    initial: Variables
    capturable: bool = True

    def init(self) -> dict[str, Variable]:
        return {
            "x": Variable(init=self.initial["x"], bounds=self.release.bounds, multiscale=True),
            "multipliers": Variable(init=self.initial["multipliers"]),
        }

    def set_progress(self, progress: float) -> None:
        pass

    def select(self, restarts: Tensor) -> "_Explained":
        return self

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        found = [self._one(x, multipliers) for x, multipliers in zip(v["x"], v["multipliers"], strict=True)]
        value, grad_x, grad_multipliers = (torch.stack(parts) for parts in zip(*found, strict=True))
        return value, {"x": grad_x, "multipliers": grad_multipliers}

    @torch.enable_grad()
    def _one(self, x: Tensor, multipliers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, multipliers = x.detach().requires_grad_(), multipliers.detach().requires_grad_()
        model, loss = self.release.model, self.release.training.loss
        explained = weighted_gradients(model, loss, self.names, self.points, multipliers, x, self.labels)
        value = self.attack.distance(self.target, explained)
        value = value if self.attack.prior is None else value + self.attack.prior(x)
        grad_x, grad_multipliers = torch.autograd.grad(value, (x, multipliers))
        return value.detach(), grad_x, grad_multipliers


def weighted_gradients(
    model: nn.Module,
    loss: Loss,
    names: Sequence[str],
    points: Sequence[Params],
    multipliers: Tensor,
    x: Tensor,
    labels: Tensor,
) -> Tensor:
    """The flat sum over records and weights in `points` of the loss's gradient times `multipliers` (points, n)."""

    def weighted(trained: Params, point: Params, factors: Tensor) -> Tensor:
        logits = apply(model, point | trained, x)
        return (factors * vmap(lambda z, y: loss(z[None], y[None]))(logits, labels)).sum()

    gradients = [
        grad(weighted)({name: point[name] for name in names}, point, factors)
        for point, factors in zip(points, multipliers, strict=True)
    ]
    return torch.stack([torch.cat([each[name].flatten() for name in names]) for each in gradients]).sum(0)
