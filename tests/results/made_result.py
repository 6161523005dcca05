"""A cell whose result is known, and its record."""

from typing import Any

import numpy as np
import torch
from tiny_cells import Guess, tiny_cell
from torch import Tensor

from remanence import Data, Reconstruction, evaluate
from remanence.audit.checks import caveats
from remanence.audit.finding import Finding
from remanence.experiments import CellResult, run_cell
from remanence.experiments.results import Record, record
from remanence.metrics import MSE, PSNR, Metric, hungarian

PRIVATE = 40
LOST = 4  # withheld records that got no candidate


def made_result(truth: Data, unrelated: Data, x: Tensor, *, metrics: tuple[Metric, ...] = (MSE, PSNR)) -> CellResult:
    cell = tiny_cell("made")
    found = Reconstruction(x=x)
    finding = Finding(
        release=run_cell(cell).finding.release,
        attack=Guess(grey=0.25),
        public=unrelated.take(slice(0, 7)),
        truth=truth,
        reconstruction=found,
        scores=evaluate(found, truth, unrelated=unrelated, matching=hungarian, metrics=metrics),
        seconds=1.0,
    )
    doubts = tuple(caveats(finding))
    return CellResult(cell=cell, finding=finding, caveats=doubts, seconds=1.23456, device=torch.device("cpu"))


def made(result: CellResult, **changes: Any) -> Record:
    fields = {"recipe": "made.up", "scale": "smoke", "seed": 7, "command": "remanence run made.up"}
    return record(result, **(fields | changes))


def finite(values: Tensor) -> np.ndarray[Any, Any]:
    array = values.double().numpy()
    return array[np.isfinite(array)]
