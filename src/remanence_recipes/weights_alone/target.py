"""The papers' victims, and the attacks on their weights: the published KKT and Stationarity."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias, final

import torch
from torch import nn

from remanence.attacks import KKT, Attack, KKTRun, Powers, Preprocessing, Rounds, Search, Stationarity, with_search
from remanence.data import data_folders, distinct, load
from remanence.engine import precision, train_each
from remanence.experiments import Budget, Scale
from remanence.models import centred_mlp, torch_params
from remanence.releases import KnowsFinal, Victim, check_fit
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, ByLoss, CrossEntropy, KnownLoss, SquaredError, Training
from remanence.types import Data, Params, concat
from remanence_recipes.records import first_of_each_class, resized, shuffled

Source: TypeAlias = Literal["cifar10", "mnist", "cifar100"]
HELD_OUT: dict[Scale, int] = {"smoke": 1000, "small": 2000, "full": 5000}
HIDDEN: dict[Scale, tuple[int, ...]] = {"smoke": (150,), "small": (300, 300), "full": (1000, 1000)}
FORGOTTEN = 12  # epochs times weight decay, after which little is left of the initial weights
PHOTOGRAPHS_LR = 0.006  # of Stationarity, above its default
SMALL_FIRST = 1e-4  # the authors' code; the paper's words say a variance of d^-1.5
KKT_NORM = 3.0  # that layers are scaled to without weight decay: at much more the published learning rates diverge
BINARY_NORM, MULTICLASS_NORM = 0.7, 5.0  # the same for Stationarity
ANIMALS = (2, 3, 4, 5, 6, 7)  # of CIFAR-10
CIFAR100 = "cifar100-5000.npz"  # 50 + 20 images of each class; all of the set serves as well


@final
@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long a victim is trained, and how long the attacks on it search."""

    epochs: int  # at most: see `Target.epochs`
    steps: int  # of Stationarity, in each level and round
    restarts: int
    levels: int = 1  # of Stationarity's first round
    keep_fractions: tuple[float, ...] = ()  # of further rounds of Stationarity
    iterations: int = 0  # of KKT; 0: it does not run
    sampled_runs: int = 0  # of KKT, from the ranges of the authors' random search, with the published ones


INCREASING = tuple(tenths / 10 for tenths in range(3, 10))
FULL: dict[Scale, Effort] = {
    "smoke": Effort(epochs=1200, steps=500, restarts=1, iterations=200, sampled_runs=2),
    "small": Effort(epochs=6000, steps=4000, restarts=2, iterations=1000, sampled_runs=3),
    "full": Effort(
        epochs=20_000, steps=4000, restarts=1, levels=5, keep_fractions=INCREASING, iterations=3000, sampled_runs=1
    ),
}
BRIEF: dict[Scale, Effort] = {  # for surveys, where many victims count for more than the last record of one
    "smoke": Effort(epochs=600, steps=200, restarts=1),
    "small": Effort(epochs=2500, steps=1200, restarts=1, iterations=200),
    "full": Effort(epochs=8000, steps=1500, restarts=1, iterations=2000),
}
AT_ONCE = 99  # records at most that a survey reconstructs without levels and rounds


def brief(scale: Scale, records: int) -> Effort:
    """The effort of surveys for so many records."""
    if scale == "full" and records > AT_ONCE:
        return replace(BRIEF[scale], levels=FULL[scale].levels, keep_fractions=FULL[scale].keep_fractions)
    return BRIEF[scale]


# The published runs: two binary ones of either data set, two of regression; the multiclass one is KKTRun's default.
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
    """A victim of the papers: `per_class` records of each class, and how they were trained on."""

    scale: Scale
    per_class: int
    effort: Effort
    decay: float
    classes: int = 10  # the first ones; a loss of one output has two groups of all ten
    source: Source = "cifar10"
    loss: KnownLoss = CrossEntropy()
    small_first: bool = False  # initial weights of the first layer with a std of 1e-4, as in the authors' code
    hidden: tuple[int, ...] | None = None  # None: as wide as the scale says
    lr: float | None = None
    by_loss: bool = False  # without decay: a learning rate that rises as the loss falls, where a constant one stalls
    balanced: bool = True  # as many records of each class, which the attacks take for granted
    centre: Literal["training", "public", "none"] = "training"  # the records whose mean the victim subtracts
    tf32: bool = False  # the victim is trained in TF32

    @property
    def records(self) -> int:
        return self.per_class * self.classes

    @property
    def one_output(self) -> bool:
        return not isinstance(self.loss, CrossEntropy)

    @property
    def dtype(self) -> torch.dtype:
        """float64 where gradients fall below what float32 can add to a weight: after many epochs without decay."""
        exact = self.scale == "smoke" or (self.scale == "full" and not self.decay)
        return torch.float64 if exact else torch.float32

    def data(self) -> Data:
        """The records: digits at smoke scale; with one output animals or odd digits against the others."""
        images = distinct_images("digits" if self.scale == "smoke" else self.source, shrunk=self.scale == "small")
        if self.one_output:
            first = torch.isin(images.y, torch.tensor(ANIMALS)) if images.name == "cifar10" else images.y % 2 == 1
            return replace(images, y=first.long(), num_classes=2)
        first = images.y < self.classes
        return Data(x=images.x[first], y=images.y[first], num_classes=self.classes, name=images.name)

    def split(self, seed: int) -> tuple[Data, Data]:
        """Private records by the seed (the paper takes the first of the files), as many of each class; held-out ones.

        Where fewer are left than there are candidates, photographs of CIFAR-10 join the held-out records.
        """
        records = shuffled(self.data(), seed)
        if self.balanced:
            private, others = first_of_each_class(records, self.per_class)
        else:
            private, others = records.take(slice(0, self.records)), records.take(slice(self.records, len(records)))
        held_out = others.take(slice(0, max(HELD_OUT[self.scale], self.candidates)))
        if len(held_out) < self.candidates:
            photographs = distinct_images("cifar10", shrunk=self.scale == "small").take(slice(0, 2 * self.candidates))
            held_out = concat([held_out, photographs])
        return private.to("cpu", self.dtype), held_out.to("cpu", self.dtype)

    @property
    def candidates(self) -> int:
        """The most that an attack returns."""
        return (2 if self.effort.iterations else 1) * self.records

    @property
    def epochs(self) -> int:
        """With weight decay no more than it takes to forget the initial weights. Later neurons become alike, and less
        can be reconstructed: of 50 photographs 48 after 4,000 epochs, 44 after 8,000, 33 after 20,000."""
        return min(self.effort.epochs, round(FORGOTTEN / self.decay)) if self.decay else self.effort.epochs

    @property
    def runs(self) -> int:
        """Of KKT."""
        return len(self._published()) + self.effort.sampled_runs if self.effort.iterations else 0

    def training(self) -> Training:
        """Gradient descent with momentum, at a learning rate that falls in two steps or follows the loss."""
        steps = tuple((self.epochs * tenths // 10, factor) for tenths, factor in ((6, 0.3), (8, 0.1)))
        return Training(
            optimizer=SGD(lr=self.lr or (0.3 if self.scale == "smoke" else 0.1), momentum=0.9),
            epochs=self.epochs,
            lr_schedule=ByLoss() if self.by_loss else steps,
            weight_decay=self.decay,
            loss=self.loss,
        )

    def victims(self, private: Sequence[Data], seeds: Sequence[int]) -> list[Victim]:
        """Victims that are trained together, each on records of its own: three at small scale are a fifth faster."""
        hidden, training = self.hidden or HIDDEN[self.scale], self.training()
        model = centred_mlp(private[0].shape, 1 if self.one_output else self.classes, hidden=hidden)
        initial = [self.initial(model, data, seed) for data, seed in zip(private, seeds, strict=True)]
        with precision(tf32=self.tf32):
            final = train_each(training, model, initial, private)
        victims = [
            Victim(model=model, training=training, initial=start, final=end, fixed=data.take(slice(0, 0)), private=data)
            for start, end, data in zip(initial, final, private, strict=True)
        ]
        for victim in victims:
            check_fit(victim)
        return victims

    def initial(self, model: nn.Module, private: Data, seed: int) -> Params:
        """The initial weights of one victim."""
        first = SMALL_FIRST if self.small_first else None
        params = torch_params(model, seed=derive_seed(seed, "start"), first_std=first)
        # Released with the weights; the paper takes that of the training records for known.
        centre = private if self.centre == "training" else self.split(seed)[1].to(private.x.device)
        mean = {"1.mean": centre.x.mean(0).flatten() * (self.centre != "none")}
        return {name: p.to(private.x) for name, p in params.items()} | mean

    def attacks(self, seed: int) -> dict[str, Attack[KnowsFinal]]:
        """KKT, unless it is to have no iterations, and Stationarity."""
        effort, signed = self.effort, isinstance(self.loss, SquaredError)
        runs = (*self._published(), *sampled_runs(effort.sampled_runs, seed))
        ours = Stationarity(
            candidates=self.records,
            loss=self.loss,
            search=Search(
                optimizer=Adam(lr=0.003, eps=1e-20),
                steps=effort.steps,
                restarts=effort.restarts,
                tf32=self.scale == "full",
            ),
            rounds=Rounds(levels=effort.levels, keep_fractions=effort.keep_fractions),
        )
        if self.scale != "smoke" and self.source != "mnist":
            ours = with_search(ours, optimizer=Adam(lr=PHOTOGRAPHS_LR, eps=1e-20))
        if self.by_loss:  # inner layers keep their initial weights, which would drown the records if whitened
            norm = BINARY_NORM if self.one_output else MULTICLASS_NORM
            ours = replace(ours, preprocessing=Preprocessing(norm=norm), whitening=Powers(inner=0.0))
        if not effort.iterations:
            return {"Stationarity": ours}
        kkt = with_search(KKT(candidates=2 * self.records, runs=runs, signed=signed), steps=effort.iterations)
        kkt = replace(kkt, preprocessing=Preprocessing(norm=KKT_NORM)) if self.by_loss else kkt
        return {"KKT": kkt, "Stationarity": ours}

    def _published(self) -> tuple[KKTRun, ...]:
        if isinstance(self.loss, SquaredError):
            return REGRESSION
        return BINARY[self.source] if self.one_output else (KKTRun(),)


@cache
def distinct_images(source: str, *, shrunk: bool) -> Data:
    """The distinct records of a data set; photographs, with `shrunk`, at half their side."""
    if source == "cifar100":
        path = next((root / CIFAR100 for root in data_folders() if (root / CIFAR100).is_file()), None)
        images = distinct(load(path or "cifar100"))
    else:
        images = distinct(load(source, part="all" if source == "digits" else "train"))
    return resized(images, 16) if shrunk and source != "mnist" else images


def sampled_runs(count: int, seed: int) -> tuple[KKTRun, ...]:
    """Runs from the ranges of the authors' random search; which one counts is chosen by the objective alone."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "runs"))
    return tuple(
        KKTRun(
            lr=10 ** (-5 + 5 * a),
            multiplier_lr=10 ** (-4 + 4 * b),
            min_multiplier=0.01 + 0.49 * c,
            alpha=10 + 490 * d,
            init_std=10 ** (-6 + 5 * e),
        )
        for a, b, c, d, e in torch.rand(count, 5, generator=generator, dtype=torch.float64).tolist()
    )


def budget(targets: Sequence[Target]) -> Budget | None:
    """The least that any of the targets spends at full scale, next to the papers' budget."""
    if targets[0].scale != "full":
        return None
    return Budget(
        epochs=(min(target.epochs for target in targets), 1_000_000),
        iterations=(min(target.effort.iterations for target in targets), 50_000),
        restarts=(min(target.runs for target in targets), 100),
    )
