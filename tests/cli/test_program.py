"""The program as a process: what it prints, how it ends, that it is one program."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from command_line import FILES, ROOT, Call, Said, assert_refused, printed_to
from files import contents
from tiny_experiments import tiny_experiment

import remanence.data
import remanence.experiments.folder
from remanence.errors import BadInput
from remanence.experiments import Experiment, run_experiment
from remanence.experiments.folder import read_run
from remanence.experiments.results import parse_results
from remanence_recipes import RECIPES


@dataclass(frozen=True)
class Finished:
    said: Said
    folder: Path


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """`run demo.digits --scale smoke --json`, for real and once."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    return Finished(captured("run", "demo.digits", "--scale", "smoke", "--json", "--out", str(folder)), folder)


def captured(*arguments: str) -> Said:
    out, err = StringIO(), StringIO()
    with redirect_stderr(err):
        return Said(printed_to(out, *arguments), out.getvalue(), err.getvalue())


@pytest.mark.slow
def test_a_run_prints_its_records_and_nothing_else(demo_run: Finished) -> None:
    assert (demo_run.said.code, demo_run.said.err) == (0, "")
    records = parse_results(demo_run.said.out, where="stdout")
    assert records == read_run(demo_run.folder).results
    assert sorted(contents(demo_run.folder)) == FILES
    gradients = [
        f"gradient of a batch{what}" for what in ("", ", its first layer", ", at weights that the server chose")
    ]
    of_weights = ["all records but one", "trained weights alone", "weights before and after training"]
    assert [record.label for record in records] == [*gradients, *of_weights]
    assert {(record.recipe, record.scale, record.seed) for record in records} == {("demo.digits", "smoke", 0)}
    command = f"remanence run demo.digits --scale smoke --json --out {demo_run.folder}"
    assert {record.command for record in records} == {command}


@pytest.mark.slow
@pytest.mark.parametrize(("index", "records", "least"), [(0, 8, 4), (1, 8, 8), (2, 4, 4), (4, 20, 8), (5, 10, 7)])
def test_the_demo_finds_most_records(demo_run: Finished, index: int, records: int, least: int) -> None:
    scores = read_run(demo_run.folder).results[index].attack.scores
    assert scores.records == records
    assert scores.found.count >= least  # chance finds one record in a hundred


@pytest.mark.slow
def test_a_page_is_drawn_again_to_the_byte(demo_run: Finished, call: Call, tmp_path: Path) -> None:
    for name in ("results.json", "scores.csv", "images.safetensors"):
        shutil.copy(demo_run.folder / name, tmp_path / name)
    said = call("report", tmp_path)
    assert said == Said(0, f"{tmp_path / 'report.html'}\n", "")
    assert (tmp_path / "report.html").read_bytes() == (demo_run.folder / "report.html").read_bytes()


@pytest.mark.slow
def test_single_cells_can_be_run_and_unknown_ones_are_named(call: Call) -> None:
    said = call("run", "balle2022.table3", "--scale", "smoke", "--experiment", "ELU")
    assert said.code == 0
    *cells, page = said.out.splitlines()
    assert [line.partition(":")[0] for line in cells] == ["ELU"]
    assert page == os.path.join("runs", "balle2022.table3-smoke", "report.html")
    wrong = call("run", "balle2022.table3", "--scale", "smoke", "--experiment", "elu")
    assert wrong.code == 2
    assert wrong.err.startswith("error: unknown experiment `elu`: did you mean ")
    assert "`ELU`" in wrong.err.partition("known:")[0]
    assert wrong.err.count("\n") == 1


def test_the_demo_takes_the_options_of_a_run(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(RECIPES, "demo.digits", lambda scale: [tiny_experiment(f"at {scale}")])
    said = call("demo", "--seed", 3)
    assert (said.code, said.out.splitlines()[-1]) == (0, os.path.join("runs", "demo", "report.html"))
    (record,) = read_run(tmp_path / "runs" / "demo").results
    assert (record.label, record.recipe, record.seed) == ("at small", "demo.digits", 3)


def process(arguments: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(arguments, env=os.environ | {"OMP_NUM_THREADS": "1"}, **(pipes | options))


@pytest.mark.slow
def test_the_script_and_the_module_are_the_same_program(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"remanence": "remanence.cli:main"}
    script = process([str(Path(sys.executable).with_name("remanence")), "run", "demo.digit"])
    said = Said(script.wait(60), *script.communicate())
    assert_refused(said, "unknown recipe `demo.digit`: did you mean `demo.digits`?")
    assert call("run", "demo.digit") == said
    with pytest.raises(SystemExit) as end:
        runpy.run_module("remanence", run_name="__main__")
    assert Said(int(end.value.code or 0), *capsys.readouterr()) == said


SLOW = """
import sys, time
from tiny_experiments import tiny_experiment
from remanence.cli import main
from remanence_recipes import RECIPES

RECIPES["slow"] = lambda scale: [tiny_experiment("one"), tiny_experiment("two", split=lambda seed: time.sleep(600))]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_keeps_what_is_finished(tmp_path: Path, call: Call, number: int, code: int) -> None:
    folder = tmp_path / "run"
    # heard also where tests run in the background
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    running = process([sys.executable, "-c", SLOW, "run", "slow", "--out", str(folder)], cwd=ROOT / "tests", **heard)
    assert running.stdout
    first = running.stdout.readline()
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert first.startswith("one: ")
    assert (running.returncode, out) == (code, "")
    assert err == f"interrupted after 1 of 2 experiments; what is finished is in `{folder}`\n"
    assert [record.label for record in read_run(folder).results] == ["one"]
    assert sorted(contents(folder)) == FILES
    page = (folder / "report.html").read_bytes()
    assert call("report", folder).code == 0
    assert (folder / "report.html").read_bytes() == page


def test_a_cell_that_cannot_be_made_tells_of_those_before_it(
    call: Call, tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def first_only(cell: Experiment, **given: Any) -> Any:
        if cell.label == "two":
            raise BadInput("the victim did not fit")
        return run_experiment(cell, **given)

    monkeypatch.setattr("remanence.experiments.run.run_experiment", first_only)
    said = call("run", "tiny", "--out", "run")
    assert said.code == 2
    assert said.out.startswith("one: ")
    assert said.err == "error: the victim did not fit\n1 of 2 experiments were finished: `run/report.html`\n"
    assert [record.label for record in read_run(tmp_path / "run").results] == ["one"]


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def terminate(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)


def test_interrupting_has_an_exit_code_of_its_own(
    call: Call, tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("remanence.experiments.run.run_experiment", interrupt)
    assert call("run", "tiny") == Said(130, "", "interrupted after 0 of 2 experiments\n")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(remanence.data, "fetch_named", interrupt)
    assert call("data", "fetch", "mnist") == Said(130, "", "error: interrupted\n")
    monkeypatch.setattr(remanence.data, "fetch_named", terminate)
    assert call("data", "fetch", "mnist") == Said(143, "", "error: interrupted\n")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


HEAVY = ["ray", "sklearn", "scipy.optimize", "scipy.stats", "typer", "rich", "jinja2", "PIL", "matplotlib"]


@pytest.mark.slow
def test_importing_the_package_is_light_and_touches_no_device() -> None:
    script = (
        "import json, sys, remanence, torch\n"
        f"print(json.dumps([[name for name in {HEAVY} if name in sys.modules], torch.cuda.is_initialized()]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [[], False]
