"""`remanence inspect`: exit code 0 where nothing is flagged, 3 where something is, 2 for wrong inputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ROOT, Call, assert_refused
from torch import nn

NET = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inspected_nets.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    torch.save(net.state_dict(), tmp_path / "honest.pt")
    np.savez(tmp_path / "honest.npz", *[value.numpy() for value in net.state_dict().values()])
    trap = net.state_dict() | {"1.weight": torch.ones(32, 64) / 64, "1.bias": torch.linspace(-0.5, 0.0, 32)}
    torch.save(trap, tmp_path / "trap.pt")
    return tmp_path


@pytest.mark.parametrize("name", ["honest.pt", "honest.npz"])
def test_an_honest_model_passes(call: Call, files: Path, name: str) -> None:
    said = call("inspect", "inspected_nets:make", "--weights", name, "--shape", "1,8,8")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("nothing flagged")


def test_a_trap_is_flagged_with_the_code_of_a_gate(call: Call, files: Path) -> None:
    said = call("inspect", "inspected_nets:make", "--weights", "trap.pt", "--json")
    assert said.code == 3
    answer = json.loads(said.out)
    assert {"parallel-rows", "graded-biases"} <= {flag["code"] for flag in answer["flags"]}
    assert "parallel-rows" in call("inspect", "inspected_nets:make", "--weights", "trap.pt").out


def test_wrong_inputs_are_refused(call: Call, files: Path) -> None:
    assert_refused(call("inspect", "inspected_nets:make", "--weights", "none.pt"), "none.pt")
    assert_refused(call("inspect", "no_module:make", "--weights", "trap.pt"), "no_module")
    shape = call("inspect", "inspected_nets:make", "--weights", "trap.pt", "--shape", "1,x")
    assert_refused(shape, "--shape", "1,28,28")


def test_a_warning_of_python_is_one_line_without_source(files: Path) -> None:
    (files / "warning_nets.py").write_text(f"import warnings\n\nwarnings.warn('odd times')\n{NET}")
    command = [sys.executable, "-m", "remanence", "inspect", "warning_nets:make", "--weights", "honest.pt"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "default::UserWarning:warning_nets"}
    ran = subprocess.run(command, cwd=files, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "warning: odd times\n")
    ran = subprocess.run([*command, "--debug"], cwd=files, env=env, capture_output=True, text=True, check=False)
    assert "warnings.warn" in ran.stderr
