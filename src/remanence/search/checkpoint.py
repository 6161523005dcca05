"""Searches kept on disk, so that one that was stopped goes on where it was, and ends with the same bits.

Each has a file of its own, named by a digest of all that its numbers follow from: what another attack, release or seed
left in a folder is never met. A file is written at once or not at all.
"""

from pathlib import Path

import torch
from torch import Tensor

from remanence.caching import digest, kind_of, our_code, records, users_code, weights, words
from remanence.engine.cuda import params_of
from remanence.releases import KnowsFixed, KnowsTraining
from remanence.releases.loading import load_weights, save_weights
from remanence.training import Training
from remanence.types import Params


def file_of(folder: Path | None, attack: object, release: KnowsTraining, training: Training, seed: int) -> Path | None:
    """The file of this search; None where nothing is to be kept."""
    if folder is None:
        return None
    device = next(iter(release.final.values())).device
    users = [*release.model.modules(), training.optimizer, training.loss, training.privacy]
    parts = [
        words(repr(attack)),
        words(repr(release.model)),
        words(repr(training)),
        weights(release.initial),
        weights(release.final),
        words(torch.__version__, our_code("training", "engine", "search", "attacks"), users_code(users)),
        words(kind_of(device)),
        words(str(seed)),
        *([records(release.fixed)] if isinstance(release, KnowsFixed) else []),
    ]
    return Path(folder) / f"search-{digest(part['digest'].encode() for part in parts)}.safetensors"


def keep(path: Path, stepper: torch.optim.Optimizer, done: int) -> None:
    """All that the next step needs, behind so many of them."""
    state: Params = {"done": torch.tensor(done)}
    for place, p in enumerate(params_of([stepper])):
        remembered = {name: value for name, value in stepper.state[p].items() if isinstance(value, Tensor)}
        state |= {f"{place}.{name}": value for name, value in {"value": p, **remembered}.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(path, state)


@torch.no_grad()
def resumed(path: Path | None, stepper: torch.optim.Optimizer) -> int:
    """How many steps have been done: the parameters and what `stepper` remembers are brought there."""
    if path is None or not path.exists():
        return 0
    state, params = load_weights(path), params_of([stepper])
    done = int(state.pop("done"))
    for name, value in state.items():
        place, what = name.split(".")
        p = params[int(place)]
        if what == "value":
            p.copy_(value)
        else:
            stepper.state[p][what] = value.to(p.device)
    return done
