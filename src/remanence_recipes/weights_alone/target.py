"""The victims, and the attacks on them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias, final

import torch
from torch import nn
from torch.nn.functional import interpolate

from remanence.attacks import KKT, Attack, KKTRun, Powers, Preprocessing, Rounds, Search, Stationarity, with_search
from remanence.data import data_folders, distinct, load
from remanence.engine import train_each
from remanence.experiments import Scale
from remanence.models import centred_mlp, torch_params
from remanence.releases import KnowsFinal, Victim, check_fit
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, ByLoss, CrossEntropy, KnownLoss, SquaredError, Training
from remanence.types import Data, Params, concat

Source: TypeAlias = Literal["cifar10", "mnist", "cifar100"]
HELD_OUT: dict[Scale, int] = {"smoke": 1000, "small": 2000, "full": 5000}
HIDDEN: dict[Scale, tuple[int, ...]] = {"smoke": (150,), "small": (300, 300), "full": (1000, 1000)}
FORGOTTEN = 12  # epochs times weight decay
FAST = 0.006  # of Stationarity on photographs, more than its default
SMALL_FIRST = 1e-4  # the authors' code; the paper's words say a variance of d^-1.5
NORM = 3.0  # of the layers for KKT, without weight decay: much longer ones diverge at the published rates
EVEN_NORM, RIVAL_NORM = 0.7, 5.0  # for Stationarity: records of two groups pull alike, rivals of more by their softmax
ANIMALS = (2, 3, 4, 5, 6, 7)  # of CIFAR-10
CIFAR100 = "cifar100-5000.npz"  # 50 + 20 images of each class; the whole set serves as well


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long a victim is trained, and how long the attacks on it search."""

    epochs: int  # at most: see `Target.epochs`
    steps: int  # of Stationarity, in each stage and round
    restarts: int
    stages: int = 1  # of Stationarity's first round
    kept: tuple[float, ...] = ()  # by further rounds of Stationarity
    iterations: int = 0  # of KKT; 0: it does not run at all
    runs: int = 0  # of KKT, drawn as the authors drew theirs, beside the published ones

    @property
    def published(self) -> bool:
        return self.iterations > 0


MORE_AND_MORE = tuple(tenths / 10 for tenths in range(3, 10))
FULL: dict[Scale, Effort] = {
    "smoke": Effort(epochs=1200, steps=500, restarts=1, iterations=200, runs=2),
    "small": Effort(epochs=6000, steps=4000, restarts=2, iterations=1000, runs=3),
    "full": Effort(epochs=20_000, steps=4000, restarts=1, stages=5, kept=MORE_AND_MORE, iterations=3000, runs=1),
}
BRIEF: dict[Scale, Effort] = {  # for surveys, where many victims count for more than the last record of one
    "smoke": Effort(epochs=600, steps=200, restarts=1),
    "small": Effort(epochs=2500, steps=1200, restarts=1, iterations=200),
    "full": Effort(epochs=8000, steps=1500, restarts=1, iterations=2000),
}
AT_ONCE = 99  # records at most that a survey reads without stages and rounds


def brief(scale: Scale, records: int) -> Effort:
    """For surveys, as much as so many records take."""
    if scale == "full" and records > AT_ONCE:
        return replace(BRIEF[scale], stages=FULL[scale].stages, kept=FULL[scale].kept)
    return BRIEF[scale]


# The authors' own runs: the multiclass default, two binary ones of either data set, two of regression.
BINARY: dict[Source, tuple[KKTRun, ...]] = {
    "cifar10": (
        KKTRun(lr=0.554917, multiplier_lr=1e-4, min_multiplier=0.498303, alpha=19.1446, init_std=8.85749e-4),
        KKTRun(lr=0.346208, multiplier_lr=1e-4, min_multiplier=0.493591, alpha=21.6794, init_std=4.47369e-3),
    ),
    "mnist": (
        KKTRun(lr=0.0305242, multiplier_lr=1e-4, min_multiplier=0.447051, alpha=149.866, init_std=0.0349767),
        KKTRun(lr=0.282118, multiplier_lr=1e-4, min_multiplier=0.415267, alpha=19.2146, init_std=1.74199e-3),
    ),
}
REGRESSION = (
    KKTRun(lr=0.951752, multiplier_lr=1e-4, alpha=90.2891, init_std=0.0197495),
    KKTRun(lr=0.871545, multiplier_lr=1e-4, alpha=107.413, init_std=0.0136501),
)


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """A victim of the papers: so many records of each class, and how they were trained on."""

    scale: Scale
    per_class: int
    effort: Effort
    decay: float
    classes: int = 10  # the first ones; a loss of one output has two groups of all ten
    source: Source = "cifar10"
    loss: KnownLoss = CrossEntropy()
    small_first: bool = False
    hidden: tuple[int, ...] | None = None  # None: as wide as the scale says
    lr: float | None = None
    by_loss: bool = False  # without decay: a rate that follows the loss, which leads where a constant one hardly gets

    @property
    def records(self) -> int:
        return self.per_class * self.classes

    @property
    def one_output(self) -> bool:
        return not isinstance(self.loss, CrossEntropy)

    @property
    def dtype(self) -> torch.dtype:
        """Without decay the slopes fall below what float32 can still add to a weight, after many epochs."""
        exact = self.scale == "smoke" or (self.scale == "full" and not self.decay)
        return torch.float64 if exact else torch.float32

    def data(self) -> Data:
        """Digits at smoke scale; with one output animals or odd digits against the others."""
        whole = _images("digits" if self.scale == "smoke" else self.source, shrunk=self.scale == "small")
        if self.one_output:
            first = torch.isin(whole.y, torch.tensor(ANIMALS)) if whole.name == "cifar10" else whole.y % 2 == 1
            return replace(whole, y=first.long(), num_classes=2)
        kept = whole.y < self.classes
        return Data(x=whole.x[kept], y=whole.y[kept], num_classes=self.classes, name=whole.name)

    def cut(self, seed: int) -> tuple[Data, Data]:
        """As many of each class, by the seed (the paper: the first in the files), and held-out records.

        Where too few are left to stand for as many candidates, photographs of CIFAR-10 join the held-out ones."""
        data = self.data()
        data = data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)))
        place = torch.cat([(data.y == label).nonzero()[: self.per_class, 0] for label in range(data.num_classes)])
        rest = torch.ones(len(data), dtype=torch.bool)
        rest[place] = False
        held_out = data.take(rest).take(slice(0, max(HELD_OUT[self.scale], self.candidates)))
        if len(held_out) < self.candidates:
            others = _images("cifar10", shrunk=self.scale == "small").take(slice(0, 2 * self.candidates))
            held_out = concat([held_out, others])
        return data.take(place).to("cpu", self.dtype), held_out.to("cpu", self.dtype)

    @property
    def candidates(self) -> int:
        """As many as the most that an attack returns."""
        return (2 if self.effort.published else 1) * self.records

    @property
    def epochs(self) -> int:
        """With weight decay no more than it takes to forget the first weights. Later neurons become alike, and less can
        be read: of 50 photographs, the paper's net, 48 after 4,000 epochs, 44 after 8,000, 33 after 20,000."""
        return min(self.effort.epochs, round(FORGOTTEN / self.decay)) if self.decay else self.effort.epochs

    def words(self) -> str:
        """What is left out of the paper's."""
        kkt = f"{self.effort.iterations:,} iterations of KKT (50,000)" if self.effort.published else "KKT not at all"
        return f"{self.epochs:,} epochs (published: 1,000,000), and {kkt}"

    def training(self) -> Training:
        epochs = self.epochs
        stages = tuple((epochs * tenths // 10, factor) for tenths, factor in ((6, 0.3), (8, 0.1)))
        sgd = SGD(lr=self.lr or (0.3 if self.scale == "smoke" else 0.1), momentum=0.9)
        rule = ByLoss() if self.by_loss else stages
        return Training(optimizer=sgd, epochs=epochs, lr_schedule=rule, weight_decay=self.decay, loss=self.loss)

    def victim(self, private: Data, seed: int) -> Victim:
        return self.victims([private], [seed])[0]

    def victims(self, private: Sequence[Data], seeds: Sequence[int]) -> list[Victim]:
        """Trained at once, each on records of its own: of three at small scale a fifth faster on one core."""
        hidden, training = self.hidden or HIDDEN[self.scale], self.training()
        model = centred_mlp(private[0].shape, 1 if self.one_output else self.classes, hidden=hidden)
        starts = [self._start(model, data, seed) for data, seed in zip(private, seeds, strict=True)]
        final = train_each(training, model, starts, private)
        victims = [
            Victim(model=model, training=training, initial=start, final=end, fixed=data.take(slice(0, 0)), private=data)
            for start, end, data in zip(starts, final, private, strict=True)
        ]
        for victim in victims:
            check_fit(victim)
        return victims

    def _start(self, model: nn.Module, private: Data, seed: int) -> Params:
        first = SMALL_FIRST if self.small_first else None
        initial = {
            n: p.to(private.x) for n, p in torch_params(model, seed=derive_seed(seed, "start"), first_std=first).items()
        }
        return initial | {"1.mean": private.x.mean(0).flatten()}  # shown, as the paper takes it for known

    def attacks(self, seed: int) -> dict[str, Attack[KnowsFinal]]:
        effort, signed = self.effort, isinstance(self.loss, SquaredError)
        runs = (*self._published(), *_drawn(effort.runs, seed))
        ours = Stationarity(
            candidates=self.records,
            loss=self.loss,
            search=Search(
                optimizer=Adam(lr=0.003, eps=1e-20),
                steps=effort.steps,
                restarts=effort.restarts,
                tf32=self.scale == "full",
            ),
            rounds=Rounds(levels=effort.stages, keep_fractions=effort.kept),
        )
        if self.scale != "smoke" and self.source != "mnist":
            ours = with_search(ours, optimizer=Adam(lr=FAST, eps=1e-20))
        if self.by_loss:  # the layers between keep their first weights, which evened out would drown the records
            norm = EVEN_NORM if self.one_output else RIVAL_NORM
            ours = replace(ours, preprocessing=Preprocessing(norm=norm), whitening=Powers(inner=0.0))
        if not effort.published:
            return {"Stationarity": ours}
        kkt = with_search(KKT(candidates=2 * self.records, runs=runs, signed=signed), steps=effort.iterations)
        kkt = replace(kkt, preprocessing=Preprocessing(norm=NORM)) if self.by_loss else kkt
        return {"KKT": kkt, "Stationarity": ours}

    def _published(self) -> tuple[KKTRun, ...]:
        if isinstance(self.loss, SquaredError):
            return REGRESSION
        return BINARY[self.source] if self.one_output else (KKTRun(),)


@cache
def _images(source: str, *, shrunk: bool) -> Data:
    """The different records of a set; of CIFAR's photographs, with `shrunk`, half the side."""
    if source == "cifar100":
        path = next((root / CIFAR100 for root in data_folders() if (root / CIFAR100).is_file()), None)
        whole = distinct(load(path or "cifar100"))
    else:
        whole = distinct(load(source, part="all" if source == "digits" else "train"))
    if shrunk and source != "mnist":
        whole = replace(whole, x=interpolate(whole.x, size=(16, 16), mode="bilinear", antialias=True).clamp(0, 1))
    return whole


def _drawn(count: int, seed: int) -> tuple[KKTRun, ...]:
    """Runs from the ranges of the authors' random search; which one counts is chosen by the objective alone."""
    draws = torch.rand(
        count, 5, generator=torch.Generator().manual_seed(derive_seed(seed, "runs")), dtype=torch.float64
    )
    return tuple(
        KKTRun(
            lr=10 ** (-5 + 5 * a),
            multiplier_lr=10 ** (-4 + 4 * b),
            min_multiplier=0.01 + 0.49 * c,
            alpha=10 + 490 * d,
            init_std=10 ** (-6 + 5 * e),
        )
        for a, b, c, d, e in draws.tolist()
    )
