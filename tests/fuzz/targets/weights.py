"""Model files: safetensors and torch zips, as `audit model` loads them."""

from argparse import Namespace
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import torch
from hostile_files import name as pickled_name
from hostile_files import op, tensor
from hostile_files import state as hostile
from safetensors.torch import save
from torch import Tensor, nn

from remanence.auditing.inputs.weights import ReleaseWeights, load_release_weights
from targets import CANARY, Target


def network() -> nn.Module:
    """The network whose weights the files hold."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


_NETWORK = network()


def torch_file(content: object, **options: object) -> bytes:
    """What `torch.save` writes."""
    buffer = BytesIO()
    torch.save(content, buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def seeds() -> Mapping[str, bytes]:
    state = _NETWORK.state_dict()
    optimizer = torch.optim.Adam(_NETWORK.parameters()).state_dict()
    lightning = {
        "state_dict": {f"model.{name}": value for name, value in state.items()},
        "hyper_parameters": {"lr": 0.1, "path": Path("data")},
        "callbacks": {},
        "loops": {"fit_loop": {"state_dict": {}}},
        "epoch": 3,
    }
    checkpoint = {"model": state, "optimizer": optimizer, "args": Namespace(lr=0.1), "seen": {1}, "raw": b"x"}
    pool = torch.cat([state["0.bias"], state["3.bias"]])
    shared = {**state, "0.bias": pool[:4], "3.bias": pool[4:]}
    eight = {n: v.to(torch.float8_e4m3fn) if v.is_floating_point() else v for n, v in state.items()}
    return {
        "net.safetensors": save({name: value.contiguous() for name, value in state.items()}),
        "half.safetensors": save({name: value.half() for name, value in state.items()}),
        "eight.safetensors": save(eight, {"format": "pt"}),
        "net.pt": torch_file(state),
        "wrapped.pth": torch_file({f"module._orig_mod.{name}": value for name, value in state.items()}),
        "checkpoint.pt": torch_file({"model": state, "optimizer": optimizer, "epoch": 3}),
        "lightning.ckpt": torch_file(lightning),
        "eight.pt": torch_file(eight),
        "shared.pt": torch_file(shared),
        **{f"protocol{n}.pt": torch_file(checkpoint, pickle_protocol=n) for n in (3, 4, 5)},
    }


def crafted() -> Iterable[tuple[str, bytes]]:
    """Files that people have and that are refused, a pickle that makes the canary, and pickles that take long."""
    state = _NETWORK.state_dict()
    yield "old.pt", torch_file(state, _use_new_zipfile_serialization=False)
    yield "module.pt", torch_file(_NETWORK)
    yield "module_inside.pt", torch_file({"model": _NETWORK})
    yield "page.pt", b"<!DOCTYPE html>"
    runs = pickled_name("os", "system") + op((f"touch {CANARY}",)) + b"R"
    by_words = op("os") + op("system") + b"\x93" + op((f"touch {CANARY}",)) + b"R"
    streams = {
        "runs": b"\x80\x02" + runs + b".",
        "runs_beside": hostile("w", tensor(), "x", runs),
        "runs_by_words": b"\x80\x04" + by_words + b".",
        "globals": b"\x80\x02" + b"ca\nb\n" * 400_000,
        "calls": b"\x80\x02" + b"ca\nb\n)R" * 190_000,
        "words": b"\x80\x04" + b"\x8c\x01a\x8c\x01b\x93" * 190_000,
        "tuples": b"(" * 290_000 + b"t" * 290_000 + b".",
    }
    for each, stream in streams.items():
        buffer = BytesIO()
        with ZipFile(buffer, "w") as archive:
            archive.writestr("m/data.pkl", stream)
            archive.writestr("m/data/0", bytes(16))
        yield f"{each}.pt", buffer.getvalue()


def parse(path: Path) -> ReleaseWeights:
    return load_release_weights(path, _NETWORK)


def sound(parsed: object) -> None:
    """What is parsed has the names and shapes of the network, and finite values."""
    assert isinstance(parsed, ReleaseWeights)
    expected: dict[str, Tensor] = _NETWORK.state_dict()
    assert list(parsed.params) == list(expected)
    for name, value in parsed.params.items():
        assert value.shape == expected[name].shape
        assert value.isfinite().all()
    assert all(len(note) < 500 and note.isprintable() for note in parsed.notes)


TARGET = Target(
    parse=parse,
    seeds=seeds,
    crafted=crafted,
    sound=sound,
    max_seconds=2.0,
    words=(
        b"cos\nsystem\n",
        b"c__builtin__\neval\n",
        b"R",
        b"b",
        b"\x81",
        b"\x8c\x02os\x8c\x06system\x93",
        b"\x94",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"q\x00h\x00\x86",
        b"PK\x03\x04",
        b"PK\x05\x06",
    ),
)
