"""SHA-256 of weights and of data, by which a record of an audit names what was audited."""

from hashlib import sha256
from pathlib import Path

import torch

from remanence.types import Data, Params

_BYTES = torch.uint8


def digest_file(path: Path) -> str:
    """The digest of a file's bytes."""
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_params(params: Params) -> str:
    """The digest of names, types, shapes and values, in the order of the names."""
    digest = sha256()
    for name in sorted(params):
        value = params[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.flatten().view(_BYTES).numpy().tobytes())
    return digest.hexdigest()


def digest_data(data: Data) -> str:
    """The digest of the records and their labels."""
    return digest_params({"x": data.x, "y": data.y})
