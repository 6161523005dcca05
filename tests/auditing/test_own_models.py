"""Models as users name them, and weights from the files that people have."""

import json
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import save_file
from torch import Tensor, nn

from remanence.auditing.inputs.models import load_model, load_release_weights
from remanence.errors import BadModelFile

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    def forward(self, x):
        return self.fc(x)

class Sized(nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()

def make():
    return Net()

def broken():
    raise RuntimeError("no GPU")

class Zoo:
    @staticmethod
    def small():
        return Net()

net = make()
number = 3
def pair():
    return 1, 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the user's modules, under names of this test alone."""
    name = f"user_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_pkg").mkdir()
    (tmp_path / f"{name}_pkg" / "nets.py").write_text(SOURCE)
    (tmp_path / f"{name}_needs.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / f"{name}_raises.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # taken away again after the test
    return tmp_path / name


@pytest.mark.parametrize("spec", [":Net", ":make", ":net", ":Zoo.small", "_pkg.nets:Net", ".py:Net"])
def test_a_model_is_a_class_a_function_or_a_module(spec: str, folder: Path) -> None:
    state = torch.get_rng_state()
    model = load_model(f"{folder.name}{spec}")
    assert list(model.state_dict()) == ["fc.weight", "fc.bias"]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("", "wrong-type"),
        (":", "wrong-type"),
        ("_none:Net", "missing-file"),
        ("_needs:Net", "missing-file"),
        ("_raises:Net", "bad-input"),
        (":Nett", "unknown-name"),
        (":Sized", "wrong-type"),
        (":broken", "bad-input"),
        (":number", "wrong-type"),
        (":pair", "wrong-type"),
    ],
)
def test_what_is_no_model_is_refused(spec: str, code: str, folder: Path) -> None:
    with refused(code, "model"):
        load_model(f"{folder.name}{spec}")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


STATE = net().state_dict()


def with_prefix(prefix: str, state: dict[str, Any] = STATE) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in state.items()}


def optimizer() -> dict[str, Any]:
    model = net()
    adam = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 1, 4, 4)).sum().backward()
    adam.step()
    return adam.state_dict()


def lightning() -> dict[str, Any]:
    return {
        "epoch": 3,
        "global_step": 12,
        "pytorch-lightning_version": "2.1",
        "state_dict": with_prefix("model.") | {"criterion.weight": torch.ones(3)},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'val'}": {"best_model_score": torch.tensor(0.3)}},
        "optimizer_states": [optimizer()],
        "lr_schedulers": [],
        "hyper_parameters": Namespace(lr=1e-3, path=Path("data"), best=np.float64(0.2), sizes={1, 2}),
    }


CHECKPOINTS: dict[str, Callable[[], Any]] = {
    "state dict": lambda: STATE,
    "state_dict": lambda: {"state_dict": STATE, "optimizer": optimizer(), "epoch": 3, "loss": [0.5, None]},
    "model": lambda: {"model": STATE, "optimizer": optimizer(), "args": Namespace(lr=0.1)},
    "model_state_dict": lambda: {"optimizer_state_dict": optimizer(), "model_state_dict": STATE},
    "in two dicts": lambda: {"model": {"state_dict": STATE}},
    "data parallel": lambda: {"state_dict": with_prefix("module.")},
    "compiled": lambda: with_prefix("_orig_mod."),
    "compiled and parallel": lambda: with_prefix("module._orig_mod."),
    "a prefix of its own": lambda: {"state_dict": with_prefix("student.backbone.")},
    "with an average": lambda: {"ema": {k: v + 1 for k, v in STATE.items()}, "state_dict": STATE},
    "lightning": lightning,
    "no counters": lambda: {name: value for name, value in STATE.items() if "num_batches" not in name},
    "parameters": lambda: {name: nn.Parameter(v) if v.is_floating_point() else v for name, v in STATE.items()},
    "beside a number": lambda: STATE | {"epoch": 3},
}


def assert_same(found: dict[str, Tensor], *, atol: float = 0.0) -> None:
    assert list(found) == list(STATE)
    for name, value in STATE.items():
        torch.testing.assert_close(found[name], value, rtol=0.0, atol=atol)


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_checkpoints_give_their_weights(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(CHECKPOINTS[case](), tmp_path / "net.ckpt")
    monkeypatch.setattr(torch, "load", None)
    found = load_release_weights(tmp_path / "net.ckpt", net())
    assert_same(found.params)
    said = {"state dict": 0, "lightning": 3, "compiled": 1, "data parallel": 2, "beside a number": 0}
    assert len(found.notes) == said.get(case, len(found.notes))
    net().load_state_dict(found.params)


def test_half_precision_is_cast_and_said(tmp_path: Path) -> None:
    half = {name: v.bfloat16() if v.is_floating_point() else v for name, v in STATE.items()}
    for saved in (
        half,
        {name: v.bfloat16() for name, v in half.items()},
    ):  # counters too
        save_file(saved, tmp_path / "net.safetensors")
        found = load_release_weights(tmp_path / "net.safetensors", net())
        assert "bfloat16" in found.notes[0]
        assert_same(found.params, atol=0.01)


def shards(folder: Path, prefix: str = "", kind: str = "safetensors") -> Path:
    names = list(STATE)
    parts = {f"model-{k}.{kind}": names[k::2] for k in (0, 1)}
    for file, part in parts.items():
        save = save_file if kind == "safetensors" else torch.save
        save({f"{prefix}{name}": STATE[name].clone() for name in part}, folder / file)
    index = folder / ("model.safetensors.index.json" if kind == "safetensors" else "pytorch_model.bin.index.json")
    weight_map = {f"{prefix}{name}": file for file, part in parts.items() for name in part}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_and_folders_are_one_model(kind: str, tmp_path: Path) -> None:
    index = shards(tmp_path, "model.", kind)
    for path in (index, tmp_path):
        assert_same(load_release_weights(path, net()).params)


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    with refused("missing-file", "path"):
        load_release_weights(tmp_path, net())
    torch.save(STATE, tmp_path / "best.pth")
    assert_same(load_release_weights(tmp_path, net()).params)
    torch.save(STATE, tmp_path / "last.pth")
    with refused("missing-file", "path"):
        load_release_weights(tmp_path, net())


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_files_that_are_not_of_the_model_or_run_code_are_refused(tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "bad.pt"
    bad: dict[str, Any] = {
        "unsafe-file": {"state_dict": STATE, "hparams": Payload(marker)},
        "shape-mismatch": {"state_dict": {name: v for name, v in STATE.items() if name != "3.bias"}},
        "unsupported-format": {"epoch": 3},
    }
    for code, content in bad.items():
        torch.save(content, path)
        with refused(code, "path"):
            load_release_weights(path, net())
    torch.save({"state_dict": STATE | {"4.weight": torch.ones(2)}}, path)
    with pytest.raises(BadModelFile, match="unexpected"):
        load_release_weights(path, net())
    assert not marker.exists()


def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    index = shards(tmp_path)
    for name, code in (("../model-0.safetensors", "unsafe-file"), ("gone.safetensors", "missing-file")):
        index.write_text(json.dumps({"weight_map": {"w": name}}))
        with refused(code, "path"):
            load_release_weights(index, net())
    for text in ("[]", "{", '{"weight_map": 3}', "[" * 100_000):
        index.write_text(text)
        with refused("damaged-file", "path"):
            load_release_weights(index, net())
