"""What the recipes of this paper share: table 2's parts of CIFAR-10, nets, training and reconstructor; one start."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks import FittedMnemonist, FittedRecoNN, Fitting, Importance, Mnemonist, RecoNN
from remanence.attacks.one_unknown.mnemonist import ResetTo
from remanence.data import Split, load, split
from remanence.diagnostics.memorization import Storage, audit_storage
from remanence.experiments import Scale
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics import MAE_MSE
from remanence.metrics.nulls import mean_image as null_of_mean
from remanence.metrics.nulls import nearest_neighbour
from remanence.models import initial_params, mlp
from remanence.releases import AllButOne, Victim, all_but_one, train_victims
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank, build_bank
from remanence.training import SGD, AdamW, Training
from remanence.types import Data, Params, concat

SIZES: dict[Scale, tuple[int, int, int, int]] = {  # private, fixed, public, test
    "smoke": (20, 100, 200, 500),
    "small": (100, 200, 1500, 2000),
    "full": (1000, 10_000, 20_000, 1000),  # the paper has 40,000 shadows for each start
}
TUNED = tuned_on_truth(
    "The victims' learning rate was chosen after looking at true records of seed 1: quote another seed."
)
STEPS: dict[Scale, int] = {"smoke": 20, "small": 40, "full": 40}
# table 2 says a transposed CNN, MAE + MSE and 200 steps, which read as epochs would be two minutes for each fit
RECONSTRUCTOR = RecoNN(
    hidden=(),
    head="deconv",
    fitting=Fitting(optimizer=AdamW(lr=3e-4, weight_decay=1e-2), epochs=30, batch_size=256),
)


def reconstructor(scale: Scale) -> RecoNN:
    if scale == "smoke":
        fitting = Fitting(optimizer=AdamW(lr=1e-3), epochs=15, batch_size=16)
        return replace(RECONSTRUCTOR, hidden=(100,), head="dense", fitting=fitting)
    if scale == "small":
        fitting = Fitting(optimizer=AdamW(lr=5e-4, weight_decay=1e-2), epochs=20, batch_size=64)
        return replace(RECONSTRUCTOR, hidden=(300,), fitting=fitting)
    return RECONSTRUCTOR


def mnemonist(scale: Scale, *, reset_to: ResetTo = "initial") -> Mnemonist:
    return Mnemonist(reconstructor=reconstructor(scale), reset_to=reset_to)


def net(activation: Callable[[], nn.Module], data: Data) -> nn.Module:
    """Four layers of width 10."""
    return mlp(data.shape, data.num_classes, hidden=(10, 10, 10), activation=activation)


def training(scale: Scale, lr: float | None = None) -> Training:
    """The paper states neither rate nor momentum. At 0.1 some starts are chaotic: models that begin 1e-7 apart end as
    far from each other as those that hold different records. `mnemonist2023.rates` walks over them."""
    lr = lr or (0.1 if scale == "smoke" else 0.03)
    return Training(optimizer=SGD(lr=lr, momentum=0.9), epochs=STEPS[scale], tf32=scale == "full")


def cut(scale: Scale, seed: int, sizes: tuple[int, int, int, int] | None = None) -> Split:
    private, fixed, public, test = sizes or SIZES[scale]
    records = load("digits" if scale == "smoke" else "cifar10")
    return split(records, private=private, fixed=fixed, public=public, test=test, seed=seed)


def start_of(place: int, model: nn.Module, seed: int) -> Params:
    """The first weights of a run: what makes the runs of the paper differ."""
    return initial_params(model, seed=derive_seed(seed, "run", place))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """Victims and shadows from one start; nothing is made before it is asked for."""

    scale: Scale
    activation: Callable[[], nn.Module]
    parts: Split  # on the device
    place: int
    seed: int
    training: Training

    @cached_property
    def model(self) -> nn.Module:
        return net(self.activation, self.parts.private)

    @cached_property
    def initial(self) -> Params:
        drawn = start_of(self.place, self.model, self.seed)
        return {name: p.to(self.parts.fixed.x) for name, p in drawn.items()}

    @cached_property
    def victims(self) -> list[Victim]:
        fixed, private = self.parts.fixed, self.parts.private
        return train_victims(self.model, self.training, self.initial, fixed, private, seed=self.seed)

    @cached_property
    def releases(self) -> list[AllButOne]:
        return [all_but_one(victim).release for victim in self.victims]

    @cached_property
    def bank(self) -> ShadowBank:
        return build_bank(self.releases[0], self.parts.public, seed=self.seed)

    def error(self, found: Tensor) -> Tensor:
        """One for each target."""
        return MAE_MSE.paired(found, self.parts.private.x)

    def storage(self, steps: tuple[int, ...]) -> Storage:
        """Of the targets."""
        fixed, private = self.parts.fixed, self.parts.private
        return audit_storage(self.training, self.model, self.initial, fixed, private, steps=steps, seed=self.seed)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Readings:
    """What reconstructors of one kind make of a run, by what they read of it; none is fitted twice."""

    run: Run
    reconstructor: RecoNN
    made: dict[tuple[tuple[int, ...], bool], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> "Readings":
        return cls(run=run, reconstructor=reconstructor(run.scale))

    @cached_property
    def _probe(self) -> FittedRecoNN:
        return Mnemonist(reconstructor=self.reconstructor).fit_probe(self.run.bank, seed=self.run.seed)

    @cached_property
    def importance(self) -> Importance:
        return self._importance("initial")

    @cached_property
    def importance_at_mean(self) -> Importance:
        return self._importance("mean")

    def _importance(self, reset_to: ResetTo) -> Importance:
        attack = Mnemonist(reconstructor=self.reconstructor, reset_to=reset_to)
        return attack.importance(self.run.bank, seed=self.run.seed, probe=self._probe)

    @property
    def every(self) -> Tensor:
        """All rows: with the later layers, that is RecoNN."""
        layer = self.run.bank.first_layer()
        assert layer is not None
        return torch.arange(layer.count, device=self.run.bank.weights.device)

    def drawn(self, count: int) -> Tensor:
        """So many rows that nobody chose."""
        generator = torch.Generator().manual_seed(derive_seed(self.run.seed, "rows", self.run.place))
        return torch.randperm(len(self.every), generator=generator)[:count].sort().values.to(self.every)

    @cached_property
    def spread(self) -> Tensor:
        """How far the shadows disagree about each row: the median over its weights."""
        layer = self.run.bank.first_layer()
        assert layer is not None
        return layer.select(self.run.bank.weights.std(0)[None])[0].median(1).values

    def quietest(self, count: int) -> Tensor:
        """So many of the rows that move at all, those that the shadows disagree about least: nobody judges them."""
        moving = (self.spread > 0).nonzero().flatten()
        return moving[self.spread[moving].argsort()[:count]].sort().values

    def read(self, kept: Tensor, *, later: bool = True) -> Tensor:
        """All targets, off these rows of the first layer and, if asked for, the layers behind it."""
        key = tuple(kept.tolist()), later
        if key not in self.made:
            self.made[key] = self._run(self._fitted(kept, later=later))
        return self.made[key]

    def error(self, kept: Tensor, *, later: bool = True) -> Tensor:
        return self.run.error(self.read(kept, later=later))

    def again(self) -> Tensor:
        """The error of RecoNN from other first weights and in other batches: the difference is luck."""
        fitted = self.reconstructor.fit(self.run.bank, seed=derive_seed(self.run.seed, "again"))
        return self.run.error(self._run(fitted))

    def _run(self, fitted: FittedRecoNN | FittedMnemonist) -> Tensor:
        return torch.cat([fitted.run(release, seed=self.run.seed).x for release in self.run.releases])

    def _fitted(self, kept: Tensor, *, later: bool) -> FittedRecoNN | FittedMnemonist:
        if later and len(kept) == len(self.every):
            seed = derive_seed(self.run.seed, "selected")  # as Mnemonist would
            return self.reconstructor.fit(self.run.bank, seed=seed)
        attack = Mnemonist(reconstructor=self.reconstructor, reset_to="initial", later_layers=later)
        return attack.select(self.run.bank, self.importance, kept, seed=self.run.seed)


def runs(
    scale: Scale,
    activation: Callable[[], nn.Module],
    count: int,
    seed: int,
    device: torch.device,
    *,
    lr: float | None = None,
    sizes: tuple[int, int, int, int] | None = None,
) -> Iterator[Run]:
    """One after the other: the banks of all would not fit into the memory."""
    whole, trained = cut(scale, seed, sizes), training(scale, lr)
    parts = replace(whole, **{name: getattr(whole, name).to(device) for name in ("private", "fixed", "public", "test")})
    for place in range(count):
        yield Run(scale=scale, activation=activation, parts=parts, place=place, seed=seed, training=trained)


def neighbour(parts: Split) -> float:
    """The error of the nearest record that the attacker owns, given as each reconstruction."""
    _, null = nearest_neighbour(parts.private, concat([parts.public, parts.fixed]), (MAE_MSE,))
    return float(null.values[MAE_MSE.name].mean())


def mean_image(parts: Split) -> float:
    """The error of the mean of all records that the attacker owns, given as every reconstruction."""
    return float(
        null_of_mean(parts.private, concat([parts.public, parts.fixed]), (MAE_MSE,)).values[MAE_MSE.name].mean()
    )
