"""A completed experiment whose scores are known, and its result."""

from typing import Any

import numpy as np
import torch
from tiny_experiments import Guess, tiny_experiment
from torch import Tensor

from remanence import Data, Reconstruction, evaluate
from remanence.experiments import Completed, Finding, Outcome, run_experiment
from remanence.experiments.checks import caveats
from remanence.experiments.results import Result
from remanence.experiments.summary import result_of
from remanence.metrics import MSE, PSNR, Metric, hungarian

PRIVATE = 40
LOST = 4  # withheld records that got no candidate


def made_completed(truth: Data, unrelated: Data, x: Tensor, *, metrics: tuple[Metric, ...] = (MSE, PSNR)) -> Completed:
    experiment = tiny_experiment("made")
    found = Reconstruction(x=x)
    finding = Finding(
        release=run_experiment(experiment).finding.release,
        attack=Guess(grey=0.25),
        public=unrelated.take(slice(0, 7)),
        truth=truth,
        reconstruction=found,
        scores=evaluate(found, truth, unrelated=unrelated, matching=hungarian, metrics=metrics),
        seconds=1.0,
    )
    outcome = Outcome(finding=finding, caveats=tuple(caveats(finding)))
    return Completed(experiment=experiment, outcome=outcome, seconds=1.23456, device=torch.device("cpu"))


def made(completed: Completed, **changes: Any) -> Result:
    fields = {"recipe": "made.up", "scale": "smoke", "seed": 7, "command": "remanence run made.up"}
    return result_of(completed, **(fields | changes))


def finite(values: Tensor) -> np.ndarray[Any, Any]:
    array = values.double().numpy()
    return array[np.isfinite(array)]
