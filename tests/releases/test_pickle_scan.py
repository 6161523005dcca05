"""Pickles that would run something, or that describe impossible tensors: made by hand, opcode by opcode."""

import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_files import ORDERED, REBUILD, TEN_GB, name, op, refused, state, tensor, tensor_again, write_zip
from torch import Tensor, nn

from remanence.errors import BadModelFile
from remanence.releases.loading import load_checkpoint, load_weights


def test_torch_reads_what_the_assembler_writes(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "by_hand.pt", state("w", tensor()), {"version": b"3\n"})
    assert torch.equal(load_weights(path)["w"], torch.load(path, weights_only=True)["w"])


class Payload:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def payloads(marker: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that create `marker` when opened, each with the word that its refusal inside a zip must show."""
    touch, code = f"touch {marker}", f"open({str(marker)!r}, 'w').close()"
    system, evaluate = name("os", "system"), name("builtins", "eval")
    dumped = {f"protocol {p}": (pickle.dumps({"w": Payload(touch)}, protocol=p), "") for p in range(6)}
    return dumped | {
        "reduce": (b"\x80\x02" + system + op((touch,)) + b"R.", "os.system"),
        "eval": (b"\x80\x02" + evaluate + op((code,)) + b"R.", "builtins.eval"),
        "stack global": (b"\x80\x04" + op("os") + op("system") + b"\x93" + op((touch,)) + b"R.", "os.system"),
        "inst": (b"(S'" + touch.encode() + b"'\nios\nsystem\n.", "STRING"),
        "inst with a string": (b"(" + op(touch) + b"ios\nsystem\n.", "INST"),
        "obj": (b"(" + system + op(touch) + b"o.", "os.system"),
        "obj of an allowed class": (b"(" + name("collections", "OrderedDict") + b"o.", "OBJ"),
        "newobj": (b"\x80\x02" + name("subprocess", "Popen") + op((touch,)) + b"\x81.", "subprocess.Popen"),
        "newobj of an allowed class": (b"\x80\x02" + name("collections", "OrderedDict") + b")\x81.", "NEWOBJ"),
        "newobj_ex": (b"\x80\x04" + name("collections", "OrderedDict") + b")}\x92.", "NEWOBJ_EX"),
        "build": (b"\x80\x02" + tensor() + b"}" + op("__setstate__") + op("x") + b"sb.", "BUILD"),
        "extension": (b"\x80\x02\x82\x01.", "EXT1"),
        "persistent id of a payload": (b"\x80\x02" + op(("storage", system, "0", "cpu", 4)) + b"Q.", "os.system"),
        "persistent id in text": (b"Pos.system\n.", "PERSID"),
        "persistent id of a module": (b"\x80\x02" + op(("module", ORDERED, "0", "cpu")) + b"Q.", "persistent id"),
        "storage called": (b"\x80\x02" + name("torch", "FloatStorage") + op((TEN_GB,)) + b"R.", "FloatStorage"),
        "string called": (b"\x80\x02" + op("os.system") + op((touch,)) + b"R.", "calls a str"),
        "dict called": (b"\x80\x02" + ORDERED + op((touch,)) + b"R.", "calls a dict"),
        "hooks": (b"\x80\x02" + REBUILD + op((1, 2, system)) + b"R.", "os.system"),
        "behind a good state": (state("w", tensor())[:-1] + b"0" + system + op((touch,)) + b"R.", "POP"),
        "beside a tensor": (state("w", tensor(), "x", system + op((touch,)) + b"R"), "os.system"),
        "dotted attribute": (name("torch", "serialization.os.system") + op((touch,)) + b"R.", "serialization.os"),
        "odd escapes": (name("torch", "\\d\x1b[31m") + b".", "\\x1b"),
        "script module": (name("__torch__.Net", "Net") + b")\x81.", "__torch__.Net"),
    }


@pytest.mark.parametrize("case", payloads(Path("marker")))
def test_a_payload_is_refused_and_not_run(case: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    stream, word = payloads(marker)[case]
    (tmp_path / "bare.pt").write_bytes(stream)
    refused(tmp_path / "bare.pt", "unsupported-format")
    refused(write_zip(tmp_path / "zipped.pt", stream), "unsafe-file", word)
    refused(
        write_zip(tmp_path / "hidden.pt", state("w", tensor(), "x", stream.removesuffix(b"."))), "unsafe-file", word
    )
    assert not marker.exists()


def first(dicts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return next(iter(dicts.values()))


UNREAD = (
    "newobj of an allowed class",
    "newobj_ex",
    "storage called",
    "odd escapes",
    "script module",
)  # names of no program


@pytest.mark.parametrize("case", payloads(Path("marker")))
def test_a_payload_beside_the_weights_of_a_checkpoint_is_not_run(case: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "checkpoint.pt"
    stream = payloads(marker)[case][0].removesuffix(b".").removeprefix(b"\x80\x02")
    write_zip(path, state("state_dict", state("w", tensor())[2:-1], "x", stream))
    if case in UNREAD:
        assert list(load_checkpoint(path, choose=first)) == ["w"]
    else:
        with pytest.raises(BadModelFile):
            load_checkpoint(path, choose=first)
    assert not marker.exists()


@pytest.mark.parametrize("case", ["protocol 0", "protocol 2", "protocol 5", "eval", "stack global", "inst", "obj"])
def test_the_payloads_are_real(case: str, tmp_path: Path) -> None:
    pickle.loads(payloads(tmp_path / "marker")[case][0])
    assert (tmp_path / "marker").exists()


def test_the_formats_of_old_are_refused_unread(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    weights = {"w": torch.ones(2), "x": Payload(f"touch {marker}")}
    torch.save(weights, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "old.tar").write_bytes(b"storages".ljust(257, b"\0") + b"ustar" + bytes(300))
    (tmp_path / "weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    for file in ("legacy.pt", "old.tar", "weights.h5"):
        refused(tmp_path / file, "unsupported-format", "save_file")
    assert not marker.exists()


def momentum() -> dict[str, Any]:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), momentum=0.9)
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


class Labelled(Tensor):
    pass


NOT_PLAIN: dict[str, tuple[Callable[[], Any], str]] = {
    "model": (lambda: nn.Linear(2, 2), "unsafe-file"),
    "tensor": (lambda: torch.ones(2), "unsupported-format"),
    "list": (lambda: [torch.ones(2)], "unsupported-format"),
    "checkpoint": (
        lambda: {"state_dict": nn.Linear(2, 2).state_dict(), "optimizer": momentum(), "epoch": 3, "loss": [0.5, None]},
        "unsupported-format",
    ),
    "number": (lambda: {"w": torch.ones(2), "epoch": 3}, "unsupported-format"),
    "names that are numbers": (lambda: {0: torch.ones(2)}, "unsupported-format"),
    "sparse": (lambda: {"w": torch.eye(3).to_sparse()}, "unsafe-file"),
    "quantised": (lambda: {"w": torch.eye(3).to(torch.float8_e4m3fnuz)}, "unsafe-file"),
    "meta": (lambda: {"w": torch.ones(3, device="meta")}, "unsafe-file"),
    "subclass": (lambda: {"w": torch.ones(3).as_subclass(Labelled)}, "unsafe-file"),
    "complex": (lambda: {"w": torch.ones(3, dtype=torch.complex64)}, "unsafe-file"),
    "array": (lambda: OrderedDict(w=torch.ones(3).numpy()), "unsafe-file"),
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_what_is_not_a_flat_dict_of_plain_tensors_is_refused(case: str, tmp_path: Path) -> None:
    make, code = NOT_PLAIN[case]
    torch.save(make(), tmp_path / "odd.pt")
    refused(tmp_path / "odd.pt", code)


LAUGHS = b")q\x00" + b"h\x00h\x00\x86q\x00" * 200  # a tuple of 2**200 tuples
ZIP_LIES: dict[str, tuple[bytes, str]] = {
    "10 GB of storage": (state("w", tensor(numel=TEN_GB)), "unsafe-file"),
    "storage too short": (state("w", tensor(numel=5)), "unsafe-file"),
    "storage too long": (state("w", tensor(numel=3, shape=(3,), stride=(1,))), "unsafe-file"),
    "storage missing": (state("w", tensor(key="9")), "unsafe-file"),
    "storage outside": (state("w", tensor(key="../data.pkl")), "unsafe-file"),
    "negative storage": (state("w", tensor(numel=-4, shape=(0,), stride=(1,))), "unsafe-file"),
    "expanded view": (state("w", tensor(shape=(TEN_GB,), stride=(0,))), "unsafe-file"),
    "view beyond the end": (state("w", tensor(stride=(4, 1))), "unsafe-file"),
    "offset beyond the end": (state("w", tensor(offset=1)), "unsafe-file"),
    "negative offset": (state("w", tensor(offset=-1)), "unsafe-file"),
    "negative stride": (state("w", tensor(stride=(-2, 1))), "unsafe-file"),
    "fewer strides": (state("w", tensor(stride=(1,))), "unsafe-file"),
    "negative shape": (state("w", tensor(shape=(-2, -2))), "unsafe-file"),
    "absurd shape of nothing": (state("w", tensor(shape=(2**62, 2**62, 0), stride=(0, 0, 0))), "unsafe-file"),
    "shape of tuples": (state("w", tensor(shape=(LAUGHS, LAUGHS))), "unsafe-file"),
    "key of tuples": (state(LAUGHS, tensor()), "unsafe-file"),
    "keys that collide": (state(*(k * (2**61 - 1) for k in range(2, 20_002))), "unsafe-file"),
    "a name twice": (state("w", tensor(), "w", tensor()), "unsafe-file"),
    "one storage under many names": (
        state(*(x for i in range(5000) for x in (f"w{i}", tensor_again(i)))),
        "unsafe-file",
    ),
    "terminal escapes": (state("w\x1b[2J", tensor()), "unsafe-file"),
    "no end": (state("w", tensor())[:-1], "damaged-file"),
    "cut argument": (b"\x80\x02X\xff\xff\xff\x7fabc", "damaged-file"),
    "empty stack": (b"\x80\x02R.", "damaged-file"),
    "unset memo": (b"\x80\x02h\x07.", "damaged-file"),
    "item of a tensor": (b"\x80\x02" + tensor() + op("a") + op("b") + b"s.", "unsafe-file"),
    "append to a dict": (b"\x80\x02}Na.", "unsafe-file"),
    "itself": (b"\x80\x02}q\x00" + op("w") + b"h\x00s.", "unsupported-format"),
    "no pickle": (b"", "damaged-file"),
    "a million lists": (b"\x80\x02" + b"]" * 1_000_000, "too-large"),
    "a million marks": (b"(" * 350_000 + b"t" * 350_000 + b".", "too-large"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ZIP_LIES)
def test_a_torch_zip_whose_pickle_lies_is_refused(case: str, tmp_path: Path) -> None:
    stream, code = ZIP_LIES[case]
    refused(write_zip(tmp_path / "lie.pt", stream, {"data/big": bytes(4096)}), code)


@pytest.mark.slow
@pytest.mark.parametrize("case", ZIP_LIES)
def test_a_checkpoint_whose_pickle_lies_is_refused_as_soon(case: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "lie.pt", ZIP_LIES[case][0], {"data/big": bytes(4096)})
    start = time.thread_time()
    with pytest.raises(BadModelFile):
        load_checkpoint(path, choose=first)
    assert time.thread_time() - start < 2


def test_dicts_that_name_each_other_are_looked_at_once(tmp_path: Path) -> None:
    """A thousand times the same dict of a thousand times the same dict, and a tensor at the end."""
    again = b"".join(op(f"k{i}") + b"h\x01" for i in range(1000))
    inner = b"}q\x01(" + op("w") + tensor() + b"u"
    middle = b"}q\x02(" + op("inner") + inner + again + b"u"
    outer = b"".join(op(f"m{i}") + b"h\x02" for i in range(1000))
    stream = b"\x80\x02}q\x03(" + op("middle") + middle + outer + op("itself") + b"h\x03u."
    found: list[str] = []

    def choose(dicts: dict[str, dict[str, Any]]) -> dict[str, Any]:
        found.extend(dicts)
        return first(dicts)

    assert list(load_checkpoint(write_zip(tmp_path / "loops.pt", stream), choose=choose)) == ["w"]
    assert found == ["middle.inner"]
