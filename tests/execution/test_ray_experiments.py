"""Whole experiments on a cluster of two workers: the folders of a run in one process, though a worker is killed."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed_recipes import RECIPES
from files import contents
from refusals import refused
from tiny_experiments import Guess

import remanence_recipes
from remanence.execution import Ray
from remanence.experiments import Experiment
from remanence.experiments.distributed import run_jobs
from remanence.experiments.folder import Run, read_run
from remanence.experiments.run import Job, run_job
from remanence.reproduction import Plan, Work, run_plan

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def same_as_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their recipes, and their commit."""
    for name, recipe in RECIPES.items():
        monkeypatch.setitem(remanence_recipes.RECIPES, name, recipe)
    monkeypatch.setenv("REMANENCE_COMMIT", "0123456789ab")


def planned(recipe: str, folder: Path, **changes: Any) -> tuple[list[Experiment], Job]:
    fields = {"recipe": recipe, "scale": "small", "seed": 0, "device": "cpu", "folder": folder, "command": "remanence"}
    return list(RECIPES[recipe]("small")), Job(**(fields | changes))


def stripped(folder: Path) -> dict[str, Any]:
    """The files of a run, without seconds."""
    made: dict[str, Any] = contents(folder)
    made["results.json"] = [each | {"seconds": None} for each in json.loads(made["results.json"])]
    return made


def test_the_folder_and_the_store_are_those_of_one_process_though_a_worker_is_killed(
    cluster: Ray, marks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    list(run_job(*planned("several", tmp_path / "local", store=tmp_path / "local-store")))
    assert not (marks / "died").exists()
    job = planned("several", tmp_path / "ray", store=tmp_path / "ray-store", backend=cluster)
    runs = [run for _, run, _ in run_jobs([job])]
    assert (marks / "died").exists()
    assert (marks / "attacked with seed 0").read_text() == "xx"
    assert stripped(tmp_path / "ray") == stripped(tmp_path / "local")
    stored = contents(tmp_path / "local-store")
    assert {Path(name).parent for name in stored} == {Path("several/learning")}  # one bank for both that learn from it
    assert contents(tmp_path / "ray-store") == stored
    shards = list((tmp_path / "ray-store").rglob("shadows-*"))
    assert len(shards) == 3
    assert max(path.stat().st_mtime_ns for path in shards) < (marks / "died").stat().st_mtime_ns  # not trained again
    order = [each.label for each in job[0]]
    assert labels(runs[-1]) == order
    assert all(labels(run) == [label for label in order if label in labels(run)] for run in runs)
    assert "measured: half of it is done\n" in capfd.readouterr().err


def labels(run: Run) -> list[str]:
    return [each.label for each in run.results]


def test_what_is_refused_comes_back_as_it_is_and_what_was_finished_is_not_run_again(
    cluster: Ray, marks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    list(run_job(*planned("refusing", tmp_path / "local")))
    job = planned("refusing", tmp_path / "ray", backend=cluster, resume=True)
    made = run_jobs([job])
    assert next(made)[2].label == "counted"
    (marks / "may be refused").touch()
    with refused("out-of-range", "rate") as caught:
        next(made)
    assert str(caught.value) == "`rate` is wrong: give another"
    assert labels(read_run(tmp_path / "ray")) == ["counted"]
    assert [result.label for _, _, result in run_jobs([job])] == ["counted", "refusing"]
    assert (marks / "counted").read_text() == "x"
    assert "1 of 2 experiments were finished before" in capfd.readouterr().err
    assert stripped(tmp_path / "ray") == stripped(tmp_path / "local")


def test_jobs_of_several_recipes_and_seeds_are_distributed_together(cluster: Ray, tmp_path: Path) -> None:
    names = [("greys", 0), ("greys", 1), ("refusing", 5)]
    for recipe, seed in names:
        list(run_job(*planned(recipe, tmp_path / f"local-{recipe}-{seed}", seed=seed)))
    jobs = [planned(recipe, tmp_path / f"ray-{recipe}-{seed}", seed=seed, backend=cluster) for recipe, seed in names]
    found = [(job.recipe, job.seed, result.label) for job, _, result in run_jobs(jobs)]
    assert sorted(found) == sorted((job.recipe, job.seed, each.label) for made, job in jobs for each in made)
    for recipe, seed in names:
        assert stripped(tmp_path / f"ray-{recipe}-{seed}") == stripped(tmp_path / f"local-{recipe}-{seed}")


def test_what_claims_of_papers_wait_for_is_distributed_and_committed(cluster: Ray, tmp_path: Path) -> None:
    works = tuple(
        Work(recipe=recipe, experiments=labels, seed=3, minutes=1.0, decides=())
        for recipe, labels in (("made2020.greys", ("grey 0.4", "grey 0.6")), ("made2020.measured", ("grey",)))
    )
    chosen, said = Plan(chosen=works, left=(), unmeasured=0, short=0), {}
    for name, backend in (("local", None), ("ray", cluster)):
        where = {"results": tmp_path / name / "results", "runs": tmp_path / name / "runs"}
        made = run_plan(chosen, RECIPES, minutes=2.0, device="cpu", command="made", backend=backend, **where)
        said[name] = {(folder.name, result.label) for folder, _, result in made}
    assert said["ray"] == said["local"]
    assert len(said["ray"]) == 3
    both = [tmp_path / name / "results" / "made2020" for name in ("local", "ray")]
    assert {path.name for path in both[1].iterdir()} == {"greys.json", "measured.json"}
    for file in ("greys.json", "measured.json"):
        local, ray = (
            sorted((each | {"seconds": None} for each in json.loads((folder / file).read_text())), key=str)
            for folder in both
        )
        assert ray == local


def test_a_worker_with_another_version_of_the_recipe_is_refused(cluster: Ray, tmp_path: Path) -> None:
    experiments, job = planned("greys", tmp_path / "out", backend=cluster)
    other = [replace(experiments[0], attack=Guess(grey=0.1)), experiments[1]]
    renamed = [replace(experiments[0], label="another"), experiments[1]]
    for changed in (other, renamed):
        with refused("conflict", "backend"):
            list(run_jobs([(changed, job)]))


def test_each_item_has_a_gpu_of_its_own(cluster: Ray, tmp_path: Path) -> None:
    def meet(item: int) -> str:
        (tmp_path / str(item)).touch()
        for _ in range(2000):
            if (tmp_path / str(1 - item)).exists():
                return os.environ["CUDA_VISIBLE_DEVICES"]
            time.sleep(0.01)
        raise TimeoutError("the other one did not come")

    found = dict(cluster.as_finished(meet, [0, 1], titles=["one", "two"], cuda=True))
    assert sorted(found) == [0, 1]
    assert sorted(found.values()) == ["0", "1"]


@pytest.mark.parametrize(
    ("device", "gpus", "code"), [("cuda:1", 3.0, "not-enough-resources"), ("tpu", 1.0, "unknown-name")]
)
def test_devices_that_the_cluster_lacks_are_refused(
    cluster: Ray, tmp_path: Path, device: str, gpus: float, code: str
) -> None:
    job = planned("greys", tmp_path / "out", backend=replace(cluster, gpus=gpus), device=device)
    with refused(code):
        list(run_jobs([job]))
