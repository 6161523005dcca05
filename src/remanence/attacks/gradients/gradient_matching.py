"""Gradient matching: find the batch whose gradient is the one that was sent.

Zhu, Liu, Han, "Deep Leakage from Gradients" (NeurIPS 2019), with the cosine distance and total-variation prior of
Geiping et al., "Inverting Gradients" (NeurIPS 2020), and labels read off the last layer's bias gradient as in Zhao,
Mopuri, Bilen, "iDLG" (2020).
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from remanence.attacks.base import Attack
from remanence.attacks.gradients.features import Features, reconstruct_features
from remanence.attacks.gradients.labels import infer_labels
from remanence.bounds import sample
from remanence.errors import BadInput, NotEnoughKnowledge, check_min
from remanence.releases import KnowsUpdate, require
from remanence.search import (
    L2,
    LBFGS,
    Adam,
    Cosine,
    Distance,
    MultiStep,
    Prior,
    Search,
    TotalVariation,
    Variable,
    Variables,
    checkpoint_path,
    minimise,
)
from remanence.seeds import derive_seed
from remanence.types import Params, Reconstruction, float_like

_NOISE = 256  # random records with which labels are first inferred


@final
@dataclass(frozen=True, kw_only=True)
class GradientMatching:
    """Candidates in the records' box are optimised until the update that they would cause is the one that was sent.

    A client that took several steps is simulated. The batch's labels are inferred where the release does not show them.
    """

    distance: Distance = Cosine()  # of the update that candidates cause from the one that was sent
    prior: Prior | None = TotalVariation(weight=1e-3)  # added to the distance: how images look
    search: Search = Search(optimizer=Adam(lr=0.1), steps=1000, restarts=2)
    statistics_weight: float = 1.0  # of the distance of BatchNorm's running statistics, where the client sent them
    label_rounds: int = 2  # not in the papers: short searches that refine inferred labels, each a fifth of the steps
    start: Attack[Any] | None = None  # whose estimate the first restart is initialised with; others are random
    features: Attack[Any] | None = None  # on the fully connected layers of a CNN: what it finds, candidates match too
    features_weight: float = 0.1  # of the distance of features

    def __post_init__(self) -> None:
        check_min(self, label_rounds=0, statistics_weight=0, features_weight=0)
        if self.start is not None and self.features is not None:
            message = "`features` and `start` order the records each in its own way: give one of them"
            raise BadInput(message, code="conflict", argument="features")

    @classmethod
    def paper(cls) -> "GradientMatching":
        """Geiping et al. 2020: Adam on the sign of the gradient, and a learning rate that falls in three steps.

        Theirs begins with Gaussian pixels, in normalised units; ours with uniform ones in [0, 1].
        """
        search = Search(optimizer=Adam(lr=0.1), steps=4800, schedule=MultiStep(), signed=True)
        return cls(prior=TotalVariation(weight=0.1), search=search, label_rounds=0)

    def run(self, release: KnowsUpdate, *, seed: int) -> Reconstruction:
        require(release, KnowsUpdate, by=type(self).__name__)
        generator, restarts = torch.Generator().manual_seed(seed), self.search.restarts
        features: Features | None = None
        checkpoint = partial(checkpoint_path, self.search.checkpoints, self, release, seed)
        if self.start is not None:
            estimate = self.start.run(release, seed=derive_seed(seed, "start"))
            labels = _labels_with_estimate(release, estimate, generator).expand(restarts, -1)
        elif (features := self._features(release, derive_seed(seed, "features"))) is not None:
            labels = _labels_with_estimate(release, features.estimate, generator).expand(restarts, -1)
        elif release.labels is not None:
            labels = release.labels.expand(restarts, -1)
        else:
            labels = _inferred(release, _noise(release, restarts, _NOISE, generator=generator))
            short = replace(self.search, steps=max(1, self.search.steps // 5))
            for k in range(self.label_rounds):
                objective = self._objective(release, _random(release, labels, generator), labels, None)
                found = minimise(objective, short, checkpoint=checkpoint("labels", k), label="labels of the batch")
                labels = labels.clone()
                labels[found.restarts] = _inferred(release, found.variables["x"])
        initial = _random(release, labels, generator)
        if self.start is not None:
            initial[0, : len(estimate.x)] = estimate.x
        objective = self._objective(release, initial, labels, features)
        found = minimise(objective, self.search, checkpoint=checkpoint(), label="gradient matching")
        best, index = found.best()
        return Reconstruction(x=best["x"], y=labels[found.restarts][index], objective=float(found.value[index]))

    def _features(self, release: KnowsUpdate, seed: int) -> Features | None:
        if self.features is None:
            return None
        labels = release.labels
        if labels is None:
            noise = _noise(release, _NOISE, generator=torch.Generator().manual_seed(seed))
            labels = infer_labels(release, noise)
        return reconstruct_features(release, self.features, labels, seed=seed)

    def _objective(
        self, release: KnowsUpdate, initial: Tensor, labels: Tensor, features: Features | None
    ) -> "_Matching":
        sent = release.sent
        names = [name for name, _ in release.model.named_parameters() if name in sent]  # others are frozen
        return _Matching(
            attack=self,
            release=release,
            names=names,
            target=_flat(sent, names),
            initial=initial,
            labels=labels,
            features=features,
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Matching:
    """distance(sent, simulated) + prior, over candidates x (restarts, n, ...) with labels (restarts, n); and the
    distances of what else is known of them, statistics and features."""

    attack: GradientMatching
    release: KnowsUpdate
    names: list[str]
    target: Tensor
    initial: Tensor
    labels: Tensor
    features: Features | None
    capturable: bool = False  # a release may simulate steps that wait for the host

    def init(self) -> dict[str, Variable]:
        return {"x": Variable(init=self.initial, bounds=self.release.bounds, multiscale=True)}

    def set_progress(self, progress: float) -> None:
        pass

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        grad_x = grad_and_value(self._value)
        if not isinstance(self.attack.search.optimizer, LBFGS):
            grads, values = vmap(grad_x)(v["x"], self.labels)
        else:  # which evaluates restarts one by one
            pairs = [grad_x(x, labels) for x, labels in zip(v["x"], self.labels, strict=True)]
            grads, values = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        return values, {"x": grads}

    def select(self, restarts: Tensor) -> "_Matching":
        labels = self.labels[restarts.to(self.labels.device)]
        return replace(self, initial=self.initial[restarts], labels=labels)

    def _value(self, x: Tensor, labels: Tensor) -> Tensor:
        simulated, statistics = self.release.simulate_with_statistics(x, labels)
        value = self.attack.distance(self.target, _flat(simulated, self.names))
        if self.release.statistics:
            value = value + self.attack.statistics_weight * _of_statistics(self.release, statistics)
        if self.features is not None:
            value = value + self.attack.features_weight * self.features.distance(x)
        return value if self.attack.prior is None else value + self.attack.prior(x)


def _of_statistics(release: KnowsUpdate, ours: Params) -> Tensor:
    """The distance of running statistics from those that were sent, a mean over layers and kinds. Only their changes
    count: a batch's own statistics, times a factor that is the same for both."""
    assert release.statistics is not None
    at, sent = release.at, release.statistics
    return torch.stack([L2()(sent[name] - at[name], ours[name] - at[name]) for name in sent]).mean()


def _inferred(release: KnowsUpdate, x: Tensor) -> Tensor:
    """Labels (restarts, batch) by records (restarts, n, ...) that may look like those of the batch."""
    return torch.stack([infer_labels(release, each) for each in x])


def _random(release: KnowsUpdate, labels: Tensor, generator: torch.Generator) -> Tensor:
    like = float_like(release.sent)
    return _noise(release, *labels.shape, generator=generator).to(like)


def _noise(release: KnowsUpdate, *count: int, generator: torch.Generator) -> Tensor:
    return sample(*count, *release.shape, bounds=release.bounds, generator=generator)


def _labels_with_estimate(release: KnowsUpdate, estimate: Reconstruction, generator: torch.Generator) -> Tensor:
    """Labels (batch,) of all records, those of the estimate first, which may hold fewer."""
    if estimate.y is None:
        message = "`start` must be an attack that reconstructs labels: use `FirstLayer()` or `Stein()`"
        raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="start")
    if release.batch_size in (None, len(estimate.x)) and release.labels is None:
        return estimate.y
    noise = _noise(release, _NOISE, generator=generator)
    of_batch = infer_labels(release, noise) if release.labels is None else release.labels
    labels = estimate.y.tolist()
    unused = Counter(of_batch.tolist())
    unused.subtract(labels)
    others = (+unused).elements()
    if release.labels is not None:
        for i, label in enumerate(labels):
            if unused[label] < 0:  # a label that the batch does not have, or not as often
                unused[label] += 1
                labels[i] = next(others)
    return estimate.y.new_tensor([*labels, *islice(others, len(of_batch) - len(labels))])


def _flat(params: Params, names: list[str]) -> Tensor:
    return torch.cat([params[name].flatten() for name in names])
