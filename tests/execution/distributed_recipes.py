"""Recipes that workers import themselves: experiments of a tenth of a second, some of which die or refuse once."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tiny_experiments import (
    Guess,
    cut,
    made_data,
    tiny_experiment,
    tiny_measurement,
    tiny_outcome,
    tiny_shadow_experiment,
)

from remanence import SGD, Training
from remanence.errors import BadInput
from remanence.experiments import Experiment, Outcome, Recipe, Scale, Trial
from remanence.progress import say

FOLDER = "DISTRIBUTED_TESTS"  # the environment variable with the folder of marks; without it nobody dies or refuses


def _first_time(name: str) -> bool:
    """Whether nobody asked before for this name, on any worker."""
    if FOLDER not in os.environ:
        return False
    try:
        (Path(os.environ[FOLDER]) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _note(name: str) -> None:
    if FOLDER in os.environ:
        with (Path(os.environ[FOLDER]) / name).open("a") as calls:
            calls.write("x")


def _die_once(trial: Trial) -> Outcome:
    """A worker is killed after it has trained its shadow models and attacked."""
    _note(f"attacked with seed {trial.seed}")
    if _first_time("died"):
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome()


def _said(seed: int, device: torch.device) -> Outcome:
    say("  half of it is done")
    return tiny_outcome(seed, device)


def _refuse_once(seed: int, device: torch.device) -> Outcome:
    """It is refused when the test says so."""
    if _first_time("refused"):
        end = time.monotonic() + 60
        while not (Path(os.environ[FOLDER]) / "may be refused").exists() and time.monotonic() < end:
            time.sleep(0.05)
        raise BadInput("`rate` is wrong: give another", code="out-of-range", argument="rate")
    return tiny_outcome(seed, device)


def _counted(seed: int, device: torch.device) -> Outcome:
    _note("counted")
    return tiny_outcome(seed, device)


def several(scale: Scale) -> Sequence[Experiment]:
    """An attack, two that learn from one bank, one of which dies, and a measurement."""
    split, training = partial(cut, partial(made_data, 400), public=300), Training(optimizer=SGD(lr=0.1), epochs=20)
    learning = tiny_shadow_experiment("learning", split=split, training=training)
    dying = replace(learning, label="dying", evaluations=(*learning.evaluations, _die_once))
    return [tiny_experiment("guess"), learning, tiny_measurement("measured", run=_said), dying]


def refusing(scale: Scale) -> Sequence[Experiment]:
    """A measurement that is counted, and one that refuses once."""
    return [tiny_measurement("counted", run=_counted), tiny_measurement("refusing", run=_refuse_once)]


def greys(scale: Scale) -> Sequence[Experiment]:
    return [tiny_experiment(f"grey {grey:g}", attack=Guess(grey=grey)) for grey in (0.4, 0.6)]


def measured(scale: Scale) -> Sequence[Experiment]:
    return [tiny_measurement("grey")]


RECIPES: dict[str, Recipe] = {"several": several, "refusing": refusing, "greys": greys}
RECIPES |= {"made2020.greys": greys, "made2020.measured": measured}  # of a paper
