"""Mnemonist: find the rows of the first layer that hold the record, and read those alone.

Shahin Shamsabadi, Hayes, Balle, Weller, "Mnemonist: Locating Model Parameters that Memorize Training Examples" (UAI
2023), section 5 and algorithm 1: a linear surrogate of a reconstructor's error over masks, whose rejected rows go back
to their initial values, tells which rows help; a fresh reconstructor is trained on them.
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks.one_unknown.masks import MaskedReader, Superparameters, masks_of, reading_error
from remanence.attacks.one_unknown.reconn import FittedRecoNN, RecoNN
from remanence.engine.cuda import precision
from remanence.errors import BadInput, check_min
from remanence.progress import track
from remanence.releases import KnowsAllButOne, require
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank, stack_weights
from remanence.shadow.features import Scaler
from remanence.types import Params, Reconstruction


@final
@dataclass(frozen=True, kw_only=True)
class Mnemonist:
    """The paper's own reconstructor is
    `RecoNN(transposed=True, hidden=(), epochs=200, cosine=False, clip=None, held_out=0.0)`."""

    reader: RecoNN = RecoNN()
    masks: int = 1024  # all of them where the rows have no more, else at most so many, balanced over the rows
    # the paper does not say whether its selected reconstructor also reads the layers behind the first
    later: bool = True
    # not in the paper, whose rejected rows go back to their initial values, where no trained model ever is: to the
    # shadows' mean instead, which tells as little of the record (digits, five starts of ten rows: the rank correlation
    # of coefficients with the share of records that a row stores is -0.6 to -0.9, otherwise -0.4 to 0.2)
    to_mean: bool = False
    # the share of shadows that judge the rows, which the reader that they judge with never saw. The paper judges on the
    # released models with the records that they hold, which no adversary has
    held_out: float = 0.1
    # not in the paper, which keeps every row with a negative coefficient, and so rows that help next to nothing: of the
    # rows in the order of their coefficients keep so many as a reconstructor of them alone errs least on the judges
    by_error: bool = False

    def __post_init__(self) -> None:
        check_min(self, masks=1)
        if not 0 < self.held_out < 1:
            raise BadInput(f"`held_out` is a share and must lie in (0, 1), got {self.held_out}")
        if self.reader.digest:
            raise BadInput("`reader` must read the rows one by one, got one of their digest: leave `digest` out")

    def fit(self, bank: ShadowBank, *, seed: int) -> "FittedMnemonist":
        """Judge the rows, then train a fresh reconstructor of the whole bank on those that help."""
        importance = self.importance(bank, seed=seed)
        kept = self._best(bank, importance, seed=seed) if self.by_error else importance.kept
        return self.select(bank, importance, kept, seed=seed)

    def select(self, bank: ShadowBank, importance: "Importance", kept: Tensor, *, seed: int) -> "FittedMnemonist":
        """A fresh reconstructor of the whole bank on the rows `kept`, whoever chose them."""
        selected, left = self._selected(bank, kept)
        reader = self.reader.fit(selected, seed=derive_seed(seed, "selected"))
        return FittedMnemonist(
            attack=self, importance=importance, kept=kept, reader=reader, left=left, size=bank.weights.shape[1]
        )

    def judged(self, bank: ShadowBank, *, seed: int) -> FittedRecoNN:
        """The reconstructor that the rows are judged with; it does not see the shadows that judge."""
        return self.reader.fit(self._cut(bank, seed)[1], seed=derive_seed(seed, "judged"))

    def importance(self, bank: ShadowBank, *, seed: int, judged: FittedRecoNN | None = None) -> "Importance":
        """How each row of the first layer bears on the reconstruction of shadows that the reader did not see.

        `judged` is what the method of that name gives for the same bank and seed, where it is there already."""
        groups, initial = _superparameters(bank), _initial(bank)
        masks = masks_of(len(groups), self.masks, seed=derive_seed(seed, "masks")).to(bank.weights.device)
        if len(masks) <= len(groups):
            raise BadInput(
                f"`masks` must be more than the {len(groups)} rows of the first layer, whose coefficients are fitted "
                f"to them, got {self.masks}: use more, best several times as many"
            )
        judges, rest = self._cut(bank, seed)
        fitted = judged or self.judged(bank, seed=seed)
        assert isinstance(fitted.scaler, Scaler)
        masked = MaskedReader(net=fitted.net, scaler=fitted.scaler, groups=groups)
        back = rest.weights.mean(0) if self.to_mean else initial
        with precision(tf32=self.reader.tf32):
            errors = masked.errors(judges.weights, back, judges.targets.x.to(bank.weights), masks)
        return Importance.of(masks, errors)

    def _best(self, bank: ShadowBank, importance: "Importance", *, seed: int) -> Tensor:
        """Of the rows that help most so many as read the judges best; one, two, three, five and so on are tried."""
        judges, rest = self._cut(bank, seed)
        order, errors = importance.coefficient.argsort(), {}
        counts = _counts(len(order))
        for count in track(counts, total=len(counts), label="numbers of rows"):
            selected, left = self._selected(rest, order[:count].sort().values)
            fitted = self.reader.fit(selected, seed=derive_seed(seed, "of so many", count))
            with torch.no_grad():
                found = fitted.net(fitted.scaler(judges.weights[:, left]))
            errors[count] = float(reading_error(found, judges.targets.x.to(found)).mean())
        return order[: min(errors, key=errors.__getitem__)].sort().values

    def _selected(self, bank: ShadowBank, kept: Tensor) -> tuple[ShadowBank, Tensor]:
        """The bank with nothing left of the other rows, and the coordinates that are."""
        left = _superparameters(bank).left(kept, bank.weights.shape[1], later=self.later)
        model = _shrunk(bank.model, len(kept), later=self.later)
        return ShadowBank(weights=bank.weights[:, left], targets=bank.targets, model=model), left

    def _cut(self, bank: ShadowBank, seed: int) -> tuple[ShadowBank, ShadowBank]:
        """The shadows that judge, at least two, and those to learn from."""
        generator = torch.Generator().manual_seed(derive_seed(seed, "judges"))
        order = torch.randperm(len(bank.weights), generator=generator).to(bank.weights.device)
        count = max(2, round(self.held_out * len(order)))
        if len(order) < count + 3:
            raise BadInput(f"`bank` holds {len(order)} shadow models, Mnemonist needs at least {count + 3}: train more")
        judges, rest = (
            replace(bank, weights=bank.weights[rows], targets=bank.targets.take(rows))
            for rows in (order[:count], order[count:])
        )
        return judges, rest


def _counts(rows: int) -> list[int]:
    """Fibonacci's numbers below `rows`, and all."""
    one, two, counts = 1, 2, []
    while one < rows:
        counts.append(one)
        one, two = two, one + two
    return [*counts, rows]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Importance:
    """What each row does to the error of held-out shadows."""

    masks: Tensor  # (masks, rows)
    errors: Tensor  # (models, masks)
    coefficients: Tensor  # (models, rows)

    @classmethod
    def of(cls, masks: Tensor, errors: Tensor) -> "Importance":
        """Ordinary least squares of each model's error on the masks, with an intercept."""
        bits = masks.double()
        design = torch.cat([torch.ones_like(bits[:, :1]), bits], dim=1)
        solved: Tensor = torch.linalg.pinv(design) @ errors.double().T
        return cls(masks=masks, errors=errors, coefficients=solved[1:].T)

    @property
    def coefficient(self) -> Tensor:
        """The mean of each row's: below zero, its presence lowers the error."""
        return self.coefficients.mean(0)

    @property
    def standard_error(self) -> Tensor:
        """Of that mean, over the held-out models."""
        return self.coefficients.std(0) / sqrt(len(self.errors))

    @property
    def kept(self) -> Tensor:
        """The rows whose presence lowers the error; where none does, the one that does the least harm."""
        mean = self.coefficient
        helping = (mean < 0).nonzero().flatten()
        return helping if len(helping) else mean.argmin()[None]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FittedMnemonist:
    """A reconstructor of the rows that help; it reads models made as the shadows were."""

    attack: Mnemonist
    importance: Importance
    kept: Tensor  # the rows that it reads
    reader: FittedRecoNN
    left: Tensor  # the coordinates that it reads
    size: int  # of the models

    def run(self, release: KnowsAllButOne, *, seed: int) -> Reconstruction:
        require(release, KnowsAllButOne, by=type(self.attack).__name__)
        weights = _flat(release.final)
        if len(weights) != self.size:
            raise BadInput(
                f"the reconstructor reads models of {self.size} parameters, got {len(weights)}: "
                "fit it on shadows of this model"
            )
        with torch.no_grad():
            return Reconstruction(x=self.reader.net(self.reader.scaler(weights[None, self.left])))


def _flat(params: Params) -> Tensor:
    return stack_weights({name: p[None] for name, p in params.items()})[0]


def _initial(bank: ShadowBank) -> Tensor:
    if bank.initial is None:
        raise BadInput(
            "`bank` must show the weights that its shadows started from, as rejected rows go back to them, got None: "
            "build it for a release with `initial`, such as all_but_one gives, or use RecoNN"
        )
    return _flat(bank.initial).to(bank.weights)


def _superparameters(bank: ShadowBank) -> Superparameters:
    layer = bank.first_layer()
    if layer is None or len(layer.encoder):
        first = next(iter(bank.model.children()), bank.model) if bank.model is not None else None
        got = "None" if first is None else f"one that begins with {type(first).__name__}"
        raise BadInput(
            "`model` of the bank must begin with a fully connected layer, whose rows Mnemonist chooses from, "
            f"got {got}: use a model such as mlp() makes, or RecoNN for this one"
        )
    assert isinstance(bank.model, nn.Sequential)
    return Superparameters.of(bank.model, layer, bank.weights.device)


def _shrunk(model: nn.Module | None, rows: int, *, later: bool) -> nn.Sequential:
    """What tells where rows lie in the weights that are left; it is never run."""
    assert isinstance(model, nn.Sequential)
    place, first = next((i, layer) for i, layer in enumerate(model) if isinstance(layer, nn.Linear))
    linear = nn.Linear(first.in_features, rows, bias=first.bias is not None, device="meta")
    layers = list(model)
    return nn.Sequential(*layers[:place], linear, *(layers[place + 1 :] if later else ()))
