"""Every command that works for long ends at SIGTERM and Ctrl-C with the code of the signal; audits share no folder, and
one whose folder vanishes makes it again."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Call, assert_refused
from files import contents
from torch import nn

from remanence.auditing import request
from remanence.data import load
from remanence.disk import one_process

MODEL = ("audit", "model", "nets:make", "--weights", "net.pt", "--data", "private.npz", "--held-out", "others.npz")
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "tiny"),
    "demo": ("demo",),
    "audit data": ("audit", "data", "--data", "digits"),
    "audit model": (*MODEL, "--attack", "FirstLayer"),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A linear model of digits as a module and a checkpoint, and the digits."""
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # beside the module
    digits = load("digits")
    for name, part in (("private", slice(0, 8)), ("others", slice(8, 208))):
        np.savez(tmp_path / f"{name}.npz", x=digits.take(part).x.numpy(), y=digits.take(part).y.numpy())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).state_dict(), tmp_path / "net.pt")
    return tmp_path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_ends_a_command_with_its_code_and_one_line(
    command: str, number: int, code: int, call: Call, tiny: None, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)

    before = contents(files)
    monkeypatch.setattr("remanence.experiments.run.run_experiment", signalled)
    monkeypatch.setattr(request, "audit", signalled)
    said = call(*COMMANDS[command], "--out", "run")
    assert (said.code, said.out) == (code, "")
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith("interrupted")
    assert contents(files) == before


def test_two_audits_in_one_folder_are_one_too_many(call: Call, files: Path) -> None:
    with one_process(files / "run"):
        before = contents(files)
        assert_refused(call(*COMMANDS["audit model"], "--out", "run"), f"(process {os.getpid()})", "`--out`")
        assert contents(files) == before


@pytest.mark.slow
def test_an_audit_whose_folder_vanishes_makes_it_again_and_says_so(
    call: Call, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = request.audit

    def vanishing(*given: Any, **named: Any) -> Any:
        shutil.rmtree(files / "run")
        shutil.rmtree(files / "run.searches", ignore_errors=True)
        return real(*given, **named)

    monkeypatch.setattr(request, "audit", vanishing)
    said = call(*COMMANDS["audit model"], "--budget", "20s", "--out", "run")
    assert said.code == 0
    assert "note: `run` vanished and is made again\n" in said.err
    assert sorted(contents(files / "run"))[-2:] == ["report.html", "report.json"]
