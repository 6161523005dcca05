"""The weights of an audited model from the files that people have.

Safetensors, state dicts and the usual wrappers around them: checkpoints with an optimizer beside the weights, prefixes
of wrapped models, shards with an index; and the .npz of federated clients (`dumps`). Nothing in a file is executed.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, final

import torch
from torch import Tensor, nn

from remanence.auditing.inputs.dumps import load_dump, sent_of
from remanence.errors import BadModelFile, listed
from remanence.models import layer_of, replaced_layers, tied_names
from remanence.releases._views import View
from remanence.releases.loading import check_same_tensors, descriptions, load_checkpoint
from remanence.types import Params

T = TypeVar("T", View, Tensor)
MayLack: TypeAlias = Literal["nothing", "anything", "last layers"]  # what of the model a file need not hold
Dicts: TypeAlias = Mapping[str, Mapping[str, T]]  # of named tensors, by the keys that lead to each
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights", "params", "")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
_COUNTERS = "num_batches_tracked"  # of BatchNorm: no output of an evaluated model depends on them
_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_MAX_INDEX = 2**24  # bytes


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseWeights:
    """Weights by the names of their model, and sentences on what was done to those in the file."""

    params: Params
    notes: tuple[str, ...]
    absent: tuple[str, ...] = ()  # from the file: of a client those before, of a base layers that were re-initialised


def load_release_weights(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    before: Params | None = None,
    gradient: bool = False,
    base: bool = False,
) -> ReleaseWeights:
    """The weights in `path` for `model`: safetensors, a state dict of torch or a checkpoint that holds one, shards with
    their index, a folder with one of these, or the .npz of a federated client. Floats come in float32, or in float64
    where all are.

    Given the weights `before`, what a client sends or a tuned model publishes may be a part of them, such as a head or
    adapters: the others are those before; and an .npz may hold differences. Of a `gradient` these are zeros, and notes
    say so. Of a `base` that the model was tuned from, the model's last layers are left out where the file lacks them or
    has others of another shape: they were re-initialised."""
    expected, notes, file = model.state_dict(), list[str](), _file_in(Path(path))
    may_lack: MayLack = "last layers" if base else "nothing" if before is None else "anything"
    if file.suffix == ".npz":
        params = load_dump(file, expected, notes, before=before)
    else:
        choose = partial(_chosen, expected=expected, tied=tied_names(model), notes=notes, may_lack=may_lack)
        params = (_from_shards if file.name.endswith(".index.json") else _from_file)(file, choose)
    absent = [name for name in expected if name not in params and not name.endswith(_COUNTERS)]
    if before is not None and absent:
        taken = "whose gradient was not sent" if gradient else "which are taken to be those before"
        notes.append(f"The file lacks {len(absent)} tensors, {taken}: {listed(absent)}.")
        params = before | params
    counters = {name: torch.zeros((), dtype=p.dtype) for name, p in expected.items() if name.endswith(_COUNTERS)}
    params = {name: (counters | params)[name] for name in expected if name in counters or name in params}
    return ReleaseWeights(
        params=_in_single_precision(params, notes, gradient=gradient), notes=tuple(notes), absent=tuple(absent)
    )


def _file_in(path: Path) -> Path:
    """The file itself, or the one of a folder that holds the weights."""
    if not path.is_dir():
        return path
    for name in _FILES:
        if (path / name).is_file():
            return path / name
    files = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES and each.is_file())
    if len(files) == 1:
        return files[0]
    names = ", ".join(each.name for each in files[:5]) or "none"
    message = f"the folder {str(path)!r} must hold one file of weights, such as model.safetensors, got {names}: name it"
    raise BadModelFile(message, code="missing-file", argument="path")


def _from_file(file: Path, choose: Callable[[Dicts[Any]], dict[str, Any]]) -> Params:
    try:
        return load_checkpoint(file, choose=choose)
    except BadModelFile as error:
        if error.code != "shape-mismatch" or not (part := re.search(r"-0*(\d+)-of-0*(\d+)\.", file.name)):
            raise
        message = (
            f"{str(file)!r} is part {part[1]} of {part[2]}: give the folder that holds them all, or its .index.json"
        )
        raise BadModelFile(message, code="shape-mismatch", argument="path") from None


def _from_shards(index: Path, choose: Callable[[Dicts[Any]], dict[str, Any]]) -> Params:
    """The tensors of all files that an index names, which must be beside it."""
    found: Params = {}
    for name in _shards(index):
        shard = load_checkpoint(index.parent / name, choose=lambda dicts: dict(next(iter(dicts.values()))))
        if twice := sorted(found.keys() & shard.keys()):
            message = f"the files of {str(index)!r} hold {twice[0]!r} twice: fetch them again"
            raise BadModelFile(message, code="damaged-file", argument="path")
        found |= shard
    try:
        return choose({"": found})
    except BadModelFile as error:
        raise BadModelFile(f"cannot use {str(index)!r}: {error}", code=error.code, argument="path") from None


def _shards(index: Path) -> list[str]:
    try:
        if index.stat().st_size > _MAX_INDEX:
            raise ValueError("it is too large")
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except OSError as error:
        message = f"cannot use {str(index)!r}: {error.strerror}; give the path of a file of weights"
        raise BadModelFile(message, code="missing-file", argument="path") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = f"{str(index)!r} must be the index of sharded weights, a JSON object with a `weight_map`"
        raise BadModelFile(message, code="damaged-file", argument="path") from None
    if odd := [name for name in names if not isinstance(name, str) or Path(name).name != name]:
        message = f"{str(index)!r} must name files beside it, got {str(odd[0])[:60]!r}: fetch it again"
        raise BadModelFile(message, code="unsafe-file", argument="path")
    return sorted(names)


def _chosen(
    dicts: Dicts[T],
    *,
    expected: Mapping[str, Tensor],
    tied: Mapping[str, str],
    notes: list[str],
    may_lack: MayLack,
) -> dict[str, T]:
    """The tensors of the dict that has those of the model, less what it `may_lack`, under the model's names; `notes`
    gets what was left out.

    Where none has them all, the dict that comes nearest is refused with what is missing in it.
    """
    needed = [name for name in expected if not name.endswith(_COUNTERS)]

    def lacking(option: tuple[str, str]) -> int:
        keys, prefix = option
        return sum(f"{prefix}{name}" not in dicts[keys] for name in needed)

    others = _PREFIXES if may_lack == "anything" else ()
    options = list(_options(dicts, needed, others))
    keys, prefix = min(options, key=lacking)  # the first of those that lack least
    tensors = dicts[keys]
    chosen = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    chosen = {name: value for name, value in chosen.items() if not name.endswith(_COUNTERS)}
    chosen |= {name: chosen[first] for name, first in tied.items() if first in chosen and name not in chosen}
    held = {name: p for name, p in expected.items() if not name.endswith(_COUNTERS)}
    replaced = replaced_layers(_shapes(chosen), _shapes(held)) if may_lack == "last layers" else ()
    if replaced:
        held = {name: p for name, p in held.items() if layer_of(name) not in replaced}
        chosen = {name: value for name, value in chosen.items() if name in held}
        layers = listed([f"`{layer}`" for layer in replaced])
        notes.append(
            f"It does not hold {layers}, the end of the model, or has another shape there: taken to be re-initialised, "
            "from weights that nobody knows."
        )
    check_same_tensors(descriptions(chosen), sent_of(held, chosen) if may_lack == "anything" else held)
    if keys:
        notes.append(f"The weights are those under `{keys}` in the file.")
    if prefix:
        notes.append(f"The prefix `{prefix}` of their names was left out.")
    if also := [".".join(option).strip(".") for option in options if option != (keys, prefix) and not lacking(option)]:
        where = listed([f"`{each}`" if each else "no key" for each in dict.fromkeys(also)])
        notes.append(
            f"It holds weights of the whole model under {where} too, which are not looked at: if these are what you "
            "publish, as averages (EMA) often are, save them as a file of their own."
        )
    if ignored := [name for name in tensors if not name.startswith(prefix)]:
        notes.append(f"{len(ignored)} tensors beside the model were ignored, such as `{ignored[0]}`.")
    return chosen


def _shapes(tensors: Mapping[str, T]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in tensors.items()}


def _options(dicts: Mapping[str, Iterable[str]], needed: list[str], others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The dicts, of which the names are given, with the prefixes that names may have in them, the likeliest first: that
    of the first name that is needed, and `others`."""

    def likely(keys: str) -> int:
        last = keys.rpartition(".")[2]
        return _WRAPPERS.index(last) if last in _WRAPPERS else len(_WRAPPERS)

    for keys in sorted(dicts, key=likely):
        endings = (name.removesuffix(needed[0]) for name in dicts[keys] if needed and name.endswith(needed[0]))
        for prefix in ["", *sorted({*others, *(each for each in endings if each.endswith("."))}, key=_unusual)]:
            yield keys, prefix


def _unusual(prefix: str) -> tuple[bool, int, str]:
    """Prefixes that wrappers are known to add come first, the shortest of them first."""
    remaining = prefix
    for known in _PREFIXES * prefix.count("."):
        remaining = remaining.removeprefix(known)
    return bool(remaining), len(prefix), prefix


def _in_single_precision(params: Params, notes: list[str], *, gradient: bool) -> Params:
    kinds = {p.dtype for p in params.values() if p.is_floating_point()}
    if kinds <= {torch.float32} or kinds == {torch.float64}:
        return params
    names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    held = "a gradient in {}; it is" if gradient else "weights in {}; they are"
    notes.append(f"The file holds {held.format(names)} audited in float32.")
    return {name: p.float() if p.is_floating_point() else p for name, p in params.items()}
