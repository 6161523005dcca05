"""Shadow models on disk, so that an interrupted run resumes where it stopped.

A folder holds one bank: `bank.json` says what determines it, and each chunk of shadows is a safetensors file whose
metadata hold a digest of the bank, the chunk's index and its values. Every file is written under a temporary name and
then renamed, so a kill at any moment leaves complete files or none; a file that does not match its digest is trained
again. A folder serves one process at a time.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import final

from torch import Tensor

from remanence.caching import Ingredients, bytes_of, digest
from remanence.errors import BadInput


@final
@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder for one bank; another bank is refused with the names of what differs."""

    folder: Path

    def open(self, made_of: Ingredients) -> "Shards":
        """The shards of the bank with these ingredients, however many are there already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for interrupted in self.folder.glob(".*.tmp"):
            interrupted.unlink()
        text = json.dumps(made_of, indent=1) + "\n"
        recipe = self.folder / "bank.json"
        if recipe.exists():
            self._check(_read_ingredients(recipe), made_of)
        else:
            _write(recipe, text.encode())
        return Shards(folder=self.folder, bank=digest([text.encode()]))

    def _check(self, there: Ingredients, made_of: Ingredients) -> None:
        changed = [name for name in {**there, **made_of} if there.get(name) != made_of.get(name)]
        if changed:
            changes = "; ".join(f"`{n}` changed: was {_shown(there, n)}, is {_shown(made_of, n)}" for n in changed)
            message = (
                f"`{self.folder}` holds the shadow models of another recipe ({changes}): "
                "give the old recipe, another folder for this one, or remove that folder"
            )
            raise BadInput(message, code="conflict", argument="store")


@final
@dataclass(frozen=True, kw_only=True)
class Shards:
    """The chunks of one bank, by the index of their first shadow."""

    folder: Path
    bank: str

    def read(self, start: int) -> Tensor | None:
        """The weights (models, parameters) of the chunk at `start`; None where it is missing, truncated or damaged."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path(start), "pt") as file:
                weights: Tensor = file.get_tensor("weights")
                stored = (file.metadata() or {}).get("digest")
        except (FileNotFoundError, SafetensorError):
            return None
        return weights if stored == self._digest(start, weights) else None

    def write(self, start: int, weights: Tensor) -> None:
        from safetensors.torch import save

        weights = weights.cpu().contiguous()
        # one entry only: safetensors writes several in no fixed order
        _write(self._path(start), save({"weights": weights}, {"digest": self._digest(start, weights)}))

    def _path(self, start: int) -> Path:
        return self.folder / f"shadows-{start:08}.safetensors"

    def _digest(self, start: int, weights: Tensor) -> str:
        return digest([f"{self.bank} {start} ".encode(), *bytes_of(weights)])


def _read_ingredients(path: Path) -> Ingredients:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: {"is": str(each["is"]), "digest": str(each["digest"])} for name, each in found.items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise BadInput(
            f"`{path}` is damaged: remove its folder, or give another one", code="damaged-file", argument="store"
        ) from None


def _shown(made_of: Ingredients, name: str) -> str:
    if name not in made_of:
        return "nothing"
    return f"{shorten(made_of[name]['is'], 240, placeholder=' …')} ({made_of[name]['digest'][:8]})"


def _write(path: Path, content: bytes) -> None:
    """Write `path` atomically and durably; on any error it stays as it was."""
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
            error.filename, error.filename2 = str(path), None  # the name that the caller knows
        raise
