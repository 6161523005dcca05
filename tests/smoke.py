"""A recipe at smoke scale, from its cells to the page."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from remanence.experiments.results import Record, read_run
from remanence.runs import Job, run_job
from remanence_recipes import RECIPES


@cache
def records(name: str) -> dict[str, Record]:
    """By label; each recipe runs once for all tests of a file."""
    folder = Path(mkdtemp())
    job = Job(recipe=name, scale="smoke", seed=0, device="cpu", folder=folder, command="smoke")
    made = list(run_job(RECIPES[name]("smoke"), job))
    assert [r["cell"] for r in read_run(folder).records] == [r["cell"] for r in made]
    assert job.page.stat().st_size > 10_000
    return {record["cell"]: record for record in made}


def measures(record: Record) -> dict[str, float]:
    """The numbers of a study, by name."""
    return {measure["name"]: measure["value"] for measure in record["measures"]}
