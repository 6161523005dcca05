"""A recipe at smoke scale, from its experiments to the page."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import pytest
import torch
from torch import nn

from remanence.engine import train_each
from remanence.experiments.folder import read_run
from remanence.experiments.results import Result
from remanence.experiments.run import Job, run_job
from remanence.report import write_page
from remanence.training import Training
from remanence.types import Data, Params
from remanence_recipes import RECIPES
from remanence_recipes.weights_alone import evaluation
from remanence_recipes.weights_alone.evaluation import Attacked
from remanence_recipes.weights_alone.target import Target


@cache
def results(name: str) -> dict[str, Result]:
    """By label; each recipe runs once for all tests of all workers, with null levels of few scores."""
    with _locked(_shared() / name) as folder:
        if not (folder / "done").exists():
            _run(name, folder)
            (folder / "done").touch()
        return {record.label: record for record in read_run(folder).results}


def measures(record: Result) -> dict[str, float]:
    """The measures of an experiment, by name."""
    return {measure.name: measure.value for measure in record.measures}


def _run(name: str, folder: Path) -> None:
    job = Job(recipe=name, scale="smoke", seed=0, device="cpu", folder=folder, command="smoke", force=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remanence.metrics.nulls.NULL_SCORES", 300)
        patch.setattr("remanence_recipes.weights_alone.target.train_each", _trained_once)
        for module in ("evaluation", "surveys"):  # figures of one paper are about the same victims
            patch.setattr(f"remanence_recipes.weights_alone.{module}.attack_each", _attacked_once)
        *_, (run, _) = run_job(RECIPES[name]("smoke"), job)
    write_page(job.page, run)
    assert [r.label for r in read_run(folder).results] == [r.label for r in run.results]
    assert job.page.stat().st_size > 10_000


@cache
def _shared() -> Path:
    """A folder of this run of the tests, the same for all of its workers."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return Path(gettempdir()) / f"remanence-smoke-{run}" if run else Path(mkdtemp())


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield folder


_FINAL: dict[str, list[Params]] = {}
_ATTACKED: dict[tuple[Target, tuple[int, ...], torch.device], list[Attacked]] = {}
_attack_each = evaluation.attack_each


def _trained_once(
    training: Training, model: nn.Module, initial: Sequence[Params], data: Sequence[Data]
) -> list[Params]:
    """`train_each`, once for the same victims."""
    tensors = [p for each in initial for p in each.values()] + [part for each in data for part in (each.x, each.y)]
    digest = blake2b(f"{training} {model} {[(t.shape, t.dtype) for t in tensors]}".encode())
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    if digest.hexdigest() not in _FINAL:
        _FINAL[digest.hexdigest()] = train_each(training, model, initial, data)
    return _FINAL[digest.hexdigest()]


def _attacked_once(target: Target, seeds: Sequence[int], device: torch.device) -> Iterator[Attacked]:
    """`attack_each`, once for the same targets and seeds."""
    key = (target, tuple(seeds), device)
    if key not in _ATTACKED:
        _ATTACKED[key] = list(_attack_each(target, seeds, device))
    return iter(_ATTACKED[key])
