"""What determines the bits of a result on disk, in words and by digests: a cache is valid where the digests agree.

Tensors that a run resumes from are written with a digest of what they belong to and of all that is in the file: what
any damage left of one is never mistaken for it.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from remanence import models
from remanence.disk import check_safetensors, remove_leftovers, replace_bytes
from remanence.engine.ensembles.chunked import chunk_size
from remanence.progress import say
from remanence.releases import KnowsAllButOne, KnowsFixed
from remanence.types import Data, Params

Ingredients: TypeAlias = dict[str, dict[str, str]]  # by name: what it `is` in words, and its `digest`


def ingredients(release: KnowsFixed, public: Data, *, seed: int) -> Ingredients:
    """All that determines the bits of a shadow bank, each with its own digest."""
    fixed, training = release.fixed, release.training
    shapes = [(name, tuple(p.shape)) for name, p in release.model.named_parameters()]
    users = [*release.model.modules(), training.optimizer, training.loss, training.privacy]
    return {
        "fixed": records(fixed),
        "public": records(public),
        "model": words(repr(release.model), repr(shapes)),
        "initial": weights(release.initial) if isinstance(release, KnowsAllButOne) else words("drawn for each shadow"),
        "training": words(repr(training)),
        "code": words(
            f"torch {torch.__version__} and the code that trains", our_code("training", "engine"), users_code(users)
        ),
        "dtype": words(str(fixed.x.dtype)),
        "device": words(kind_of(fixed.x.device)),
        "chunk": words(f"{chunk_size(release.model, fixed)} models at once"),
        "seed": words(str(seed)),
    }


def records(data: Data) -> dict[str, str]:
    """The shape and the digest of records."""
    shape = "x".join(map(str, data.shape))
    return {"is": f"{len(data)} records of {shape}", "digest": digest([*bytes_of(data.x), *bytes_of(data.y)])}


def weights(params: Params) -> dict[str, str]:
    """The size and the digest of parameters."""
    count = sum(p.numel() for p in params.values())
    parts = (part for name in sorted(params) for part in (name.encode(), *bytes_of(params[name])))
    return {"is": f"{len(params)} tensors of {count} numbers", "digest": digest(parts)}


def words(text: str, *more: str) -> dict[str, str]:
    """`text` and the digest of it and of `more`; addresses of objects, which mean nothing, are left out."""
    parts = [re.sub(r" at 0x[0-9a-f]+", "", part) for part in (text, *more)]
    return {"is": " ".join(parts[0].split()), "digest": digest(part.encode() for part in parts)}


@cache  # the code that this process runs, even if the files change meanwhile
def our_code(*folders: str) -> str:
    """The source of `models` and of these folders of the package: another version may round differently."""
    folder_of_models = Path(models.__file__).parent
    files = [
        path for folder in ("models", *folders) for path in sorted(folder_of_models.with_name(folder).rglob("*.py"))
    ]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def users_code(parts: Iterable[object]) -> str:
    """The source of the classes and functions that are not torch's or ours: two layers of a user may have the same
    `repr` and compute different things."""
    kinds = {part if inspect.isfunction(part) else type(part) for part in parts}
    foreign = [kind for kind in kinds if kind.__module__.split(".")[0] not in ("torch", "remanence", "builtins")]
    return "\n".join(sorted(map(_source, foreign)))


def _source(kind: type | Callable[..., object]) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed at a prompt: no file holds it
        return kind.__qualname__


def kind_of(device: torch.device) -> str:
    """The name of a GPU, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def bytes_of(tensor: Tensor) -> tuple[bytes, memoryview]:
    """The dtype and shape of a tensor, and its values."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return f"{tensor.dtype} {tuple(tensor.shape)} ".encode(), flat.view(torch.uint8).numpy().data


def digest(parts: Iterable[bytes | memoryview]) -> str:
    """The BLAKE2 hash of the concatenated parts, 128 bits in hexadecimal."""
    hasher = blake2b(digest_size=16)
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def write_tensors(path: Path, tensors: Params, *, belongs_to: str) -> None:
    """Write `tensors` to `path`, whole or not at all, with a digest of them and of what they belong to."""
    from safetensors.torch import save

    stored = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # one entry only: safetensors writes several in no fixed order
    replace_bytes(path, save(stored, {"digest": _content(stored, belongs_to)}))


def read_tensors(path: Path, *, belongs_to: str) -> Params | None:
    """What `write_tensors` wrote for the same purpose; None where nothing is, and where it is damaged, which is said:
    the caller makes it again. A folder in its place is put aside."""
    from safetensors import SafetensorError, safe_open

    remove_leftovers(path.parent)
    try:
        if not path.is_file():
            raise FileNotFoundError if not path.exists() else IsADirectoryError
        check_safetensors(path)
        with safe_open(path, "pt") as file:
            tensors: Params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            stored = file.metadata()
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, MemoryError):
        stored = None
    if stored is not None and stored == {"digest": _content(tensors, belongs_to)}:
        return tensors
    say_damaged(path)
    return None


def say_damaged(path: Path) -> None:
    """Say that a file of ours is damaged and what it held is made again; a folder in its place is put aside."""
    say(f"note: `{path}` is damaged, so what it held is made again from the start")
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.{os.getpid()}.aside"))


def _content(tensors: Params, belongs_to: str) -> str:
    return digest([belongs_to.encode(), b"\0", weights(tensors)["digest"].encode()])
