"""The files of weights that people have: each is read, with a note on what was done, or refused with the way out.

That what is read is what was saved is checked against the tensors that were given to torch or safetensors.
"""

import json
import pickle
import time
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from remanence.auditing.inputs.weights import load_release_weights
from remanence.errors import BadModelFile
from remanence.releases.loading import load_weights


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


NET = net()
STATE: dict[str, Tensor] = NET.state_dict()


def prefixed(prefix: str) -> dict[str, Tensor]:
    return OrderedDict((f"{prefix}{name}", value) for name, value in STATE.items())


def beside(key: str) -> dict[str, Any]:
    """A checkpoint with all that training scripts put beside the weights."""
    optimizer = torch.optim.Adam(NET.parameters())
    return {
        key: STATE,
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10).state_dict(),
        "args": Namespace(lr=0.1, path=Path("data")),
        "best": np.float64(0.3),
        "curve": np.arange(3.0),
        "seen": {1, 2},
        "raw": b"bytes",
        "rng": torch.get_rng_state(),
        "epoch": 3,
    }


def lightning(prefix: str) -> dict[str, Any]:
    return {
        "epoch": 1,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": prefixed(prefix),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_loop.batch_progress": {"total": {"ready": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {"best_model_score": torch.tensor(0.1)}},
        "optimizer_states": [torch.optim.SGD(NET.parameters(), momentum=0.9).state_dict()],
        "hyper_parameters": {"lr": 1e-3, "path": Path("data")},
    }


READ: dict[str, tuple[Callable[[], Any], list[str]]] = {
    **{prefix: (lambda prefix=prefix: prefixed(prefix), [prefix]) for prefix in ("module.", "_orig_mod.")},
    "module._orig_mod.": (lambda: prefixed("module._orig_mod."), ["module._orig_mod."]),
    "_orig_mod.module.": (lambda: prefixed("_orig_mod.module."), ["_orig_mod.module."]),
    **{
        key: (lambda key=key: beside(key), [f"under `{key}`"])
        for key in ("model", "state_dict", "model_state_dict", "net", "weights", "a key of one's own")
    },
    "lightning, model.": (lambda: lightning("model."), ["under `state_dict`", "`model.`"]),
    "lightning, net.": (lambda: lightning("net."), ["under `state_dict`", "`net.`"]),
}


def assert_read(path: Path, words: list[str]) -> None:
    found = load_release_weights(path, NET)
    assert list(found.params) == list(STATE)
    for name, value in STATE.items():
        assert torch.equal(found.params[name], value), name
    assert all(word in " ".join(found.notes) for word in words), found.notes


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("case", READ)
def test_checkpoints_of_every_protocol_are_read(case: str, protocol: int, tmp_path: Path) -> None:
    make, words = READ[case]
    torch.save(make(), tmp_path / "net.pt", pickle_protocol=protocol)
    assert_read(tmp_path / "net.pt", words)


OTHER: dict[str, tuple[Callable[[], Any], str, tuple[str, ...]]] = {
    "averages beside the model": (
        lambda: beside("model") | {"ema": averaged(), "best": averaged()},
        "model",
        ("ema", "best"),
    ),
    "averages in a wrapper": (
        lambda: {"model": STATE, "ema": {"decay": 0.9, "module": averaged()}},
        "model",
        ("ema.module",),
    ),
    "averages by a prefix": (
        lambda: {"state_dict": prefixed("net.") | {f"ema.{name}": p for name, p in averaged().items()}},
        "state_dict",
        ("state_dict.ema",),
    ),
}


def averaged() -> dict[str, Tensor]:
    return {name: p / 2 if p.is_floating_point() else p for name, p in STATE.items()}


@pytest.mark.parametrize("case", OTHER)
def test_other_weights_in_the_file_are_named(case: str, tmp_path: Path) -> None:
    make, keys, others = OTHER[case]
    torch.save(make(), tmp_path / "net.pt")
    assert_read(tmp_path / "net.pt", [f"under `{keys}`", *(f"`{other}`" for other in others), "file of their own"])


@pytest.mark.parametrize("case", READ)
def test_what_is_no_other_weights_is_not_named(case: str, tmp_path: Path) -> None:
    torch.save(READ[case][0](), tmp_path / "net.pt")
    assert not [note for note in load_release_weights(tmp_path / "net.pt", NET).notes if "file of their own" in note]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_state_dicts_of_every_protocol_are_loaded(protocol: int, tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "net.pt", pickle_protocol=protocol)
    for name, value in load_weights(tmp_path / "net.pt", expected=NET).items():
        assert torch.equal(value, STATE[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_fewer_bits_are_cast_and_said(dtype: torch.dtype, kind: str, tmp_path: Path) -> None:
    low = {name: v.to(dtype) if v.is_floating_point() else v for name, v in STATE.items()}
    path = tmp_path / f"net.{kind}"
    if kind == "pt":
        torch.save(low, path)
    else:
        save_file(low, path)
    found = load_release_weights(path, NET)
    name = str(dtype).removeprefix("torch.")
    assert found.notes == (f"The file holds weights in {name}; they are audited in float32.",)
    for name, value in low.items():
        assert torch.equal(found.params[name], value.to(STATE[name].dtype))


def test_a_nan_of_eight_bits_is_refused(tmp_path: Path) -> None:
    low = {name: v.to(torch.float8_e4m3fn) if v.is_floating_point() else v for name, v in STATE.items()}
    low["0.bias"] = torch.full((4,), torch.nan).to(torch.float8_e4m3fn)
    torch.save(low, tmp_path / "net.pt")
    assert refusal(tmp_path / "net.pt").code == "not-finite"


def test_shared_and_strided_tensors_and_metadata_are_read(tmp_path: Path) -> None:
    pool = torch.cat([STATE["0.bias"], STATE["3.bias"]])
    shared = STATE | {"0.bias": pool[:4], "3.bias": pool[4:], "0.weight": STATE["0.weight"].t().contiguous().t()}
    torch.save(shared, tmp_path / "net.pt")
    assert_read(tmp_path / "net.pt", [])
    save_file(STATE, tmp_path / "net.safetensors", metadata={"format": "pt", "note": "x" * 5000})
    assert_read(tmp_path / "net.safetensors", [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_more_than_ten_thousand_tensors_are_read_within_two_seconds(kind: str, tmp_path: Path) -> None:
    many = {f"layers.{i}.weight": torch.tensor([float(i)]) for i in range(12_000)}
    path = tmp_path / f"many.{kind}"
    if kind == "pt":
        torch.save(many, path)
    else:
        save_file(many, path)
    start = time.thread_time()
    found = load_weights(path)
    assert time.thread_time() - start < 2
    assert torch.equal(torch.cat([found[name] for name in many]), torch.arange(12_000.0))


def refusal(path: Path, load: Callable[[Path], object] = lambda path: load_release_weights(path, NET)) -> BadModelFile:
    with pytest.raises(BadModelFile) as caught:
        load(path)
    assert len(str(caught.value)) < 900
    assert str(caught.value).isprintable()
    return caught.value


def old(content: object) -> Callable[[Path], object]:
    return lambda path: torch.save(content, path, _use_new_zipfile_serialization=False)


def npz(**arrays: Any) -> bytes:
    buffer = BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a whole model": (lambda path: torch.save(NET, path), "Sequential"),
    "a whole model in a checkpoint": (lambda path: torch.save({"model": NET, "epoch": 1}, path), "'model' is a whole"),
    "a whole model, old format": (old(NET), "model.state_dict()"),
    "old format": (old(STATE), "torch.load(path, weights_only=True)"),
    "a bare pickle": (lambda path: path.write_bytes(pickle.dumps(NET)), "bare pickle"),
    "an npz": (lambda path: path.write_bytes(npz(w=np.ones(2))), "safetensors.numpy.save_file"),
    "a pointer": (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "a page": (lambda path: path.write_bytes(b"<!DOCTYPE html><html></html>"), "web page"),
    "gzip": (lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(30)), "unpack"),
    "GGUF": (lambda path: path.write_bytes(b"GGUF\x03" + bytes(30)), "quantised"),
    "another dtype": (lambda path: torch.save({"0.weight": torch.ones(4, 3).to(torch.complex64)}, path), ".to_dense()"),
    "sparse": (lambda path: torch.save({**STATE, "0.weight": torch.eye(4, 3).to_sparse()}, path), ".to_dense()"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_way_out(case: str, tmp_path: Path) -> None:
    write, words = REFUSED[case]
    write(tmp_path / "net.pt")
    error = refusal(tmp_path / "net.pt")
    assert error.code == "unsupported-format"
    assert words in str(error)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_with_the_way_out(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(NET), tmp_path / "net.pt")
    assert "torch.jit.load(path).state_dict()" in str(refusal(tmp_path / "net.pt"))


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict", "my key"])
def test_the_inner_dict_to_save_is_named_by_its_key(key: str, tmp_path: Path) -> None:
    torch.save({"epoch": 3, "optimizer": {"param_groups": []}, key: STATE}, tmp_path / "net.pt")
    quoted = f"'{key}'" if " " in key else f'"{key}"'
    assert f"torch.save(checkpoint[{quoted}], path)" in str(refusal(tmp_path / "net.pt", load_weights))


def test_one_part_of_several_is_refused_with_the_way_out(tmp_path: Path) -> None:
    names, part = list(STATE), "model-0000{}-of-00002.safetensors"
    for number, held in ((1, names[:3]), (2, names[3:])):
        save_file({name: STATE[name] for name in held}, tmp_path / part.format(number))
    weight_map = {name: part.format(1 if name in names[:3] else 2) for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    error = refusal(tmp_path / part.format(1))
    assert error.code == "shape-mismatch"
    assert "part 1 of 2: give the folder" in str(error)
    assert_read(tmp_path, [])
    assert ".index.json" in str(refusal(tmp_path / "model.safetensors.index.json", load_weights))
