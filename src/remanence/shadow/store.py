"""Shadow models on disk, so that an interrupted run resumes where it stopped.

A folder holds one bank: `bank.json` says what determines it, and each chunk of shadows is a safetensors file whose
metadata hold a digest of the bank, the chunk's index and its values. Every file is written under a temporary name and
then renamed, so a kill at any moment leaves complete files or none; a file that does not match its digest is trained
again, which is said. Two processes that build the same bank in one folder write the same bytes: both end right.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import final

from torch import Tensor

from remanence.caching import Ingredients, bytes_of, digest, say_damaged
from remanence.disk import check_safetensors, remove_leftovers, replace_bytes
from remanence.errors import BadInput


@final
@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder for one bank; another bank is refused with the names of what differs."""

    folder: Path

    def open(self, made_of: Ingredients) -> "Shards":
        """The shards of the bank with these ingredients, however many are there already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        recipe, shards = self.folder / "bank.json", Shards(folder=self.folder, bank=_digest(made_of))
        there = _read_ingredients(recipe) if recipe.exists() else None
        if there is not None:
            self._check(there, made_of)
            return shards
        if recipe.exists():
            if not shards.are_these():
                message = f"`{recipe}` is damaged, and the files beside it are of another bank: give another folder"
                raise BadInput(message, code="damaged-file", argument="store")
            say_damaged(recipe)
        replace_bytes(recipe, _text(made_of).encode())
        return shards

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
        """The weights (models, parameters) of the chunk at `start`; None where it is missing or damaged, which is
        said."""
        path = self._path(start)
        if not path.exists():
            return None
        if (weights := self._read(path, start)) is None:
            say_damaged(path)
        return weights

    def are_these(self) -> bool:
        """Whether the folder has no chunk of a bank, or one that is of this bank."""
        starts = [int(path.stem[8:]) for path in self.folder.glob("shadows-????????.safetensors")]
        return not starts or any(self._read(self._path(start), start) is not None for start in starts)

    def _read(self, path: Path, start: int) -> Tensor | None:
        from safetensors import SafetensorError, safe_open

        try:
            if not path.is_file():
                return None
            check_safetensors(path)
            with safe_open(path, "pt") as file:
                weights: Tensor = file.get_tensor("weights")
                stored, names = file.metadata(), list(file.keys())
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, MemoryError):
            return None
        same = (stored, names) == ({"digest": self._digest(start, weights)}, ["weights"])
        return weights if same else None

    def write(self, start: int, weights: Tensor) -> None:
        from safetensors.torch import save

        weights = weights.cpu().contiguous()
        # one entry only: safetensors writes several in no fixed order
        replace_bytes(self._path(start), save({"weights": weights}, {"digest": self._digest(start, weights)}))

    def _path(self, start: int) -> Path:
        return self.folder / f"shadows-{start:08}.safetensors"

    def _digest(self, start: int, weights: Tensor) -> str:
        return digest([f"{self.bank} {start} ".encode(), *bytes_of(weights)])


def _text(made_of: Ingredients) -> str:
    """What `bank.json` holds: the ingredients, and a digest of them all, by which damage is noticed."""
    all_of_them = {"bank": {"is": "all of these", "digest": _digest(made_of)}}
    return json.dumps(made_of | all_of_them, indent=1) + "\n"


def _digest(made_of: Ingredients) -> str:
    return digest([(json.dumps(made_of, indent=1) + "\n").encode()])


def _read_ingredients(path: Path) -> Ingredients | None:
    """What the bank in this folder is made of; None where that is damaged. Earlier versions wrote no digest of all."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
        made_of = {name: {"is": str(each["is"]), "digest": str(each["digest"])} for name, each in found.items()}
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None
    intact = made_of.pop("bank", None) is None or text == _text(made_of)
    return made_of if intact else None


def _shown(made_of: Ingredients, name: str) -> str:
    if name not in made_of:
        return "nothing"
    return f"{shorten(made_of[name]['is'], 240, placeholder=' …')} ({made_of[name]['digest'][:8]})"
