"""What a client of federated learning can do about its update, as axes of a sweep.

    parse_sweep("clients=1,2,5,10 noise=0,0.1,1")     axes and their values, as they are typed

Axes are swept one at a time, from the update as it is sent without any of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias, final

from remanence.errors import BadInput, unknown_name
from remanence.releases.defenses import Clipping, Defense, GaussianNoise, LocalDP, Quantization, TopK
from remanence.training.dp import DELTA

Sweep: TypeAlias = Mapping[str, Sequence[float]]
_MAX_SETTINGS = 40


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value on an axis: how many clients are averaged, and what each does to its update."""

    axis: str
    value: float
    words: str
    clients: int = 1
    defenses: tuple[Defense, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Axis:
    """A defense by its strength: from `low` to `high`, of which `undefended` is none of it."""

    words: str  # of a setting, around its value
    meaning: str  # of the value
    undefended: float
    low: float
    high: float = inf
    integral: bool = False
    includes_low: bool = True
    stronger_down: bool = False
    defense: Callable[[float], Defense] | None = None  # None: an average over so many clients

    def setting(self, name: str, value: float) -> Setting:
        words = self.words.format(value)
        if self.defense is None:
            return Setting(axis=name, value=value, words=words, clients=int(value))
        return Setting(axis=name, value=value, words=words, defenses=(self.defense(value),))

    def takes(self, value: float) -> bool:
        above = value >= self.low if self.includes_low else value > self.low
        within = above and value <= self.high and value < inf and (not self.integral or value == int(value))
        return within or value == self.undefended

    @property
    def expected(self) -> str:
        kind = "whole numbers" if self.integral else "numbers"
        low = f"{self.low:g} or more" if self.includes_low else f"above {self.low:g}"
        return f"{kind}, {low}" + (f" and at most {self.high:g}" if self.high < inf else "")


AXES: Final[dict[str, Axis]] = {
    "clients": Axis(
        words="sums of {:g} clients",
        meaning="clients whose updates are added up before the server sees them",
        undefended=1,
        low=1,
        integral=True,
    ),
    "noise": Axis(
        words="noise of {:g}",
        meaning="standard deviation of Gaussian noise, over the root mean square entry of each tensor of the update",
        undefended=0,
        low=0,
        defense=lambda value: GaussianNoise(relative_std=value),
    ),
    "epsilon": Axis(
        words="epsilon of {:g}",
        meaning=f"epsilon of local differential privacy at delta {DELTA:g}, by Gaussian noise for updates of one norm",
        undefended=inf,
        low=0,
        includes_low=False,
        stronger_down=True,
        defense=lambda value: LocalDP(epsilon=value),
    ),
    "topk": Axis(
        words="top-k of {:g}",
        meaning="fraction of the entries that are sent, the largest",
        undefended=1,
        low=0,
        includes_low=False,
        high=1,
        stronger_down=True,
        defense=lambda value: TopK(fraction=value),
    ),
    "bits": Axis(
        words="{:g}-bit entries",
        meaning="bits that each entry is rounded to, at random",
        undefended=32,
        low=1,
        high=16,
        integral=True,
        stronger_down=True,
        defense=lambda value: Quantization(bits=int(value)),
    ),
    "clip": Axis(
        words="clipping to {:g}",
        meaning="norm of the update that it is scaled down to",
        undefended=inf,
        low=0,
        includes_low=False,
        stronger_down=True,
        defense=lambda value: Clipping(norm=value),
    ),
}
DEFAULT: Final[Sweep] = {"clients": (2, 5, 10), "noise": (0.01, 0.1, 1), "topk": (0.1, 0.01), "bits": (8, 2)}


def parse_sweep(text: str, *, argument: str = "sweep") -> dict[str, tuple[float, ...]]:
    """The axes and values of a line such as `clients=1,2,5,10 noise=0,0.1,1`, checked."""
    found = dict[str, tuple[float, ...]]()
    for word in text.split():
        name, equals, values = word.partition("=")
        if not equals:
            message = f"`{argument}` must be axes with their values, such as `clients=1,2,5 noise=0.1,1`, got `{word}`"
            raise BadInput(message, code="wrong-type", argument=argument)
        if name in found:
            raise BadInput(f"`{argument}` names `{name}` twice: give it once", code="conflict", argument=argument)
        try:
            found[name] = tuple(float(value) for value in values.split(","))
        except ValueError:
            message = f"`{name}` of `{argument}` must be numbers with commas between them, got `{values}`"
            raise BadInput(message, code="wrong-type", argument=argument) from None
    settings(found, argument=argument)
    return found


def settings(sweep: Sweep, *, argument: str = "sweep") -> list[Setting]:
    """The settings of a sweep, those of an axis from the weakest to the strongest; what is no defense is left out, as
    the update without any comes first in every sweep."""
    made = list[Setting]()
    for name, values in sweep.items():
        if name not in AXES:
            raise unknown_name("axis of a sweep", name, AXES, argument=argument)
        axis = AXES[name]
        for value in values:
            if not axis.takes(value):
                message = f"`{name}` of `{argument}` must be {axis.expected} ({axis.meaning}), got {value:g}"
                raise BadInput(message, code="out-of-range", argument=argument)
        ordered = sorted({float(value) for value in values}, reverse=axis.stronger_down)
        made += [axis.setting(name, value) for value in ordered if value != axis.undefended]
    if not made:
        message = f"`{argument}` names no defense but the update as it is: add one, such as `clients=2` or `noise=0.1`"
        raise BadInput(message, code="empty", argument=argument)
    if len(made) > _MAX_SETTINGS:
        message = f"`{argument}` must have at most {_MAX_SETTINGS} settings of a defense, got {len(made)}"
        raise BadInput(message, code="out-of-range", argument=argument)
    return made
