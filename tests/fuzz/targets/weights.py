"""Model files: safetensors and torch zips, as `audit model` loads them."""

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from remanence.auditing.inputs.weights import ReleaseWeights, load_release_weights
from targets import Target


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
        "hyper_parameters": {"lr": 0.1},
        "callbacks": {},
        "epoch": 3,
    }
    return {
        "net.safetensors": save({name: value.contiguous() for name, value in state.items()}),
        "half.safetensors": save({name: value.half() for name, value in state.items()}),
        "net.pt": torch_file(state),
        "wrapped.pth": torch_file({f"module._orig_mod.{name}": value for name, value in state.items()}),
        "checkpoint.pt": torch_file({"model": state, "optimizer": optimizer, "epoch": 3}),
        "lightning.ckpt": torch_file(lightning),
    }


def crafted() -> Iterable[tuple[str, bytes]]:
    return ()


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
        b"q\x00h\x00\x86",
        b"PK\x03\x04",
        b"PK\x05\x06",
    ),
)
