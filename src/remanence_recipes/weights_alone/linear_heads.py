"""Softmax regression on embeddings: what its weights alone can hold, and the one record that is unknown.

At the optimum  n wd W = A' X  with one row of A for each of the n records and one column for each class. The weights
are as many combinations of records as there are classes, less one as the columns sum to zero, and there is no hidden
layer that would tell the records of a class apart: with more records than that, others explain the weights as well,
and Stationarity refuses such a model. What is left is near the means of the classes; of two records the mean may be
recognised, of twenty hardly. Where all records but one are known, one row of A and of X remains, and `GLM` reconstructs
it.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from remanence.attacks import GLM
from remanence.engine import train
from remanence.experiments import Measure, Outcome, Scale, attack_cases
from remanence.experiments.checks import fewer_weights_than_values
from remanence.metrics import COSINE, identity
from remanence.metrics.statistics import bootstrap_mean
from remanence.releases import Victim, all_but_one, check_fit, train_victims
from remanence.seeds import derive_seed
from remanence.training import SGD, Training
from remanence.types import Data
from remanence_recipes.records import first_of_each_class
from remanence_recipes.weights_alone.backbones import Setting
from remanence_recipes.weights_alone.evaluation import accuracy_of, found
from remanence_recipes.weights_alone.heads import FROM_TRUTH, build, compare_images, score_embeddings

_ROUNDING = 1e-6  # of the largest singular value, below which others are none


@final
@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """Softmax regression on embeddings, and how many records are unknown, each to a head of its own."""

    scale: Scale
    per_class: int
    unknown: int
    epochs: int = 1500
    decay: float = 0.01

    def training(self) -> Training:
        return Training(optimizer=SGD(lr=0.1, momentum=0.95), epochs=self.epochs, weight_decay=self.decay)


def attacked_weights(head: LinearHead, setting: Setting, seed: int) -> Outcome:
    """What the weights of one linear head show of its records: directions of classes."""
    _, embeddings = setting.private(head.per_class)
    data = embeddings.to(embeddings.x.device, torch.float64)
    model, initial = build(setting, data, (), derive_seed(seed, "linear head"))
    training, none = head.training(), data.take(slice(0, 0))
    trained = train(training, model, initial, data)
    victim = Victim(model=model, training=training, initial=initial, final=trained, fixed=none, private=data)
    check_fit(victim)
    weight = trained["model.1.weight"]
    scores = score_embeddings(class_candidates(weight, setting).to(embeddings.x), embeddings, setting, seed)
    counted = combinations(weight, len(data), layer="weights")
    return replace(
        counted,
        measures=(
            *counted.measures,
            _class_means(weight, data, setting, seed),
            found("share of embeddings found", scores),
            accuracy_of(victim, setting.held_out.to(data.x.device, torch.float64)),
        ),
    )


def combinations(weight: Tensor, records: int, *, layer: str) -> Outcome:
    """How many combinations of so many records a linear layer is, and how many numbers for each that is unknown."""
    values, (classes, width) = torch.linalg.svdvals(weight.double()), weight.shape
    rank = int((values > _ROUNDING * values[0]).sum())
    caveat = fewer_weights_than_values(rank, records)
    return Outcome(
        measures=(
            Measure(
                name=f"rank of the {layer}",
                value=float(rank),
                meaning=f"of its {classes} rows, in double precision; {records} records would need as much",
            ),
            Measure(
                name="weights for each unknown value",
                value=classes * (width + 1) / (records * width),
                meaning="the numbers in the layer over those in its records; below one records are not determined",
            ),
        ),
        caveats=() if caveat is None else (caveat,),
    )


def class_candidates(weight: Tensor, setting: Setting) -> Tensor:
    """One candidate of each class: the mean public embedding and a step along the row of the class, as long as public
    embeddings of the class are away from the mean."""
    known = setting.known.x.to(weight)
    mean = known.mean(0)
    distances = (known - mean).norm(dim=1)
    steps = torch.stack([distances[setting.known.y == label].mean() for label in range(len(weight))])
    return (mean + steps[:, None] * normalize(weight - weight.mean(0), dim=1)).clamp_min(0)


def _class_means(weight: Tensor, data: Data, setting: Setting, seed: int) -> Measure:
    """How alike the rows are to the means of the private records of their classes, and of as many held-out ones."""
    per_class = len(data) // len(weight)
    others = first_of_each_class(setting.held_out.to(data.x.device, data.x.dtype), per_class)[0]

    def cosines(records: Data) -> Tensor:
        means = torch.stack([records.x[records.y == label].mean(0) for label in range(len(weight))])
        return cosine_similarity(weight - weight.mean(0), means - means.mean(0), dim=1)

    return Measure.from_interval(
        "cosine of rows with class means",
        bootstrap_mean(cosines(data), seed=derive_seed(seed, "class means")),
        chance=float(cosines(others).mean()),
        meaning="mean over classes, each less the mean of all; chance: as many held-out records in their place",
    )


def attacked_unknown(head: LinearHead, setting: Setting, seed: int) -> Outcome:
    """Linear heads, each with one record that the attacker does not know: its embedding by `GLM`, then its image."""
    images, embeddings = setting.private(head.per_class)
    index = torch.randperm(len(images), generator=torch.Generator().manual_seed(derive_seed(seed, "unknown")))
    data = embeddings.to(embeddings.x.device, torch.float64)
    unknown, fixed = index[: head.unknown], index[head.unknown :]
    model, initial = build(setting, data, (), derive_seed(seed, "linear head"))
    victims = train_victims(model, head.training(), initial, data.take(fixed), data.take(unknown), seed=seed)
    finding = attack_cases(
        [all_but_one(victim) for victim in victims],
        GLM(),
        public=setting.known.to(data.x.device, data.x.dtype),
        unrelated=setting.held_out.to(data.x.device, data.x.dtype),
        matching=identity,
        metrics=(COSINE,),
        seed=seed,
    )
    scores, rows = finding.scores, finding.reconstruction.x.to(embeddings.x)
    shown = compare_images(setting, images.take(unknown), {"from GLM": rows, FROM_TRUTH: embeddings.x[unknown]}, seed)
    measures = (
        found("share of embeddings found", scores),
        Measure.from_interval(
            "mean cosine of embeddings",
            scores.means[COSINE.name],
            chance=float(scores.nulls["unrelated"].values[COSINE.name].mean()),
            meaning="of the records with their reconstructions; chance: embeddings of as many unrelated images",
        ),
        Measure(
            name="objective of GLM",
            value=finding.reconstruction.objective,
            meaning="mean over the heads: near 0 where training has converged and the record is right",
        ),
    )
    return Outcome(measures=(*measures, *shown.measures), figures=shown.figures, pictures=shown.pictures)
