"""A training recipe as people write it down, in a TOML file or on one line.

    optimizer = "adam"          # or on one line:  adam lr=1e-3 epochs=5 batch=16
    lr = 1e-3
    epochs = 5
    batch_size = 16             # or "full"

What is not known is left out; `Recipe.missing` names what a simulation of the training would need.
"""

import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import cos, inf, pi
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias, final

from remanence.disk import read_text
from remanence.errors import MAX_NAME, BadInput, printable, unknown_name
from remanence.training import SGD, Adam, AdamW, CrossEntropy, Logistic, Optimizer, RMSProp, SquaredError, Training
from remanence.training.losses import Loss

Pairs: TypeAlias = tuple[tuple[int, float], ...]  # from that epoch on, the learning rate times this factor
FIELDS = ("optimizer", "lr", "momentum", "epochs", "batch_size", "weight_decay", "schedule", "loss", "label_smoothing")
_NEEDED = ("optimizer", "lr", "epochs", "batch_size")
_OTHER_NAMES = {
    **{"batch": "batch_size", "bs": "batch_size", "wd": "weight_decay", "decay": "weight_decay"},
    **{"learning_rate": "lr", "lr_schedule": "schedule", "scheduler": "schedule"},
}
_OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
_LOSSES: dict[str, Loss] = {
    **dict.fromkeys(("cross-entropy", "cross_entropy"), CrossEntropy()),
    **dict.fromkeys(("logistic", "bce"), Logistic()),
    **dict.fromkeys(("squared-error", "mse"), SquaredError()),
}
_SCHEDULES: dict[str, Callable[[int, int], float]] = {  # factors by epoch and number of epochs, as torch's of the name
    "constant": lambda epoch, epochs: 1.0,
    "cosine": lambda epoch, epochs: (1 + cos(pi * epoch / epochs)) / 2,
    "linear": lambda epoch, epochs: 1 - epoch / epochs,
}
_RMSPROP_DECAY = 0.99  # torch's
_MAX_TOML = 2**20  # bytes


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is known of a training; None: not known."""

    optimizer: str | None = None
    lr: float | None = None
    momentum: float | None = None
    epochs: int | None = None
    batch_size: int | str | None = None  # "full": all records in one batch
    weight_decay: float | None = None
    schedule: str | Pairs | None = None
    loss: str | None = None
    label_smoothing: float | None = None
    source: str = field(default="", compare=False)  # what it was read from

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields without which the training cannot be simulated; the others have the defaults of torch."""
        return tuple(name for name in _NEEDED if getattr(self, name) is None)

    def training(self, *, outputs: int) -> Training:
        """The training of a network with so many outputs; a recipe with `missing` fields is refused."""
        if self.missing:
            names = ", ".join(f"`{name}`" for name in self.missing)
            message = f"the recipe lacks {names}: add them, or leave the recipe out"
            raise BadInput(message, code="not-enough-knowledge", argument=self.missing[0])
        assert self.epochs is not None
        loss = _LOSSES[self.loss] if self.loss else CrossEntropy() if outputs > 1 else Logistic()
        if self.label_smoothing:
            if not isinstance(loss, CrossEntropy):
                message = "`label_smoothing` of the recipe is of the cross-entropy alone: leave it out"
                raise BadInput(message, code="conflict", argument="label_smoothing")
            loss = CrossEntropy(label_smoothing=self.label_smoothing)
        return Training(
            optimizer=self._optimizer(),
            epochs=self.epochs,
            batch_size=None if isinstance(self.batch_size, str) else self.batch_size,
            weight_decay=0.0 if self.optimizer == "adamw" else self.weight_decay or 0.0,
            lr_schedule=self._schedule(self.epochs),
            loss=loss,
        )

    def _optimizer(self) -> Optimizer:
        assert self.lr is not None
        match self.optimizer:
            case "sgd":
                return SGD(lr=self.lr, momentum=self.momentum or 0.0)
            case "adam":
                return Adam(lr=self.lr)
            case "adamw":
                return AdamW(lr=self.lr, **({} if self.weight_decay is None else {"weight_decay": self.weight_decay}))
        return RMSProp(lr=self.lr, decay=_RMSPROP_DECAY)

    def _schedule(self, epochs: int) -> Pairs:
        if self.schedule is None or self.schedule == "constant":
            return ()
        if isinstance(self.schedule, str):
            return tuple((epoch, _SCHEDULES[self.schedule](epoch, epochs)) for epoch in range(epochs))
        return self.schedule

    def __str__(self) -> str:
        known = {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}
        if isinstance(self.schedule, tuple):
            known["schedule"] = ",".join(f"{epoch}:{factor:g}" for epoch, factor in self.schedule)
        return " ".join(f"{name}={value}" for name, value in known.items())


def load_recipe(given: str | Path) -> Recipe:
    """A recipe from the path of a TOML file, or from one line."""
    if isinstance(given, str) and not given.endswith(".toml"):
        return _from_line(given)
    try:
        table = tomllib.loads(read_text(Path(given), max_bytes=_MAX_TOML))
    except OSError as error:
        message = f"cannot read the recipe {str(given)!r}: {error.strerror}; give a TOML file, or one line"
        raise BadInput(message, code="missing-file", argument="recipe") from None
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        message = f"the recipe {str(given)!r} is not TOML: {error}"
        raise BadInput(message, code="damaged-file", argument="recipe") from None
    return recipe_from(table, source=str(given))


def _from_line(line: str) -> Recipe:
    table: dict[str, Any] = {}
    try:
        words = shlex.split(line.replace(",", " ") if ":" not in line else line)
    except ValueError:
        message = f"the recipe {printable(line, MAX_NAME)!r} has a quotation mark or backslash too many: leave it out"
        raise BadInput(message, code="wrong-type", argument="recipe") from None
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            name, value = "optimizer", word
        if name in table:
            raise BadInput(f"the recipe names `{name}` twice: give it once", code="conflict", argument=name)
        table[name] = _value(value)
    if not table:
        message = "the recipe is empty: write one such as `adam lr=1e-3 epochs=5 batch=16`"
        raise BadInput(message, code="empty", argument="recipe")
    return recipe_from(table, source=line)


def _value(word: str) -> Any:
    """A number, pairs such as ``30:0.1,60:0.01``, or the word itself."""
    if ":" in word:
        return [[_value(part) for part in pair.split(":")] for pair in word.split(",")]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def recipe_from(table: Mapping[str, Any], *, source: str = "") -> Recipe:
    """A recipe from its fields, checked one by one."""
    for name in ("recipe", "training"):  # a table of a larger file
        if isinstance(table.get(name), Mapping):
            table = table[name]
    known = dict[str, Any]()
    for name, value in table.items():
        meant = _OTHER_NAMES.get(name, name)
        if meant not in FIELDS:
            raise unknown_name("field of a recipe", name, FIELDS, argument=name)
        if meant in known:
            raise BadInput(f"the recipe gives `{meant}` twice: give it once", code="conflict", argument=meant)
        known[meant] = _CHECKS[meant](meant, value)
    recipe = Recipe(**known, source=source)
    if recipe.momentum is not None and recipe.optimizer not in (None, "sgd"):
        message = f"`momentum` is a field of sgd, got it with {recipe.optimizer}: leave it out"
        raise BadInput(message, code="conflict", argument="momentum")
    return recipe


def _choice(*names: str) -> Callable[[str, Any], str]:
    def check(field: str, value: Any) -> str:
        word = str(value).lower()
        if word not in names:
            raise unknown_name(field, str(value), names, argument=field)
        return word

    return check


def _number(low: float, high: float = inf, *, strict: bool = False) -> Callable[[str, Any], float]:
    def check(field: str, value: Any) -> float:
        numeric = isinstance(value, Real) and not isinstance(value, bool)
        if not numeric or not (low < value < high if strict else low <= value < high):
            limit = f"above {low:g}" if strict else f"{low:g} or more"
            below = "" if high == inf else f" and below {high:g}"
            message = f"`{field}` of the recipe must be a number {limit}{below}, got {value!r}"
            raise BadInput(message, code="out-of-range" if numeric else "wrong-type", argument=field)
        return float(value)

    return check


def _count(field: str, value: Any) -> int:
    integral = isinstance(value, Integral) and not isinstance(value, bool)
    if not integral or value < 1:
        message = f"`{field}` of the recipe must be a whole number, 1 or more, got {value!r}"
        raise BadInput(message, code="out-of-range" if integral else "wrong-type", argument=field)
    return int(value)


def _batch_size(field: str, value: Any) -> int | str:
    return "full" if isinstance(value, str) and value.lower() in ("full", "all") else _count(field, value)


def _schedule(field: str, value: Any) -> str | Pairs:
    if isinstance(value, str):
        return _choice(*_SCHEDULES)(field, value)
    try:
        pairs = tuple((int(epoch), float(factor)) for epoch, factor in value)
    except (TypeError, ValueError):
        pairs = ()
    if not pairs or not all(epoch >= 0 and factor >= 0 for epoch, factor in pairs):
        message = (
            f"`{field}` of the recipe must be {', '.join(_SCHEDULES)} or pairs of an epoch and the factor of the "
            f"learning rate from there on, such as [[30, 0.1]] or 30:0.1,60:0.01, got {value!r}"
        )
        raise BadInput(message, code="wrong-type", argument=field)
    return pairs


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "optimizer": _choice(*_OPTIMIZERS),
    "lr": _number(0, strict=True),
    "momentum": _number(0, 1),
    "epochs": _count,
    "batch_size": _batch_size,
    "weight_decay": _number(0),
    "schedule": _schedule,
    "loss": _choice(*_LOSSES),
    "label_smoothing": _number(0, 1),
}
