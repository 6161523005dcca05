"""Searches on disk, so that one that was stopped resumes where it was, and ends with the same bits.

Each has a file of its own, named by a digest of all that its values follow from: what another attack, release or seed
left in a folder is never loaded. A file is written at once or not at all.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remanence.caching import digest, kind_of, our_code, records, users_code, weights, words
from remanence.engine.cuda import params_of
from remanence.releases.loading import load_weights, save_weights
from remanence.types import Data, Params


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


def save(path: Path, optimizer: torch.optim.Optimizer, restarts: Tensor, done: int) -> None:
    """Write all that the next step needs after `done` of them: variables, moments and which `restarts` remain."""
    state: Params = {"done": torch.tensor(done), "restarts": restarts}
    for index, p in enumerate(params_of([optimizer])):
        moments = {name: value for name, value in optimizer.state[p].items() if isinstance(value, Tensor)}
        state |= {f"{index}.{name}": value for name, value in {"value": p.detach(), **moments}.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(path, state)


def load(path: Path | None) -> tuple[int, Tensor, Params] | None:
    """Steps done, remaining restarts and the state for `restore`; None where nothing was saved."""
    if path is None or not path.exists():
        return None
    state = load_weights(path)
    return int(state.pop("done")), state.pop("restarts"), state


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
