"""The examples do what they say: each is run as its docstring says, with a smaller budget; pages show the commands."""

import io
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from remanence.auditing.answer.record import record_schema
from remanence.cli import main
from remanence.progress import set_mode

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
SCRIPTS = {path.stem: path for path in FOLDER.glob("*.py")}
FASTER = {  # what the assertions need of them
    "update": "--budget 60s --attack FirstLayer",
    "sweep": "--budget 60s",
    "model": "--budget 12s",  # so that attacks run on a machine that is busy
}


@dataclass(frozen=True)
class Ran:
    """A command, its exit code, what it printed on stdout, and the folder that it ran in."""

    command: str
    code: int
    out: str
    folder: Path

    def answer(self, name: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / name / "report.json").read_text())
        return read


def commands(text: str) -> list[str]:
    """The lines of a docstring or a console block that are commands, continued ones joined, blanks made one."""
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    stripped = [" ".join(line.strip().removeprefix("$ ").split()) for line in lines]
    return [line for line in stripped if line.startswith(("python ", "remanence "))]


def docstring(script: Path) -> str:
    return script.read_text(encoding="utf-8").split('"""')[1]


def called(command: str, folder: Path) -> Ran:
    """Run a command in this process, an audit with a smaller budget."""
    program, *arguments = shlex.split(command)
    if program == "remanence":
        budget = FASTER["sweep" if "--sweep" in arguments else arguments[1]]
        arguments = shlex.split(re.sub(r"--budget \w+", budget, shlex.join(arguments)))
    out, code = io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(io.StringIO()):
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "argv", [program, *arguments])
        try:
            if program == "remanence":
                main()
            else:
                runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            set_mode("normal")
            for name in SCRIPTS:
                sys.modules.pop(name, None)
    return Ran(command, code, out.getvalue(), folder)


Examples = Callable[[str], list[Ran]]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    """Runs all commands of an example, once for this file."""
    state = torch.random.get_rng_state()
    torch.set_num_threads(1)

    @cache
    def run(name: str) -> list[Ran]:
        folder = tmp_path_factory.mktemp(name)
        for script in SCRIPTS.values():
            shutil.copy(script, folder)
        return [called(command, folder) for command in commands(docstring(SCRIPTS[name]))]

    yield run
    torch.random.set_rng_state(state)


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows}


@pytest.mark.slow
def test_a_cnn_of_ones_own_gets_a_row_for_each_attack_and_its_membership(example: Examples) -> None:
    trained, audited = example("own_cnn")
    assert (trained.code, audited.code) == (0, 0)
    answer = audited.answer("cnn-audit")
    assert answer["severity"] == "membership"
    assert {row["status"] for row in answer["attacks"]} <= {"ran", "refused", "skipped"}
    assert len({row["name"] for row in answer["attacks"] if row["subject"] == "release"}) == 16
    assert all(row["reason"] for row in answer["attacks"] if row["status"] != "ran")
    assert by_name(answer["evidence"])["membership by loss: AUC"]["low"] > 0.6
    assert by_name(answer["preflight"]["checks"])["normalize"]["status"] == "ok"


@pytest.mark.slow
def test_the_members_of_a_fine_tuned_network_are_identified_by_the_span(example: Examples) -> None:
    *_, audited = example("fine_tuned")
    answer = audited.answer("tuned-audit")
    assert (audited.code, answer["records"]) == (0, 100)
    assert answer["severity"] in ("membership", "some-records", "many-records")  # by how much its searches had time for
    assert by_name(answer["evidence"])["span: tpr@1%"]["value"] >= 0.95


@pytest.mark.slow
def test_every_unknown_record_of_a_pipeline_is_found(example: Examples) -> None:
    (ran,) = example("sklearn_pipeline")
    assert "20 of 20 records were found" in ran.out
    assert ran.answer("sklearn-audit")["severity"] == "many-records"


@pytest.mark.slow
def test_every_row_of_a_table_is_found_in_an_update(example: Examples) -> None:
    *_, audited = example("breast_cancer")
    answer = audited.answer("cancer-audit")
    assert (audited.code, answer["severity"]) == (0, "many-records")
    assert [(row["found"], row["records"]) for row in answer["attacks"]] == [(32, 32)]
    assert not [each for each in answer["preflight"]["checks"] if each["status"] == "warning"]


@pytest.mark.slow
def test_every_record_of_a_client_is_found_in_what_five_lines_dump(example: Examples) -> None:
    _, audited, _ = example("federated_client")
    answer = audited.answer("client-audit")
    assert [(row["found"], row["records"]) for row in answer["attacks"]] == [(16, 16)]
    source = SCRIPTS["federated_client"].read_text(encoding="utf-8")
    mod = re.search(r"^def dump_update\(msg, ctxt, call_next\):\n((?:    .+\n)+)", source, flags=re.MULTILINE)
    assert mod
    assert len(mod[1].splitlines()) <= 5


@pytest.mark.slow
def test_a_sweep_says_what_would_hide_the_records_of_a_client(example: Examples) -> None:
    *_, swept = example("federated_client")
    rows = {row["setting"]: row for row in swept.answer("client-sweep")["countermeasures"]}
    found = {setting: row["together"] and row["together"]["found"] for setting, row in rows.items()}
    assert len(rows) == 7
    assert found["the update as it is"] == 16
    assert found["sums of 2 clients"] >= 8
    assert not found["noise of 10"]  # None where a slow machine had no time
    assert "  labels (chance)  " in swept.out


@pytest.mark.slow
def test_every_sentence_of_a_client_is_found_and_what_would_hide_them(example: Examples) -> None:
    _, audited, swept = example("federated_text")
    answer = audited.answer("text-audit")
    assert [(row["name"], row["found"], row["exact"], row["records"]) for row in answer["attacks"]] == [
        ("DAGER", 8, 8, 8)
    ]
    rows = {row["setting"]: row for row in swept.answer("text-sweep")["countermeasures"]}
    assert [rows[each]["together"]["found"] for each in ("sums of 5 clients", "noise of 10")] == [0, 0]
    assert rows["sums of 5 clients"]["tokens"]["value"] == 1


@pytest.mark.slow
def test_the_gate_stops_the_leak_and_lets_the_null_model_pass(example: Examples) -> None:
    _, leak, null = example("ci_gate")
    assert (leak.code, null.code) == (3, 0)
    for ran, name in ((leak, "leak"), (null, "null")):
        jsonschema.validate(json.loads((ran.folder / f"{name}-audit" / "record.json").read_text()), record_schema())
        assert (ran.folder / f"{name}.xml").stat().st_size
        assert not (ran.folder / f"{name}-audit" / "images.safetensors").exists()


PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", FOLDER / "README.md"]
BLOCK = re.compile(r"^```console\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_commands_of_a_page_are_those_of_the_examples(page: Path) -> None:
    known = {command for script in SCRIPTS.values() for command in commands(docstring(script))}
    shown = [each for block in BLOCK.findall(page.read_text(encoding="utf-8")) for each in commands(block)]
    assert shown
    assert not [each for each in shown if each.startswith(("python ", "remanence audit ")) and each not in known]


@pytest.mark.slow
def test_the_tutorial_shows_the_severities_that_are_printed(example: Examples) -> None:
    ran = {each.command: each for name in SCRIPTS for each in example(name)}
    compared = 0
    for block in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")):
        shown = [line for line in block.splitlines() if line.startswith("severity ")]
        if shown:
            assert shown[0] in ran[commands(block)[-1]].out.splitlines()
            compared += 1
    assert compared >= 4


def test_every_example_is_in_the_table() -> None:
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert not [name for name in SCRIPTS if f"[{name}.py]({name}.py)" not in table]
