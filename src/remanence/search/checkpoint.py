"""Searches on disk, so that one that was stopped resumes where it was, and ends with the same bits.

Each has a file of its own, named by a digest of all that its values follow from: what another attack, release or seed
left in a folder is never loaded. A file is written at once or not at all, with a digest of what is in it: one that is
damaged, or does not fit the search, is said to be so, and the search starts again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from remanence.caching import (
    digest,
    kind_of,
    our_code,
    read_tensors,
    records,
    say_damaged,
    users_code,
    weights,
    words,
    write_tensors,
)
from remanence.engine.cuda import FusedRMSProp, RMSPropOfOptax, params_of
from remanence.types import Data, Params

_MAX_STEP = 2**24  # beyond, float32 counts no further


def checkpoint_path(folder: Path | None, attack: object, release: Any, *purpose: str | int) -> Path | None:
    """The file of a search of `attack` on the dataclass `release`; `purpose` holds the seed, and tells several searches
    of one attack from each other. None where no folder is given."""
    if folder is None:
        return None
    shown = {entry.name: getattr(release, entry.name) for entry in fields(release)}
    training = shown.get("training")
    users = [*release.model.modules(), *(getattr(training, name, None) for name in ("optimizer", "loss", "privacy"))]
    tensors = (value for params in shown.values() if isinstance(params, Mapping) for value in params.values())
    parts = [
        words(repr(attack)),
        *(_ingredient(value) for value in shown.values()),
        words(torch.__version__, our_code("training", "engine", "search", "attacks"), users_code(users)),
        words(kind_of(next(tensors).device)),
        words(repr(purpose)),
    ]
    return Path(folder) / f"search-{digest(part['digest'].encode() for part in parts)}.safetensors"


def _ingredient(value: object) -> dict[str, str]:
    match value:
        case dict():
            return weights(value)
        case Tensor():
            return weights({"": value})
        case Data():
            return records(value)
        case _:
            return words(repr(value))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Saved:
    """A search after `done` steps: the indices of its remaining restarts, and the state for `restore`."""

    done: int
    restarts: Tensor
    state: Params


def save(path: Path, optimizer: torch.optim.Optimizer, restarts: Tensor, done: int) -> None:
    """Write all that the next step needs after `done` of them: variables, moments and which `restarts` remain."""
    state: Params = {"done": torch.tensor(done), "restarts": restarts}
    for index, p in enumerate(params_of([optimizer])):
        moments = {name: value for name, value in optimizer.state[p].items() if isinstance(value, Tensor)}
        state |= {f"{index}.{name}": value for name, value in {"value": p.detach(), **moments}.items()}
    write_tensors(path, state, belongs_to=path.name)


def load(path: Path | None, optimizer: torch.optim.Optimizer, count: int, steps: int) -> Saved | None:
    """What was saved of a search of `steps` steps from `count` restarts whose variables `optimizer` updates; None where
    nothing was, and where it is damaged or does not fit."""
    if path is None or (state := read_tensors(path, belongs_to=path.name)) is None:
        return None
    done, restarts = state.pop("done", torch.tensor(-1)), state.pop("restarts", torch.tensor(-1))
    if not (_fit(done, restarts, count, steps) and _fits(state, optimizer, len(restarts))):
        say_damaged(path)
        return None
    return Saved(done=int(done), restarts=restarts, state=state)


def _fit(done: Tensor, restarts: Tensor, count: int, steps: int) -> bool:
    """Whether `done` is a number of steps, and `restarts` are some of the `count` in their order."""
    if done.shape or restarts.ndim != 1 or (done.dtype, restarts.dtype) != (torch.int64, torch.int64):
        return False
    listed = restarts.tolist()
    return 0 < int(done) <= steps and bool(listed) and listed == sorted(set(listed) & set(range(count)))


def _moments(optimizer: torch.optim.Optimizer) -> set[str]:
    """What an optimizer keeps of each parameter besides its value, by torch's names."""
    match optimizer:
        case torch.optim.Adam():
            return {"step", "exp_avg", "exp_avg_sq"}
        case FusedRMSProp() | RMSPropOfOptax():
            return {"square_avg"}
    return {"momentum_buffer"}  # none without momentum


def _fits(state: Params, optimizer: torch.optim.Optimizer, restarts: int) -> bool:
    """Whether `state` holds the value of each parameter and the moments that `optimizer` keeps, of its shape and dtype,
    or a count of steps, all for this many restarts."""
    params, moments = params_of([optimizer]), _moments(optimizer)
    names = {name.removeprefix("0.") for name in state if name.startswith("0.")}
    if names not in ({"value"} | moments, {"value"} | (moments - {"momentum_buffer"})):
        return False
    if state.keys() != {f"{index}.{name}" for index in range(len(params)) for name in names}:
        return False
    for name, value in state.items():
        index, entry = name.split(".")
        if entry == "step":
            if value.shape or not value.is_floating_point() or not 1 <= float(value) <= _MAX_STEP:
                return False
        elif (value.shape, value.dtype) != ((restarts, *params[int(index)].shape[1:]), params[int(index)].dtype):
            return False
    return True


@torch.no_grad()
def restore(optimizer: torch.optim.Optimizer, state: Params) -> None:
    """Set the parameters of `optimizer` and its moments, in place, to what was saved."""
    params = params_of([optimizer])
    for name, value in state.items():
        index, entry = name.split(".")
        p = params[int(index)]
        if entry == "value":
            p.copy_(value)
        else:
            optimizer.state[p][entry] = value.to(p.device)
