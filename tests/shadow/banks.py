"""What the tests of the store build, here and in a process of their own: `python banks.py FOLDER LAST`."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import remanence.engine.ensembles.chunked
from remanence import DPGD, SGD, Data, Training
from remanence.models import initial_params, mlp
from remanence.releases import AllButOne
from remanence.shadow import ShadowBank, Store, build_bank

CHUNKS = 12


def records(first: int, count: int) -> Data:
    drawn = torch.Generator().manual_seed(0)
    x, y = torch.rand(400, 1, 8, 8, generator=drawn), torch.randint(10, (400,), generator=drawn)
    return Data(x=x, y=y, num_classes=10).take(slice(first, first + count))


def small_release(**changes: Any) -> AllButOne:
    """Trained with noise of its own for each chunk, which must come again after a kill."""
    model = mlp((1, 8, 8), 10, hidden=(5,))
    initial = initial_params(model, seed=0)
    training = Training(optimizer=SGD(lr=0.1), epochs=2, privacy=DPGD(clip=1.0, noise=0.1))
    fields: dict[str, Any] = {"model": model, "initial": initial, "training": training, "fixed": records(0, 20)}
    return AllButOne(final=initial, shape=(1, 8, 8), num_classes=10, **(fields | changes))


def public() -> Data:
    return records(100, 8 * CHUNKS - 3)


def build(folder: Path, release: AllButOne, **options: Any) -> ShadowBank:
    return build_bank(release, options.pop("public", public()), **({"seed": 7} | options), store=Store(folder=folder))


def write_slowly(last: int) -> None:
    """Let each write take a while, and end this process when the file of that number is filled and has no name yet."""
    written = []

    def fsync(_: int) -> None:
        written.append(1)
        time.sleep(0.05)
        if len(written) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync


if __name__ == "__main__":
    torch.set_num_threads(1)
    remanence.engine.ensembles.chunked.CPU_CHUNK = 8
    write_slowly(last=int(sys.argv[2]))
    build(Path(sys.argv[1]), small_release())
