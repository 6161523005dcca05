"""A recipe at smoke scale, from its experiments to the page."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from remanence.experiments.folder import read_run
from remanence.experiments.results import Result
from remanence.experiments.run import Job, run_job
from remanence.report import write_page
from remanence_recipes import RECIPES


@cache
def results(name: str) -> dict[str, Result]:
    """By label; each recipe runs once for all tests of a file, with null levels of few scores."""
    folder = Path(mkdtemp())
    job = Job(recipe=name, scale="smoke", seed=0, device="cpu", folder=folder, command="smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remanence.metrics.nulls.NULL_SCORES", 300)
        *_, (run, _) = run_job(RECIPES[name]("smoke"), job)
    write_page(job.page, run)
    made = run.results
    assert [r.label for r in read_run(folder).results] == [r.label for r in made]
    assert job.page.stat().st_size > 10_000
    return {record.label: record for record in made}


def measures(record: Result) -> dict[str, float]:
    """The measures of an experiment, by name."""
    return {measure.name: measure.value for measure in record.measures}
