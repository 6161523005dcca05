"""`--store`, `--backend` and `--ray-address`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from command_line import ROOT, Call, assert_refused
from files import contents
from tiny_experiments import tiny_experiment, tiny_shadow_experiment

from remanence.attacks import SimuDy, with_search
from remanence.execution import Local, Ray
from remanence.experiments.folder import read_results
from remanence.experiments.results import parse_results
from remanence.experiments.run import Job
from remanence.releases import fine_tuned
from remanence.search import solver
from remanence_recipes import RECIPES


@pytest.fixture
def shadows(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [tiny_shadow_experiment("ELU, sigma = 0.5"), tiny_experiment("no shadows")]
    monkeypatch.setitem(RECIPES, "shadows", lambda scale: cells)


def scores(out: str) -> list[object]:
    return [record.attack.scores for record in parse_results(out, where="stdout")]


@pytest.mark.slow
def test_a_store_has_one_folder_for_the_shadow_models_of_each_cell(call: Call, shadows: None, tmp_path: Path) -> None:
    first = call("run", "shadows", "--store", "kept", "--json")
    assert (first.code, first.err) == (0, "")
    kept = contents(tmp_path / "kept")
    assert sorted(kept) == ["shadows/elu-sigma-0.5/bank.json", "shadows/elu-sigma-0.5/shadows-00000000.safetensors"]
    again = call("run", "shadows", "--store", "kept", "--json")
    assert contents(tmp_path / "kept") == kept
    without = call("run", "shadows", "--out", "other", "--json")
    assert scores(first.out) == scores(again.out) == scores(without.out)


@pytest.mark.slow
def test_a_search_goes_on_from_the_store(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = tiny_experiment("simulated", reveal=fine_tuned, attack=with_search(SimuDy(candidates=20), steps=3))
    monkeypatch.setitem(RECIPES, "searches", lambda scale: [cell])
    first = call("run", "searches", "--store", "kept", "--json")
    assert (first.code, first.err) == (0, "")
    (name,) = contents(tmp_path / "kept")
    assert name.startswith("searches/simulated/search-")
    assert "kept" not in parse_results(first.out, where="stdout")[0].attack.call
    monkeypatch.setattr(solver.Stack, "step", None)  # no step is left to be taken
    again = call("run", "searches", "--store", "kept", "--json")
    assert scores(first.out) == scores(again.out)
    assert call("run", "searches").code == 1


@pytest.mark.slow
def test_another_recipe_in_the_store_is_refused(call: Call, shadows: None, tmp_path: Path) -> None:
    assert call("run", "shadows", "--store", "kept", "--out", "one").code == 0
    before = contents(tmp_path)
    said = call("run", "shadows", "--store", "kept", "--out", "two", "--seed", 1)
    assert_refused(
        said, "`kept/shadows/elu-sigma-0.5` holds the shadow models of another recipe", "`seed` changed: was 0"
    )
    assert contents(tmp_path) == before


def test_a_store_that_cannot_be_made_is_refused_before_any_work(call: Call, shadows: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert_refused(call("run", "shadows", "--store", "file/kept"), "cannot write into `file/kept` (Not a directory)")
    assert contents(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("command", [["run", "shadows"], ["audit", "data", "--data", "digits"]])
def test_backends_that_cannot_be_are_refused(call: Call, shadows: None, command: list[str]) -> None:
    assert_refused(call(*command, "--backend", "rey"), "unknown backend `rey`: did you mean `ray`? known: local, ray")
    said = call(*command, "--ray-address", "auto")
    assert_refused(said, "`--ray-address` needs `--backend ray`, got `--backend local`")
    assert len(said.err.splitlines()) == 1


def test_without_ray_the_extra_is_named(call: Call, shadows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remanence.execution.ray.find_spec", lambda name: None)
    assert_refused(call("run", "shadows", "--backend", "ray"), 'pip install "remanence[ray]"')


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ([], Local()),
        (["--backend", "local"], Local()),
        (["--backend", "ray"], Ray()),
        (["--backend", "ray", "--ray-address", "head:6379"], Ray(address="head:6379")),
    ],
)
def test_the_backend_is_the_one_asked_for(
    call: Call, shadows: None, monkeypatch: pytest.MonkeyPatch, options: list[str], backend: Local | Ray
) -> None:
    jobs: list[Job] = []

    def note(asked: list[tuple[object, Job]]) -> Iterator[object]:
        jobs.extend(job for _, job in asked)
        return iter(())

    monkeypatch.setattr("remanence.experiments.distributed.run_jobs", note)
    for command in (["run", "shadows"], ["audit", "data", "--data", "digits"]):
        assert call(*command, *options).code == 0
    assert [job.backend for job in jobs] == [backend] * 2


RECIPES_OF_WORKERS = """
from tiny_experiments import tiny_shadow_experiment

RECIPES = {"shadows": lambda scale: [tiny_shadow_experiment("one"), tiny_shadow_experiment("two")]}
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_ray_gives_the_result_of_local_and_keeps_the_streams_clean(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "package" / "remanence_recipes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(RECIPES_OF_WORKERS)
    paths = os.pathsep.join([str(package.parent), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    token = {"RAY_AUTH_TOKEN": token_hex(32)}  # or Ray writes one into the home folder
    monkeypatch.setitem(
        RECIPES, "shadows", lambda scale: [tiny_shadow_experiment("one"), tiny_shadow_experiment("two")]
    )
    local = call("run", "shadows", "--json", "--out", "local")
    distributed = subprocess.run(
        [sys.executable, "-m", "remanence", "run", "shadows", "--json", "--backend", "ray", "--out", "ray"],
        cwd=tmp_path,
        env=os.environ | token | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (distributed.returncode, distributed.stderr) == (local.code, local.err) == (0, "")
    assert scores(distributed.stdout) == scores(local.out)
    assert len(scores(local.out)) == 2
    assert parse_results(distributed.stdout, where="stdout") == read_results(tmp_path / "ray")
