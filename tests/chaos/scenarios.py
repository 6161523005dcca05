"""Real runs to be killed: commands of the program at tiny sizes, what they make, and where they store it meanwhile."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, final

import numpy as np
import torch
from files import contents
from torch.nn.functional import cross_entropy

import remanence
from remanence.data import load

TESTS = Path(__file__).parents[1]
# The program, with searches that are stored five times a second and take 800 steps, however fast the machine is.
PROGRAM = """
from functools import partial
from tiny_experiments import cut, made_data, tiny_experiment
from remanence import SGD, Training
from remanence.attacks import Fitting, RecoNN
from remanence.auditing.attempts import applicability
from remanence.auditing.attempts.resuming import Steps
from remanence.cli import main
from remanence.releases import all_but_one
from remanence.search import solver
from remanence_recipes import RECIPES

solver._SAVE_EVERY = 0.2
applicability._PROBE = 0.0
choose = Steps.choose
Steps.choose = lambda self, attack, steps: choose(self, attack, min(steps, 800))
bank = tiny_experiment(
    "bank",
    reveal=all_but_one,
    per_victim=1,
    split=partial(cut, partial(made_data, 710), public=640),
    attack=RecoNN(hidden=(8,), fitting=Fitting(epochs=1)),
    training=Training(optimizer=SGD(lr=0.1), epochs=300),
)
RECIPES["bank"] = lambda scale: [bank]
main()
"""
NET = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""
_TIMES = re.compile(r"seconds|date|time|duration|started|finished|^commit$")  # a commit may come in between


@final
@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command, run in a folder that `prepare` fills; it makes the folder `out`, and stores its work in `store`."""

    name: str
    command: tuple[str, ...]
    kills: tuple[str, ...]  # names of signals to the command, or the process below it that is killed
    store: str = "store"
    prepare: Callable[[Path], object] = lambda folder: None

    def start(self, folder: Path) -> "subprocess.Popen[str]":
        paths = os.pathsep.join([str(Path(remanence.__file__).parents[1]), str(TESTS)])
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        own |= {"RAY_AUTH_TOKEN": token_hex(32), "RAY_worker_niceness": "0"}  # or a busy machine starts no worker
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *self.command],
            cwd=folder,
            env=os.environ | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # heard also in the background
        )

    def finished(self, folder: Path) -> bool:
        """Whether an audit wrote all that it writes: it would refuse to write it again."""
        return (folder / "out" / "report.json").exists()

    def stored(self, folder: Path) -> list[Path]:
        """The files that a repeated command resumes from."""
        return sorted(path for path in (folder / self.store).rglob("*") if path.is_file() and path.name[0] != ".")

    def result(self, folder: Path) -> dict[str, Any]:
        """What the command made, by file: JSON without times and dates, images and tables as bytes, and the store."""
        made = {name: _without_times(name, content) for name, content in contents(folder / "out").items()}
        kept = {f"{self.store}/{name}": content for name, content in contents(folder / self.store).items()}
        return {name: content for name, content in (made | kept).items() if content is not None}


def _without_times(name: str, content: bytes) -> object:
    if name.endswith(".html"):  # it is rendered from the others
        return None
    return _strip(json.loads(content)) if name.endswith(".json") else content


def _strip(value: Any) -> Any:
    match value:
        case dict():
            return {key: _strip(each) for key, each in value.items() if not _TIMES.search(key)}
        case list():
            return [_strip(each) for each in value]
        case str():
            return re.sub(r"\d[\d.,]*( of [\d,]+)? s(econds)?\b", "some seconds", value)
    return value


def _own_model(folder: Path) -> None:
    """A small MLP after twenty steps on twelve digits, the digits, and others."""
    (folder / "nets.py").write_text(NET)
    scope: dict[str, Any] = {}
    exec(NET, scope)
    digits, order = load("digits"), torch.randperm(1797, generator=torch.Generator().manual_seed(3))
    private, others = digits.take(order[:12]), digits.take(order[12:412])
    for name, data in (("private", private), ("others", others)):
        np.savez(folder / f"{name}.npz", x=data.x.numpy(), y=data.y.numpy())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = scope["make"]()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(20):
        optimizer.zero_grad()
        cross_entropy(net(private.x), private.y).backward()
        optimizer.step()
    torch.save({"model": net.state_dict(), "epoch": 20}, folder / "net.pt")


SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
_RUN = ("--out", "out", "--store", "store")
_AUDIT = (
    "--weights",
    "net.pt",
    "--data",
    "private.npz",
    "--held-out",
    "others.npz",
    "--attack",
    "KKT",
    "--budget",
    "1h",
)
SCENARIOS: Mapping[str, Scenario] = {
    each.name: each
    for each in (
        Scenario(
            name="run, searches",
            command=(
                "run",
                "tian2025.mlp_100",
                "--scale",
                "smoke",
                "--experiment",
                "MLP, 10 images, image scales",
                *_RUN,
            ),
            kills=SIGNALS,
        ),
        Scenario(name="run, shadow models", command=("run", "bank", *_RUN), kills=SIGNALS),
        Scenario(
            name="audit model",
            command=("audit", "model", "nets:make", *_AUDIT, "--out", "out"),
            kills=SIGNALS,
            store="out.searches",
            prepare=_own_model,
        ),
        Scenario(
            name="run over Ray",
            command=("run", "bank", "--backend", "ray", *_RUN),
            kills=(*SIGNALS, "ray::_call", "ray::_call", "raylet"),
        ),
        Scenario(
            name="experiments over Ray",
            command=("run", "tian2025.mlp_100", "--scale", "smoke", "--backend", "ray", *_RUN),
            kills=(*SIGNALS, "ray::_call", "ray::_call", "raylet"),
        ),
    )
}
