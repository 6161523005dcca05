"""What a run leaves to be resumed from: searches, shadow models and what they are made of.

One that is damaged is said to be so, and made again: nothing but a refusal that names the folder may come of it.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from remanence.caching import write_tensors
from remanence.search import checkpoint
from remanence.shadow import Store
from targets import Target

SEARCH, SHARD, BANK = "search-00.safetensors", "shadows-00000000.safetensors", "bank.json"
MADE_OF = {"seed": {"is": "0", "digest": "ab"}, "model": {"is": "Linear", "digest": "cd"}}
COUNT, STEPS = 3, 10


def optimizer() -> torch.optim.Optimizer:
    """Adam after one step, on three restarts of four values."""
    variables = [torch.nn.Parameter(torch.ones(COUNT, 4)), torch.nn.Parameter(torch.ones(COUNT, 2, 2))]
    made = torch.optim.Adam(variables, lr=0.1)
    sum(p.square().sum() for p in variables).backward()  # type: ignore[union-attr]
    made.step()
    return made


def sealed(tensors: Mapping[str, Tensor]) -> bytes:
    """A search with the right digest, whatever is in it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / SEARCH
        write_tensors(path, dict(tensors), belongs_to=SEARCH)
        return path.read_bytes()


@cache
def seeds() -> Mapping[str, bytes]:
    with TemporaryDirectory() as folder:
        path = Path(folder)
        checkpoint.save(path / SEARCH, optimizer(), torch.arange(COUNT), 5)
        Store(folder=path).open(MADE_OF).write(0, torch.arange(8.0).reshape(2, 4))
        return {name: (path / name).read_bytes() for name in (SEARCH, SHARD, BANK)}


def parse(path: Path) -> list[object]:
    with TemporaryDirectory() as folder:
        for name, content in seeds().items():
            (Path(folder) / name).write_bytes(path.read_bytes() if name == path.name else content)
        shards = Store(folder=Path(folder)).open(MADE_OF)
        resumed = optimizer()
        if (saved := checkpoint.load(Path(folder) / SEARCH, resumed, COUNT, STEPS)) is not None:
            resumed = of_restarts(saved.restarts)
            checkpoint.restore(resumed, saved.state)
            resumed.step()
        return [saved, shards.read(0)]


def of_restarts(restarts: Tensor) -> torch.optim.Optimizer:
    """The optimizer of the restarts that remain."""
    made = optimizer()
    for p in made.param_groups[0]["params"]:
        grad = p.grad[restarts]
        made.state[p] = {name: v if v.ndim == 0 else v[restarts] for name, v in made.state[p].items()}
        p.data, p.grad = p.data[restarts], None
        p.grad = grad
    return made


def sound(parsed: object) -> None:
    """What is resumed is a search within its steps, and shadows as they were."""
    assert isinstance(parsed, list)
    saved, shard = parsed
    assert saved is None or 0 < saved.done <= STEPS
    assert shard is None or torch.equal(shard, torch.arange(8.0).reshape(2, 4))


def crafted() -> Iterable[tuple[str, bytes]]:
    """Searches with the right digest and the wrong content."""
    from safetensors.torch import load

    good = load(seeds()[SEARCH])
    odd = [
        *(torch.tensor(value) for value in (0, -1, 10**9, 0.5, 1j, True)),
        *(
            torch.zeros(0),
            torch.zeros(COUNT, 4),
            torch.zeros(COUNT, dtype=torch.complex64),
            torch.full((4,), 1e308, dtype=torch.float64),
        ),
        *(torch.tensor([0, 0]), torch.tensor([2, 1]), torch.tensor([0, 9]), torch.tensor([True, False])),
        *(torch.arange(3, dtype=kind) for kind in (torch.uint8, torch.int16, torch.float64, torch.bfloat16)),
    ]
    for name in good:
        yield SEARCH, sealed({key: value for key, value in good.items() if key != name})
        for value in odd:
            yield SEARCH, sealed(good | {name: value})
    for name in ("0.", ".value", "0.a.b", "9.value", "-1.value", "\N{SUPERSCRIPT TWO}.value", "\x1b[2J", "0"):
        yield SEARCH, sealed(good | {name: torch.zeros(COUNT, 4)})
    yield SEARCH, sealed({})
    for content in (
        b"",
        b"{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"seed": 1}',
        b'{"seed": {"is": "\\ud800", "digest": 1}}',
    ):
        yield BANK, content
    yield BANK, b'{"' + b"\\u001b[2J" * 20_000 + b'": {"is": "a", "digest": "b"}}'


def made(random: Random) -> tuple[str, bytes]:
    from safetensors.torch import load

    good = load(seeds()[SEARCH])
    name = random.choice(list(good))
    shape = random.choice([(), (COUNT,), (COUNT, 4), (1, 4), (0,), tuple(good[name].shape)])
    kind = random.choice([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64, torch.float16])
    value = torch.full(shape, random.choice([0, 1, -1, 5, 1e4]), dtype=torch.float64)
    return SEARCH, sealed(good | {name: value.to(kind)})


TARGET = Target(
    parse=parse,
    seeds=seeds,
    crafted=crafted,
    made=made,
    sound=sound,
    words=(b'"dtype":"F64"', b'"shape":[0]', b'"digest":"', b'"is":', b'"__metadata__"'),
)
