"""The setting of table 2: CIFAR-10, four layers of width 10, 40 steps of the full batch; and subsets of rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, final

import torch
from torch import Tensor, nn

from remanence.attacks import FittedMnemonist, FittedRecoNN, Fitting, Importance, Mnemonist, RecoNN
from remanence.attacks.one_unknown.mnemonist import ResetTo
from remanence.data import Split, load, split
from remanence.diagnostics.memorization import Storage, audit_storage
from remanence.experiments import Budget, Prepared, Scale, Trial, Victims, prepare
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics import MAE_MSE
from remanence.metrics.nulls import mean_image, nearest_neighbour
from remanence.models import initial_params, mlp
from remanence.progress import track
from remanence.releases import all_but_one
from remanence.seeds import derive_seed
from remanence.training import SGD, AdamW, Training
from remanence.types import Data, Params, concat

SIZES: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {"private": 20, "fixed": 100, "public": 200, "test": 500},
    "small": {"private": 100, "fixed": 200, "public": 1500, "test": 2000},
    "full": {"private": 1000, "fixed": 10_000, "public": 20_000, "test": 1000},
}
# table 2 says 200 steps of the reconstructor, which as epochs would take two minutes for each fit
BUDGET = Budget(shadows=(20_000, 40_000), iterations=(30, 200))
STEPS: Mapping[Scale, int] = {"smoke": 20, "small": 40, "full": 40}
TUNED = tuned_on_truth(
    "The victims' learning rate was chosen after looking at true records of seed 1: quote another seed."
)
RECONSTRUCTORS: Mapping[Scale, RecoNN] = {
    "smoke": RecoNN(hidden=(100,), head="dense", fitting=Fitting(optimizer=AdamW(lr=1e-3), epochs=15, batch_size=16)),
    "small": RecoNN(
        hidden=(300,),
        head="deconv",
        fitting=Fitting(optimizer=AdamW(lr=5e-4, weight_decay=1e-2), epochs=20, batch_size=64),
    ),
    "full": RecoNN(
        hidden=(),
        head="deconv",
        fitting=Fitting(optimizer=AdamW(lr=3e-4, weight_decay=1e-2), epochs=30, batch_size=256),
    ),
}


def victims(scale: Scale, *, initialisation: int = 0, lr: float | None = None, **sizes: int) -> Victims:
    """ReLU networks from the initial weights of one run, one for each private record; `sizes` replace the scale's."""
    return Victims(
        split=partial(parts, scale, **sizes),
        model=partial(net, nn.ReLU),
        training=training(scale, lr),
        reveal=all_but_one,
        per_victim=1,
        initial=partial(initial_weights, initialisation),
    )


def parts(scale: Scale, seed: int, **sizes: int) -> Split:
    return split(load("digits" if scale == "smoke" else "cifar10"), **{**SIZES[scale], **sizes}, seed=seed)


def net(activation: Callable[[], nn.Module], data: Data) -> nn.Module:
    return mlp(data.shape, data.num_classes, hidden=(10, 10, 10), activation=activation)


def training(scale: Scale, lr: float | None = None) -> Training:
    """The paper states neither learning rate nor momentum. At 0.1 some initialisations are chaotic: models that start
    at a distance of 1e-7 end as far from each other as those with different records (`ablations.mnemonist_rates`)."""
    lr = lr or (0.1 if scale == "smoke" else 0.03)
    return Training(optimizer=SGD(lr=lr, momentum=0.9), epochs=STEPS[scale], tf32=scale == "full")


def initial_weights(initialisation: int, model: nn.Module, seed: int) -> Params:
    """The initial weights of a run: what makes the runs of the paper differ."""
    return initial_params(model, seed=derive_seed(seed, "run", initialisation))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowStudy:
    """Reconstructions of the targets from subsets of the first layer's rows; no reconstructor is fitted twice."""

    victims: Prepared
    reconstructor: RecoNN
    initialisation: int = 0
    made: dict[tuple[tuple[int, ...], bool], Tensor] = field(default_factory=dict, init=False)

    @cached_property
    def _probe(self) -> FittedRecoNN:
        return Mnemonist(reconstructor=self.reconstructor).fit_probe(self.victims.bank, seed=self.victims.seed)

    @cached_property
    def importance(self) -> Importance:
        """Importance of the rows where rejected ones are reset to their initial weights, as in the paper."""
        return self._importance("initial")

    @cached_property
    def importance_at_mean(self) -> Importance:
        """Importance of the rows where rejected ones are reset to the mean of the shadow models."""
        return self._importance("mean")

    def _importance(self, reset_to: ResetTo) -> Importance:
        attack = Mnemonist(reconstructor=self.reconstructor, reset_to=reset_to)
        return attack.importance(self.victims.bank, seed=self.victims.seed, probe=self._probe)

    @property
    def all_rows(self) -> Tensor:
        """All rows of the first layer: with the later layers, that is RecoNN."""
        return torch.arange(len(self.shadow_std), device=self.victims.bank.weights.device)

    def random_rows(self, count: int, *, total: int | None = None) -> Tensor:
        """A random subset of the rows of the first layer, or of so many."""
        generator = torch.Generator().manual_seed(derive_seed(self.victims.seed, "rows", self.initialisation))
        rows = torch.randperm(len(self.all_rows) if total is None else total, generator=generator)
        return rows[:count].sort().values.to(self.all_rows)

    @cached_property
    def shadow_std(self) -> Tensor:
        """Median over the weights of a row of their standard deviation over the shadow models, shape (rows,)."""
        layer = self.victims.bank.first_layer()
        assert layer is not None
        return layer.select(self.victims.bank.weights.std(0)[None])[0].median(1).values

    def stable_rows(self, count: int) -> Tensor:
        """The rows whose weights vary least over the shadow models, of those that vary at all."""
        varying = (self.shadow_std > 0).nonzero().flatten()
        return varying[self.shadow_std[varying].argsort()[:count]].sort().values

    def reconstruct(self, rows: Tensor, *, later_layers: bool = True) -> Tensor:
        """All targets, from these rows of the first layer and, with `later_layers`, the layers after it."""
        key = tuple(rows.tolist()), later_layers
        if key not in self.made:
            bank, seed = self.victims.bank, self.victims.seed
            if later_layers and len(rows) == len(self.all_rows):
                self.made[key] = self.run(self.reconstructor.fit(bank, seed=derive_seed(seed, "selected")))
            else:
                attack = Mnemonist(reconstructor=self.reconstructor, reset_to="initial", later_layers=later_layers)
                self.made[key] = self.run(attack.select(bank, self.importance, rows, seed=seed))
        return self.made[key]

    def error(self, rows: Tensor, *, later_layers: bool = True) -> Tensor:
        """MAE + MSE of each target, reconstructed from these rows."""
        return self.error_of(self.reconstruct(rows, later_layers=later_layers))

    def refitted_error(self) -> Tensor:
        """MAE + MSE of a RecoNN that is fitted with another seed: the difference from the first is noise of fitting."""
        fitted = self.reconstructor.fit(self.victims.bank, seed=derive_seed(self.victims.seed, "again"))
        return self.error_of(self.run(fitted))

    def error_of(self, reconstructed: Tensor) -> Tensor:
        """MAE + MSE of each target, shape (targets,)."""
        return MAE_MSE.paired(reconstructed, self.victims.split.private.x)

    def run(self, fitted: FittedRecoNN | FittedMnemonist) -> Tensor:
        """Reconstructions of all targets."""
        return torch.cat([fitted.run(case.release, seed=self.victims.seed).x for case in self.victims.cases])

    def storage(self) -> Storage:
        """Which rows store which targets at the first step."""
        victims, data = self.victims, self.victims.split
        model, initial, training = victims.model, victims.initial, victims.victims.training
        return audit_storage(training, model, initial, data.fixed, data.private, steps=(1,), seed=victims.seed)


def initialisations(trial: Trial, reconstructor: RecoNN, count: int, **changes: Any) -> Iterator[RowStudy]:
    """The victims of `trial` from other initial weights, one run after the other: all banks at once exceed memory."""
    data = trial.victims.split
    for i in track(range(count), total=count, label="initialisations"):
        changed = replace(trial.victims.victims, split=lambda _: data, initial=partial(initial_weights, i), **changes)
        prepared = prepare(changed, seed=trial.seed, device=trial.device)
        yield RowStudy(victims=prepared, reconstructor=reconstructor, initialisation=i)


def null_errors(data: Split) -> dict[str, float]:
    """Mean MAE + MSE where each target is answered by the mean of the attacker's records, or by the nearest of them."""
    owned = concat([data.public, data.fixed])
    nulls = {
        "mean image": mean_image(data.private, owned, (MAE_MSE,)),
        "nearest neighbour": nearest_neighbour(data.private, owned, (MAE_MSE,))[1],
    }
    return {name: float(null.values[MAE_MSE.name].mean()) for name, null in nulls.items()}
