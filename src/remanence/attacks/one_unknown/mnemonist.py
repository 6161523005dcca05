"""Mnemonist: locate the rows of the first layer that memorise the record, and reconstruct it from those alone.

Shahin Shamsabadi, Hayes, Balle, Weller, "Mnemonist: Locating Model Parameters that Memorize Training Examples" (UAI
2023), section 5 and algorithm 1: a linear surrogate of a reconstructor's error over masks, whose rejected rows are
reset to their initial values, shows which rows help; a new reconstructor is trained on these.
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor

from remanence.attacks.one_unknown.fitting import Fitting
from remanence.attacks.one_unknown.losses import mse_plus_mae
from remanence.attacks.one_unknown.masks import MaskedReconstructor, Superparameters, sample_masks
from remanence.attacks.one_unknown.reconn import FittedRecoNN, RecoNN
from remanence.engine.cuda import precision
from remanence.errors import BadInput, check_min, unknown_name
from remanence.models.structure import MLP, parse
from remanence.progress import track
from remanence.releases import KnowsAllButOne, require
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank, rows_of_layers, stack_weights
from remanence.shadow.features import Scaler, WeightFeatures, check_size
from remanence.training import RMSProp
from remanence.types import Params, Reconstruction

Layers: TypeAlias = Literal["first", "all"]
ResetTo: TypeAlias = Literal["initial", "mean"]
Selection: TypeAlias = Literal["sign", "validation"]


@final
@dataclass(frozen=True, kw_only=True)
class Mnemonist:
    """A selection of rows and a reconstructor of them; `Mnemonist.paper()` is the published method.

    `fit` selects the rows and trains on them; the `FittedMnemonist` that it returns is the attack on a release.
    """

    reconstructor: RecoNN = RecoNN()
    masks: int = 1024  # every mask where the rows have no more, else at most that many, balanced over the rows
    # whose rows are selected: the paper's figures show the ten rows of the first layer, its text speaks of parameters
    layers: Layers = "first"
    # the paper does not say whether its selected reconstructor also takes the layers after the first
    later_layers: bool = True
    # values of rejected rows. "mean" of the shadows is ours: it holds as little of the record as the paper's "initial"
    # values, and models near it do occur (digits, five initialisations of ten rows: the rank correlation of
    # coefficients with the fraction of records that a row stores is -0.6 to -0.9, for "initial" -0.4 to 0.2)
    reset_to: ResetTo = "mean"
    # fraction of the shadows that the rows are validated on, which the probing reconstructor is not trained on. The
    # paper validates on the released models with their true records, which no adversary has
    validation_fraction: float = 0.1
    # "sign" selects every row with a negative coefficient, as the paper does, also those that help next to nothing.
    # "validation" is ours: as many rows, in the order of their coefficients, as give the lowest validation error
    selection: Selection = "sign"

    @classmethod
    def paper(cls) -> "Mnemonist":
        """The published method: table 2's transposed convolutions, all rows with negative coefficients."""
        fitting = Fitting(optimizer=RMSProp(lr=1e-3), cosine=False, epochs=200, validation_fraction=0.0)
        reconstructor = RecoNN(hidden=(), head="deconv", features=WeightFeatures(clip=None), fitting=fitting)
        return cls(reconstructor=reconstructor, reset_to="initial")

    def __post_init__(self) -> None:
        check_min(self, masks=1)
        for name, known in (
            ("layers", get_args(Layers)),
            ("reset_to", get_args(ResetTo)),
            ("selection", get_args(Selection)),
        ):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known, argument=name)
        if not 0 < self.validation_fraction < 1:
            message = f"`validation_fraction` is a fraction and must lie in (0, 1), got {self.validation_fraction}"
            raise BadInput(message, code="out-of-range", argument="validation_fraction")
        if self.reconstructor.features.digest:
            message = "`reconstructor` must take the rows one by one, got `digest` features: leave `digest` out"
            raise BadInput(message, code="conflict", argument="reconstructor")
        if self.layers == "all" and self.reconstructor.head == "gated":
            message = (
                '`layers="all"` needs a head that takes no rows of the first layer: use `head="dense"` or "deconv"'
            )
            raise BadInput(message, code="conflict", argument="layers")

    def fit(self, bank: ShadowBank, *, seed: int) -> "FittedMnemonist":
        """Select rows by their importance, then train a new reconstructor on them with the complete bank."""
        importance = self.importance(bank, seed=seed)
        if self.selection == "validation":
            return self.select(bank, importance, self._lowest_error(bank, importance, seed=seed), seed=seed)
        return self.select(bank, importance, importance.helpful, seed=seed)

    def select(self, bank: ShadowBank, importance: "Importance", rows: Tensor, *, seed: int) -> "FittedMnemonist":
        """Train a new reconstructor on these rows, whoever selected them, with the complete bank."""
        selected, coordinates = self._restricted(bank, rows)
        return FittedMnemonist(
            attack=self,
            importance=importance,
            rows=rows,
            reconstructor=self.reconstructor.fit(selected, seed=derive_seed(seed, "selected")),
            coordinates=coordinates,
            parameters=bank.weights.shape[1],
        )

    def fit_probe(self, bank: ShadowBank, *, seed: int) -> FittedRecoNN:
        """The reconstructor that `importance` probes the rows with, trained on all but the validation shadows."""
        return self.reconstructor.fit(self._split(bank, seed)[1], seed=derive_seed(seed, "judged"))

    def importance(self, bank: ShadowBank, *, seed: int, probe: FittedRecoNN | None = None) -> "Importance":
        """The importance of each row of `layers` for the reconstruction from validation shadows.

        `probe` is what `fit_probe` returns for the same bank and seed; it is fitted here where it is not given."""
        groups, initial = self._superparameters(bank), _initial(bank)
        masks = sample_masks(len(groups), self.masks, seed=derive_seed(seed, "masks")).to(bank.weights.device)
        if len(masks) <= len(groups):
            message = (
                f"`masks` must be more than the {len(groups)} rows, whose coefficients are fitted "
                f"to them, got {self.masks}: use more, best several times as many"
            )
            raise BadInput(message, code="too-few", argument="masks")
        validation, training = self._split(bank, seed)
        probe = probe or self.fit_probe(bank, seed=seed)
        assert isinstance(probe.features, Scaler)
        masked = MaskedReconstructor(net=probe.net, scaler=probe.features, groups=groups)
        reset = training.weights.mean(0) if self.reset_to == "mean" else initial
        with precision(tf32=self.reconstructor.fitting.tf32):
            errors = masked.errors(validation.weights, reset, validation.targets.x.to(bank.weights), masks)
        return Importance.from_errors(masks, errors)

    def _lowest_error(self, bank: ShadowBank, importance: "Importance", *, seed: int) -> Tensor:
        """The most helpful rows, as many as give the lowest validation error; one, two, three, five ... are tried."""
        validation, training = self._split(bank, seed)
        order, errors = importance.coefficient.argsort(), {}
        counts = _fibonacci(len(order))
        for count in track(counts, total=len(counts), label="numbers of rows"):
            selected, coordinates = self._restricted(training, order[:count].sort().values)
            fitted = self.reconstructor.fit(selected, seed=derive_seed(seed, "of so many", count))
            found = fitted.reconstruct(validation.weights[:, coordinates])
            errors[count] = float(mse_plus_mae(found, validation.targets.x.to(found)).mean())
        return order[: min(errors, key=errors.__getitem__)].sort().values

    def _restricted(self, bank: ShadowBank, rows: Tensor) -> tuple[ShadowBank, Tensor]:
        """The bank without the other rows, and the coordinates that remain."""
        coordinates = self._superparameters(bank).select(rows, bank.weights.shape[1], later_layers=self.later_layers)
        layer = bank.first_layer() if self.layers == "first" else None
        remaining = layer and layer.restricted(rows, coordinates)
        return ShadowBank(weights=bank.weights[:, coordinates], targets=bank.targets, rows=remaining), coordinates

    def _superparameters(self, bank: ShadowBank) -> Superparameters:
        device = bank.weights.device
        if self.layers == "first":
            layer = bank.first_layer()
            if layer is not None and not layer.encoder:
                return Superparameters.from_layer(layer, device)
        elif bank.model is not None and isinstance(structure := parse(bank.model, bank.targets.shape), MLP):
            rows = rows_of_layers(bank.model, structure.layers)
            return Superparameters(coordinates=tuple(row.to(device) for row in rows))
        raise _unsupported(bank, "begin with" if self.layers == "first" else "consist of")

    def _split(self, bank: ShadowBank, seed: int) -> tuple[ShadowBank, ShadowBank]:
        """The validation shadows, at least two, and the training shadows."""
        generator = torch.Generator().manual_seed(derive_seed(seed, "judges"))
        order = torch.randperm(len(bank.weights), generator=generator).to(bank.weights.device)
        count = max(2, round(self.validation_fraction * len(order)))
        if len(order) < count + 3:
            message = f"`bank` holds {len(order)} shadow models, Mnemonist needs at least {count + 3}: train more"
            raise BadInput(message, code="too-few", argument="bank")
        validation, training = (
            replace(bank, weights=bank.weights[rows], targets=bank.targets.take(rows))
            for rows in (order[:count], order[count:])
        )
        return validation, training


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Importance:
    """A linear surrogate of the validation error over masks of rows, one for each validation shadow."""

    masks: Tensor  # (masks, rows)
    errors: Tensor  # (models, masks)
    coefficients: Tensor  # (models, rows)

    @classmethod
    def from_errors(cls, masks: Tensor, errors: Tensor) -> "Importance":
        """Fit each model's errors by ordinary least squares on the masks, with an intercept."""
        bits = masks.double()
        design = torch.cat([torch.ones_like(bits[:, :1]), bits], dim=1)
        solved: Tensor = torch.linalg.pinv(design) @ errors.double().T
        return cls(masks=masks, errors=errors, coefficients=solved[1:].T)

    @property
    def coefficient(self) -> Tensor:
        """(rows,): the mean coefficient of each row over the models; below zero, its presence lowers the error."""
        return self.coefficients.mean(0)

    @property
    def standard_error(self) -> Tensor:
        """(rows,): the standard error of `coefficient`."""
        return self.coefficients.std(0) / sqrt(len(self.errors))

    @property
    def helpful(self) -> Tensor:
        """The indices of the rows whose presence lowers the error; where none does, of the one that harms least."""
        mean = self.coefficient
        helpful = (mean < 0).nonzero().flatten()
        return helpful if len(helpful) else mean.argmin()[None]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FittedMnemonist:
    """A trained reconstructor of the selected rows; it attacks models trained as the shadows were."""

    attack: Mnemonist
    importance: Importance
    rows: Tensor  # the indices of the selected rows
    reconstructor: FittedRecoNN
    coordinates: Tensor  # the indices of the parameters that it takes
    parameters: int  # how many a model has

    def run(self, release: KnowsAllButOne, *, seed: int) -> Reconstruction:
        require(release, KnowsAllButOne, by=type(self.attack).__name__)
        weights = _flat(release.final)[None]
        check_size(weights, self.parameters)
        return Reconstruction(x=self.reconstructor.reconstruct(weights[:, self.coordinates]))


def _flat(params: Params) -> Tensor:
    return stack_weights({name: p[None] for name, p in params.items()})[0]


def _fibonacci(n: int) -> list[int]:
    one, two, numbers = 1, 2, []
    while one < n:
        numbers.append(one)
        one, two = two, one + two
    return [*numbers, n]


def _initial(bank: ShadowBank) -> Tensor:
    if bank.initial is None:
        message = (
            "`bank` must hold the initial weights of its shadows, got None: build it for a release with `initial`, "
            "such as `all_but_one` gives, or use RecoNN"
        )
        raise BadInput(message, code="not-enough-knowledge", argument="bank")
    return _flat(bank.initial).to(bank.weights)


def _unsupported(bank: ShadowBank, must: str) -> BadInput:
    got = "no model" if bank.model is None else "one that does not, or is not recognised"
    message = (
        f"`model` of the bank must {must} fully connected layers, from whose rows Mnemonist selects, "
        f"got {got}: use a model such as `mlp()` makes, or RecoNN for this one"
    )
    return BadInput(message, code="unsupported-model", argument="bank")
