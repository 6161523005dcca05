"""Heads that are trained on embeddings of private images, the attack on their weights, and what is measured of it:
embeddings against held-out ones, images against the nearest public image and against those from the true embeddings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks import Powers, Rounds, Search, Stationarity
from remanence.diagnostics.preflight import run_preflight
from remanence.engine import train
from remanence.experiments import Figure, Measure, Outcome, Scale
from remanence.metrics import COSINE, SSIM, Scores, evaluate
from remanence.models import mlp, normalized, normalized_params, torch_params
from remanence.releases import Victim, check_fit, weights_only
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, Training
from remanence.types import Data, Params, Reconstruction
from remanence_recipes.curves import figure_along
from remanence_recipes.weights_alone.backbones import Setting
from remanence_recipes.weights_alone.evaluation import ROW, accuracy_of, found

HIDDEN: dict[Scale, tuple[int, ...]] = {"smoke": (80, 80), "small": (300, 300), "full": (500, 500)}
ATTACK_LR, WHITENING = 0.006, 0.7  # of Stationarity; at 0.5 half as many of 50 embeddings by AlexNet are found
FROM_HEAD, FROM_TRUTH = "from the head", "from the true embeddings"


@final
@dataclass(frozen=True, kw_only=True)
class Head:
    """An MLP with biases everywhere on embeddings, how it is trained, and how long the attack on it searches."""

    scale: Scale
    per_class: int
    epochs: int
    decay: float
    steps: int
    centred: bool = True  # the head subtracts the mean of public embeddings
    lr: float = 0.1
    restarts: int = 4
    levels: int = 1
    keep_fractions: tuple[float, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.scale == "smoke" else torch.float32

    def training(self) -> Training:
        """Full batches of SGD with momentum and weight decay, at a learning rate that falls in two steps."""
        steps = tuple((self.epochs * tenths // 10, factor) for tenths, factor in ((6, 0.3), (8, 0.1)))
        optimizer = SGD(lr=self.lr, momentum=0.9)
        return Training(optimizer=optimizer, epochs=self.epochs, weight_decay=self.decay, lr_schedule=steps)

    def victim(self, setting: Setting, embeddings: Data, seed: int) -> Victim:
        """The head, trained on the embeddings."""
        data, training = embeddings.to(embeddings.x.device, self.dtype), self.training()
        model, initial = build(setting, data, HIDDEN[self.scale], derive_seed(seed, "head"), centred=self.centred)
        final_params = train(training, model, initial, data)
        none = data.take(slice(0, 0))
        victim = Victim(model=model, training=training, initial=initial, final=final_params, fixed=none, private=data)
        check_fit(victim)
        return victim

    def attack(self, setting: Setting) -> Stationarity:
        """Stationarity, with settings for embeddings."""
        return Stationarity(
            candidates=self.per_class * setting.known.num_classes,
            search=Search(
                optimizer=Adam(lr=ATTACK_LR, eps=1e-20),
                steps=self.steps,
                restarts=self.restarts,
                tf32=self.scale == "full",
            ),
            whitening=Powers(first=WHITENING),
            rounds=Rounds(levels=self.levels, keep_fractions=self.keep_fractions),
        )


def build(
    setting: Setting, data: Data, hidden: Sequence[int], seed: int, *, centred: bool = True
) -> tuple[nn.Module, Params]:
    """An MLP with ReLU on embeddings, less their public mean, which is released with it, and its initial weights."""
    inner = mlp(data.shape, data.num_classes, hidden=hidden, activation=nn.ReLU)
    model = normalized(inner, setting.known.x.mean(0) if centred else 0.0, 1.0)
    initial = normalized_params(model, torch_params(inner, seed=seed))
    return model, {name: p.to(data.x) for name, p in initial.items()}


def attacked_head(head: Head, setting: Setting, seed: int) -> Outcome:
    """Train a head, reconstruct embeddings from its weights alone, and images from these and from the true ones."""
    images, embeddings = setting.private(head.per_class)
    victim = head.victim(setting, embeddings, seed)
    reconstruction = head.attack(setting).run(weights_only(victim).release, seed=seed)
    scores = score_embeddings(reconstruction.x.to(embeddings.x), embeddings, setting, seed)
    preflight = run_preflight(victim)
    shown = compare_images(
        setting, images, {FROM_HEAD: reconstruction.x.to(embeddings.x), FROM_TRUTH: embeddings.x}, seed
    )
    of_backbone = () if setting.accuracy is None else (setting.accuracy,)
    return replace(
        shown,
        measures=(
            *_of_embeddings(scores),
            *shown.measures,
            accuracy_of(victim, setting.held_out.to(embeddings.x.device, head.dtype)),
            *of_backbone,
            Measure(
                name="unexplained at the truth",
                value=preflight.stationarity_residual,
                meaning="fraction of the squared weights that the true embeddings leave of what Stationarity assumes",
            ),
            Measure(
                name="unexplained off the ReLU boundary",
                value=preflight.first_layer_residual,
                meaning="the same in the first layer, without pairs of record and neuron on ReLU's boundary",
            ),
        ),
        caveats=tuple(caveat for caveat in preflight.caveats() if caveat.code != "truth-unexplained"),
        arrays={f"embeddings/{key}": x for key, x in scores.test.arrays().items()},
    )


def score_embeddings(candidates: Tensor, embeddings: Data, setting: Setting, seed: int) -> Scores:
    """Candidates against the embeddings of private images, ranked among those of held-out ones."""
    return evaluate(
        Reconstruction(x=candidates),
        embeddings,
        unrelated=setting.held_out,
        known=setting.known,
        metrics=(COSINE,),
        seed=seed,
    )


def _of_embeddings(scores: Scores) -> Iterator[Measure]:
    yield found("share of embeddings found", scores)
    yield Measure.from_interval(
        "mean cosine of embeddings",
        scores.means[COSINE.name],
        chance=float(scores.nulls["unrelated"].values[COSINE.name].mean()),
        meaning="of the records with their candidates; chance: embeddings of as many unrelated images",
    )
    yield Measure.from_interval(
        "embeddings closer than the nearest public one",
        scores.fraction_closer,
        chance=scores.chance_closer,
        meaning="fraction of candidates, by cosine; chance: held-out records in place of the private ones",
    )


def compare_images(setting: Setting, images: Data, embeddings: dict[str, Tensor], seed: int) -> Outcome:
    """Images from each of several sets of embeddings, scored by SSIM and, embedded again, by the cosine."""
    measures, pictures, indices = list[Measure](), dict[str, Tensor](), dict[str, Tensor]()
    held_out, known = setting.images.held_out, setting.images.known
    private = setting.backbone.embed(images.x)
    closer: dict[str, list[Measure]] = {}
    for name, rows in embeddings.items():
        x = setting.inversion.images(rows)
        scores = evaluate(Reconstruction(x=x), images, unrelated=held_out, known=known, metrics=(SSIM,), seed=seed)
        again = score_embeddings(
            setting.backbone.embed(x), replace(setting.held_out, x=private, y=images.y), setting, seed
        )
        by = {"SSIM": scores, "embedding cosine": again}
        made = {metric: _closer(f"{metric}, {name}", each) for metric, each in by.items()}
        alone = SSIM.paired(setting.inversion.decode(rows)[scores.index], images.x)
        measures += [_mean_ssim(name, scores, alone), found(f"share of images found, {name}", scores), *made.values()]
        for metric, measure in made.items():
            closer.setdefault(metric, []).append(measure)
        pictures[f"images {name}"], indices[name] = x, scores.index
        lookalike = scores.lookalike
    some = torch.arange(len(images), device=images.x.device)[:: max(1, len(images) // ROW)][:ROW]  # of all classes
    rows_shown = {name: x[index[some]] for (name, x), index in zip(pictures.items(), indices.values(), strict=True)}
    return Outcome(
        measures=tuple(measures),
        figures=(_figure(closer, tuple(embeddings)),),
        pictures={"truth": images.x[some]} | rows_shown | {"nearest public image": lookalike[some]},
    )


def _mean_ssim(name: str, scores: Scores, alone: Tensor) -> Measure:
    nearest = float(scores.nulls["nearest_neighbour"].values[SSIM.name].mean())
    return Measure.from_interval(
        f"mean SSIM, {name}",
        scores.means[SSIM.name],
        chance=float(scores.nulls["unrelated"].values[SSIM.name].mean()),
        meaning=f"of the images with the private ones; the nearest public images reach {nearest:.3f}, those of the "
        f"decoder alone {float(alone.mean()):.3f}",
    )


def _closer(name: str, scores: Scores) -> Measure:
    return Measure.from_interval(
        f"closer than the nearest public image by {name}",
        scores.fraction_closer,
        chance=scores.chance_closer,
        meaning="fraction of the private images; chance: held-out images in their place",
    )


def _figure(closer: dict[str, list[Measure]], names: tuple[str, ...]) -> Figure:
    chance = {f"held-out images, {metric}": [each.chance or 0.0 for each in line] for metric, line in closer.items()}
    labels = ("images", "fraction of the private images")
    return figure_along("Closer than the nearest public image", labels, closer, names, chance)


def heads(scale: Scale) -> dict[str, Head]:
    """The heads by what is special of them."""
    if scale == "smoke":
        few = Head(scale=scale, per_class=2, epochs=2000, decay=0.01, steps=700)
    elif scale == "small":
        few = Head(scale=scale, per_class=5, epochs=3000, decay=0.01, steps=1000)
    else:
        few = Head(scale=scale, per_class=5, epochs=8000, decay=0.003, steps=4000)
    made = {f"{10 * few.per_class} images": few}
    if scale == "full":
        made["200 images"] = replace(
            few, per_class=20, steps=2500, restarts=1, levels=3, keep_fractions=(0.5, 0.7, 0.9)
        )
    if scale != "smoke":  # without centring a larger learning rate diverges, and training takes as much longer
        as_they_are = replace(few, centred=False, lr=few.lr / 10, epochs=2 * few.epochs)
        made[f"{10 * few.per_class} images, embeddings as they are"] = as_they_are
    return made
