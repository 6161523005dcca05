"""Shadow models kept on disk, so that a broken run goes on where it stopped.

A folder holds one bank: `bank.json` says what it is made of, and each chunk of shadows is a safetensors file whose
metadata hold a digest of the recipe, its place and its numbers. Every file is filled under a temporary name and then
renamed, so a kill at any moment leaves whole files or none; what does not fit its digest is made again. A folder serves
one process at a time.
"""

import inspect
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from textwrap import shorten
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence import nets
from remanence.errors import BadInput
from remanence.release import KnowsFixed, KnowsRest
from remanence.training.stacked import chunk_size
from remanence.types import Data, Params

Ingredients: TypeAlias = dict[str, dict[str, str]]  # by name: what it `is` in words, and its `digest`


@final
@dataclass(frozen=True, kw_only=True)
class Store:
    """`folder` holds one bank; another one is refused with the names of what changed."""

    folder: Path

    def open(self, made_of: Ingredients) -> "Shards":
        """The shards of the bank that is made of this, whatever is there already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left_by_a_kill in self.folder.glob(".*.tmp"):
            left_by_a_kill.unlink()
        text = json.dumps(made_of, indent=1) + "\n"
        recipe = self.folder / "bank.json"
        if recipe.exists():
            self._check(_read_ingredients(recipe), made_of)
        else:
            _write(recipe, text.encode())
        return Shards(folder=self.folder, bank=_digest([text.encode()]))

    def _check(self, there: Ingredients, made_of: Ingredients) -> None:
        changed = [name for name in {**there, **made_of} if there.get(name) != made_of.get(name)]
        if changed:
            told = "; ".join(f"`{n}` changed: was {_said(there, n)}, is {_said(made_of, n)}" for n in changed)
            raise BadInput(
                f"`{self.folder}` holds the shadow models of another recipe ({told}): "
                "give the old recipe, another folder for this one, or remove that folder"
            )


@final
@dataclass(frozen=True, kw_only=True)
class Shards:
    """The chunks of one bank, by the place of their first shadow."""

    folder: Path
    bank: str

    def read(self, start: int) -> Tensor | None:
        """The rows of weights of the chunk at `start`, or None where it is missing, cut short or damaged."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path(start), "pt") as file:
                weights: Tensor = file.get_tensor("weights")
                kept = (file.metadata() or {}).get("digest")
        except (FileNotFoundError, SafetensorError):
            return None
        return weights if kept == self._digest(start, weights) else None

    def write(self, start: int, weights: Tensor) -> None:
        from safetensors.torch import save

        weights = weights.cpu().contiguous()
        # one entry only: safetensors writes several in no fixed order
        _write(self._path(start), save({"weights": weights}, {"digest": self._digest(start, weights)}))

    def _path(self, start: int) -> Path:
        return self.folder / f"shadows-{start:08}.safetensors"

    def _digest(self, start: int, weights: Tensor) -> str:
        return _digest([f"{self.bank} {start} ".encode(), *_bytes_of(weights)])


def ingredients(release: KnowsFixed, public: Data, *, seed: int) -> Ingredients:
    """All that determines the bits of a bank, each with its own digest."""
    fixed, training = release.fixed, release.training
    device = fixed.x.device
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    shapes = [(name, tuple(p.shape)) for name, p in release.model.named_parameters()]
    users = [*release.model.modules(), training.optimizer, training.loss, training.privacy]
    return {
        "fixed": _records(fixed),
        "public": _records(public),
        "model": _words(repr(release.model), repr(shapes)),
        "initial": _weights(release.initial) if isinstance(release, KnowsRest) else _words("drawn for each shadow"),
        "training": _words(repr(training)),
        "code": _words(f"torch {torch.__version__} and the code that trains", _our_code(), _users_code(users)),
        "dtype": _words(str(fixed.x.dtype)),
        "device": _words(kind),
        "chunk": _words(f"{chunk_size(release.model, fixed)} models at once"),
        "seed": _words(str(seed)),
    }


def _records(data: Data) -> dict[str, str]:
    shape = "x".join(map(str, data.shape))
    return {"is": f"{len(data)} records of {shape}", "digest": _digest([*_bytes_of(data.x), *_bytes_of(data.y)])}


def _weights(params: Params) -> dict[str, str]:
    count = sum(p.numel() for p in params.values())
    digest = _digest(part for name in sorted(params) for part in (name.encode(), *_bytes_of(params[name])))
    return {"is": f"{len(params)} tensors of {count} numbers", "digest": digest}


def _words(text: str, *more: str) -> dict[str, str]:
    """`text` for the reader; `more` counts too. The address of an object is nothing of its content."""
    parts = [re.sub(r" at 0x[0-9a-f]+", "", part) for part in (text, *more)]
    return {"is": " ".join(parts[0].split()), "digest": _digest(part.encode() for part in parts)}


@cache  # what this process runs, whatever becomes of the files meanwhile
def _our_code() -> str:
    """What trains a model, down to the last bit: an update may round otherwise."""
    files = [Path(nets.__file__), *sorted(Path(nets.__file__).with_name("training").glob("*.py"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def _users_code(parts: Iterable[object]) -> str:
    """The source of what neither torch nor we wrote: two layers of a user may look the same and compute otherwise."""
    written = {part if inspect.isfunction(part) else type(part) for part in parts}
    own = [each for each in written if each.__module__.split(".")[0] not in ("torch", "remanence", "builtins")]
    return "\n".join(sorted(map(_source, own)))


def _source(written: type | Callable[..., object]) -> str:
    try:
        return inspect.getsource(written)
    except (OSError, TypeError):  # typed at a prompt: no file holds it
        return written.__qualname__


def _bytes_of(tensor: Tensor) -> tuple[bytes, memoryview]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return f"{tensor.dtype} {tuple(tensor.shape)} ".encode(), flat.view(torch.uint8).numpy().data


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _read_ingredients(path: Path) -> Ingredients:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: {"is": str(each["is"]), "digest": str(each["digest"])} for name, each in found.items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise BadInput(f"`{path}` is damaged: remove its folder, or give another one") from None


def _said(made_of: Ingredients, name: str) -> str:
    if name not in made_of:
        return "nothing"
    return f"{shorten(made_of[name]['is'], 240, placeholder=' …')} ({made_of[name]['digest'][:8]})"


def _write(path: Path, content: bytes) -> None:
    """Give `path` this content at once and for good; on any error it is as before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # the name that the reader knows
        raise
