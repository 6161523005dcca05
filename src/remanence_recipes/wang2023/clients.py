"""A client's defenses on images: how well a batch is read from what it sends, and how well the model still learns.

remanence run wang2023.defenses --scale paper      one CPU core: about ten minutes
expected                                           clipping hides nothing, the others hide by degrees

An ordinary net with first weights that nobody chose. The model is trained by federated SGD: in each round every client
sends the defended gradient of a batch of its own records and the server steps along their mean, with the rate that did
best on held-out records. The number of rounds is the same for all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import isfinite
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks import GradientMatching, Stein, with_search
from remanence.data import Split, load, split
from remanence.engine import loss_gradient
from remanence.errors import BadInput
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import Interval, hungarian
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean
from remanence.models import apply, initial_params, mlp
from remanence.progress import track
from remanence.releases import gradient_at_initial, train_victim
from remanence.releases.defenses import Clipping, Defense, GaussianNoise, Quantization, Sign, TopK, defended
from remanence.seeds import derive_seed
from remanence.training import SGD, Training
from remanence.types import Data, Params

BATCH = 4
HELD_OUT, CHANCES = 0.25, 50  # share of the public records that chooses the rate; draws of other images
MOST = 16  # records of a batch that Stein is tried on: its cost grows with the sixth power


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    data: str = "mnist"
    width: int = 300
    records: int = 8  # attacked, but for larger batches
    tries: int = 2  # of Stein
    steps: int = 300  # of gradient matching
    clients: int = 5
    rounds: int = 100
    rates: tuple[float, ...] = (0.1, 0.5, 2.5)
    public: int = 20_000
    test: int = 2000


SMALL = Setting(records=4, rounds=50, rates=(0.5,), public=5000)
SETTINGS: dict[Scale, Setting] = {
    "smoke": replace(SMALL, data="digits", width=100, tries=1, steps=40, clients=3, rounds=40, public=1000, test=500),
    "small": SMALL,
    "full": Setting(),
}


@final
@dataclass(frozen=True, kw_only=True)
class Strength:
    at: float | str  # on the axis
    defenses: tuple[Defense, ...] = ()
    batch: int = BATCH


@final
@dataclass(frozen=True, kw_only=True)
class Curve:
    """From no defense to speak of to the strongest."""

    axis: str
    strengths: tuple[Strength, ...]
    word: str = ""  # before a number on the axis

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(x if isinstance(x, str) else f"{self.word} {x:g}" for x in self.x)

    @property
    def x(self) -> tuple[float, ...] | tuple[str, ...]:
        texts = tuple(strength.at for strength in self.strengths if isinstance(strength.at, str))
        return texts or tuple(float(strength.at) for strength in self.strengths)


CURVES = {
    "Gaussian noise": Curve(
        word="noise",
        axis="noise, in units of the norm of each tensor",
        strengths=tuple(Strength(at=s, defenses=(GaussianNoise(relative_std=s),)) for s in (0.01, 0.1, 0.3, 1.0, 3.0)),
    ),
    "clipping": Curve(
        word="norm",
        axis="largest norm of the gradient",
        strengths=tuple(Strength(at=n, defenses=(Clipping(norm=n),)) for n in (10.0, 1.0, 0.1)),
    ),
    "top-k": Curve(
        word="share",
        axis="share of the entries sent",
        strengths=tuple(Strength(at=s, defenses=(TopK(fraction=s),)) for s in (1.0, 0.1, 0.03, 0.01)),
    ),
    "few bits": Curve(
        axis="what is sent of each entry",
        strengths=(
            *(Strength(at=f"{bits} bits", defenses=(Quantization(bits=bits),)) for bits in (8, 4, 2)),
            Strength(at="1 bit", defenses=(Quantization(bits=1),)),
            Strength(at="sign", defenses=(Sign(),)),
        ),
    ),
    "larger batches": Curve(
        word="batch of",
        axis="records in a batch",
        strengths=tuple(Strength(at=b, batch=b) for b in (1, 2, 4, 8, 16, 32)),
    ),
}
MEANING = (
    "root mean square error of a record's pixels, the mean over records after the best assignment; a batch whose "
    "gradient the attack refuses counts as the mean image, which is chance here"
)


def defenses(scale: Scale) -> Sequence[Experiment]:
    """Each defense of a federated client: what two attacks still read of its images, and the accuracy that is left."""
    about = "What is read of a client's images against the strength of its defense, and how well the model then learns."
    return [
        Experiment(
            label=label,
            about=about,
            evaluations=(Measurement(measure=partial(_study, SETTINGS[scale], _thinned(scale, curve))),),
        )
        for label, curve in CURVES.items()
    ]


def _thinned(scale: Scale, curve: Curve) -> Curve:
    if scale != "smoke":
        return curve
    return replace(curve, strengths=(curve.strengths[0], curve.strengths[-1]))


def _study(setting: Setting, curve: Curve, seed: int, device: torch.device) -> Outcome:
    cut = _cut(setting, seed, device)
    model = mlp(cut.private.shape, cut.private.num_classes, hidden=(setting.width,), activation=nn.Tanh)
    at = {name: p.to(cut.private.x) for name, p in initial_params(model, seed=derive_seed(seed, "weights")).items()}
    attacks: dict[str, tuple[Stein | GradientMatching, torch.dtype, int]] = {
        "Stein": (Stein(restarts=setting.tries, reseeds=setting.tries - 1), torch.float64, MOST),
        "gradient matching": (
            with_search(GradientMatching(), steps=setting.steps, restarts=1),
            torch.float32,
            len(cut.private),
        ),
    }
    read: dict[str, list[Interval]] = {name: [] for name in attacks}
    learnt: list[Interval] = []
    chance: dict[str, list[float]] = {"mean image": [], "other images": []}
    for strength in track(curve.strengths, total=len(curve.strengths), label="strengths"):
        private = cut.private.take(slice(0, max(setting.records, strength.batch)))
        mean = _rms(private.x - cut.public.x.mean(0))
        for name, (attack, dtype, most) in attacks.items():
            own = private.take(slice(0, len(private) if strength.batch <= most else 0)).to(device, dtype)
            errors = _read(attack, model, at, own, strength, mean, seed)
            read[name].append(bootstrap_mean(errors, seed=derive_seed(seed, "interval")))
        learnt.append(_accuracy(model, _trained(setting, model, at, cut.public, strength, seed), cut.test))
        chance["mean image"].append(float(mean.mean()))
        chance["other images"].append(_other_images(private.x, cut.test.x, strength.batch, seed))
    common = [float(cut.test.y.bincount().max()) / len(cut.test)] * len(learnt)
    return Outcome(
        measures=tuple(_measures(curve, read, learnt, chance["mean image"], common)),
        figures=(
            _figure(curve, "What is read", "root mean square error of a pixel", read, chance),
            _figure(curve, "What is learnt", "accuracy", {"federated SGD": learnt}, {"commonest class": common}),
        ),
    )


def _cut(setting: Setting, seed: int, device: torch.device) -> Split:
    """The same for all curves; `public` are the records of the clients that train the model, and those that choose its
    rate."""
    private = max(strength.batch for curve in CURVES.values() for strength in curve.strengths)
    cut = split(load(setting.data), private=private, fixed=0, public=setting.public, test=setting.test, seed=seed)
    return Split(**{name: getattr(cut, name).to(device) for name in ("private", "fixed", "public", "test")})


def _read(
    attack: Stein | GradientMatching,
    model: nn.Module,
    at: Params,
    records: Data,
    strength: Strength,
    refused: Tensor,
    seed: int,
) -> Tensor:
    """The error of each record, read in batches."""
    own, errors = {name: p.to(records.x) for name, p in at.items()}, refused.new_zeros(0)
    for first in range(0, len(records), strength.batch):
        batch = records.take(slice(first, first + strength.batch))
        victim = train_victim(model, Training(epochs=0), own, batch.take([]), batch, seed=0)
        release = gradient_at_initial(victim, defenses=strength.defenses, seed=seed).release
        try:
            found = attack.run(release, seed=derive_seed(seed, "attack", first)).x
            made = _errors(found, batch.x)
        except BadInput:
            made = refused[first : first + strength.batch]
        errors = torch.cat([errors, made.to(errors)])
    return errors


def _errors(found: Tensor, truth: Tensor) -> Tensor:
    return _rms(found[hungarian(found, truth)] - truth)


def _rms(difference: Tensor) -> Tensor:
    """Of each record."""
    return difference.square().flatten(1).mean(1).sqrt()


def _other_images(truth: Tensor, others: Tensor, batch: int, seed: int) -> float:
    """The error of as many held-out images in the place of what is read of each batch."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "other images"))
    errors = []
    for own in truth.split(batch):
        drawn = [torch.randperm(len(others), generator=generator)[: len(own)] for _ in range(CHANCES)]
        errors += [_errors(others[rows], own) for rows in drawn]
    return float(torch.cat(errors).mean())


def _trained(setting: Setting, model: nn.Module, at: Params, pool: Data, strength: Strength, seed: int) -> Params:
    cut = int(HELD_OUT * len(pool))
    clients, held_out = pool.take(slice(cut, None)), pool.take(slice(0, cut))
    made = [_federated(setting, model, at, clients, strength, rate, seed) for rate in setting.rates]
    return max(made, key=lambda params: _accuracy(model, params, held_out).value)


def _federated(
    setting: Setting, model: nn.Module, at: Params, pool: Data, strength: Strength, rate: float, seed: int
) -> Params:
    training, rounds = Training(optimizer=SGD(lr=rate)), count()

    def gradient(params: Params, batches: Tensor | None) -> Params:
        assert batches is not None
        own = derive_seed(seed, "round", next(rounds))
        sent = [
            defended(
                loss_gradient(model, params, pool.x[rows], pool.y[rows], loss=training.loss),
                strength.defenses,
                seed=derive_seed(own, k),
            )
            for k, rows in enumerate(batches)
        ]
        return {name: torch.stack([each[name] for each in sent]).mean(0) for name in params}

    batches = _batches(setting, len(pool), strength.batch, seed)
    return training.descend(gradient, at, batches, records=len(pool), noise_seed=0)


def _batches(setting: Setting, records: int, size: int, seed: int) -> Iterator[Tensor]:
    """(clients, size) places for each round, every client's among records of its own."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "batches"))
    own = torch.randperm(records, generator=generator)[: records - records % setting.clients].view(setting.clients, -1)
    for _ in range(setting.rounds):
        yield own.gather(1, torch.randint(own.shape[1], (setting.clients, size), generator=generator))


def _accuracy(model: nn.Module, params: Params, data: Data) -> Interval:
    right = apply(model, params, data.x).argmax(1) == data.y
    return binomial_proportion(int(right.sum()), len(data))


def _measures(
    curve: Curve,
    read: dict[str, list[Interval]],
    learnt: Sequence[Interval],
    guess: Sequence[float],
    common: Sequence[float],
) -> Iterator[Measure]:
    for place, at in enumerate(curve.names):
        for name, errors in read.items():
            if isfinite(errors[place].value):
                yield Measure.from_interval(f"error, {name}, {at}", errors[place], meaning=MEANING, chance=guess[place])
        meaning = "share of held-out records classified rightly; chance is the commonest class"
        yield Measure.from_interval(f"accuracy, {at}", learnt[place], meaning=meaning, chance=common[place])


def _figure(
    curve: Curve, title: str, y_label: str, found: dict[str, list[Interval]], chance: dict[str, list[float]]
) -> Figure:
    levels = [Series(name=name, x=curve.x, y=tuple(y), role="chance") for name, y in chance.items()]
    return Figure(
        title=title,
        x_label=curve.axis,
        y_label=y_label,
        series=(*(Series.from_intervals(name, curve.x, errors) for name, errors in found.items()), *levels),
        kind="bars" if isinstance(curve.x[0], str) else "lines",
        log_x=not isinstance(curve.x[0], str),
    )
