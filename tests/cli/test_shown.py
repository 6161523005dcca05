"""What is shown, and what cannot be done."""

import json
import os
import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Call, Said, assert_refused, printed_to
from refusals import refused

import remanence.data
import remanence.experiments.folder
from remanence import Experiment
from remanence.data import FetchFailed
from remanence.progress import track
from remanence_recipes import RECIPES


def test_without_a_command_it_shows_the_help(call: Call) -> None:
    said = call()
    assert said == call("--help")
    assert (said.code, said.err) == (0, "")
    for command in ("demo", "audit", "run", "report", "list", "data"):
        assert f"\n  {command} " in said.out
    assert "..." not in said.out.replace("[ARGS]...", "")  # every line is whole at 80 columns


@pytest.mark.parametrize("command", ["demo", "audit", "run", "report", "list", "data", "data list", "data fetch"])
def test_every_command_has_help(call: Call, command: str) -> None:
    said = call(*command.split(), "--help")
    assert (said.code, said.err) == (0, "")
    assert f"Usage: remanence {command}" in said.out


def test_the_version_and_the_short_word_for_help(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMANENCE_COMMIT", "4a1202266e64")
    said = call("--version")
    assert (said.code, said.err) == (0, "")
    assert re.fullmatch(r"remanence (\d+\.\d+\.\d+|source tree), commit 4a1202266e64\n", said.out)
    assert call("audit", "-h") == call("audit", "--help")


def test_list_shows_everything_there_is(call: Call) -> None:
    listed = json.loads(call("list", "--json").out)
    assert listed.keys() == {"attacks", "recipes", "matchings", "metrics", "data"}
    assert listed["recipes"].keys() == RECIPES.keys()
    assert {"GradientMatching", "RecoNN"} <= listed["attacks"].keys()
    assert {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100"} <= listed["data"].keys()
    assert {"ssim", "mse"} <= listed["metrics"].keys()
    assert "hungarian" in listed["matchings"]
    texts = [text for entries in listed.values() for text in entries.values()]
    assert all(texts)
    assert not [text for text in texts if text.startswith("_")]  # a signature that stands in for a missing docstring
    sentences = [text for kind in ("attacks", "recipes", "matchings") for text in listed[kind].values()]
    assert not [text for text in sentences if not text.endswith(".")]
    words = call("list")
    assert (words.code, words.err) == (0, "")
    assert all(name in words.out for entries in listed.values() for name in entries)
    assert all(text in words.out for text in texts)


def test_data_list_says_where_the_files_are(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REMANENCE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mnist").mkdir()
    for part in ("train", "t10k"):
        for what in ("images-idx3", "labels-idx1"):
            (tmp_path / "mnist" / f"{part}-{what}-ubyte.gz").touch()
    listed = {entry["name"]: entry for entry in json.loads(call("data", "list", "--json").out)}
    assert (listed["mnist"]["present"], listed["mnist"]["where"]) == (True, str(tmp_path / "mnist"))
    assert (listed["cifar10"]["present"], listed["cifar10"]["where"]) == (False, "")
    assert listed["digits"]["present"]
    lines = {line.split()[0]: line for line in call("data", "list").out.splitlines()}
    assert lines.keys() == listed.keys()
    assert lines["mnist"].endswith(str(tmp_path / "mnist"))
    assert lines["cifar10"].endswith("not here")
    assert lines["digits"].endswith("embedded")


def test_there_is_nothing_to_fetch_for_embedded_data(call: Call) -> None:
    said = call("data", "fetch", "digits")
    assert (said.code, said.out) == (0, "")
    assert "nothing to fetch" in said.err


def test_a_network_that_fails_is_told_in_its_own_words(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> list[Path]:
        raise FetchFailed("https://example.org/ cannot be reached: check the network")

    monkeypatch.setattr(remanence.data, "fetch_named", fail)
    said = call("data", "fetch", "mnist")
    assert said == Said(1, "", "error: https://example.org/ cannot be reached: check the network\n")


def test_the_path_of_the_page_is_the_last_line(call: Call, tiny: None, tmp_path: Path) -> None:
    said = call("run", "tiny", "--scale", "smoke", "--out", "here")
    assert (said.code, said.err) == (0, "")
    one, two, page = said.out.splitlines()
    assert one.startswith("one: No record was found")
    assert two.startswith("two: ")
    assert page == os.path.join("here", "report.html")
    assert (tmp_path / page).is_file()


def test_progress_is_on_stderr_and_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nested() -> list[list[str]]:
        return [list(track(iter("ab"), total=2, label="inner")) for _ in track(range(2), total=2, label="outer")]

    assert nested() == [["a", "b"]] * 2
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for _ in range(2):  # the second outer loop has its bar again
        assert nested() == [["a", "b"]] * 2
        out, err = capsys.readouterr()
        assert (out, "outer" in err, "inner" in err) == ("", True, True)


@pytest.mark.slow
def test_a_terminal_without_dashes_gets_the_result_all_the_same(tiny: None, tmp_path: Path) -> None:
    raw = BytesIO()
    with TextIOWrapper(raw, encoding="ascii") as terminal:
        assert printed_to(terminal, "run", "tiny", "--out", str(tmp_path)) == 0
        assert raw.getvalue().decode("ascii").startswith("one: No record was found")


REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "command": (["dmeo"], ["No such command 'dmeo'", "'demo'", "remanence --help"]),
    "option": (["list", "--jsn"], ["--jsn", "--json", "`remanence list --help`"]),
    "no recipe": (["run"], ["Missing argument 'RECIPE'", "`remanence run --help`"]),
    "no sub-command": (["data"], ["Missing command", "`remanence data --help`"]),
    "no audit": (["audit"], ["`remanence audit` needs a command: model, update", "`remanence audit --help`"]),
    "recipe": (["run", "ball2022.mnist"], ["unknown recipe `ball2022.mnist`", "did you mean `balle2022.mnist`?"]),
    "paper": (
        ["run", "haim2022"],
        ["one of `haim2022.cifar10_binary`; `haim2022.mnist_binary`; `haim2022.regression`?"],
    ),
    "many recipes": (["run", "qqq"], ["unknown recipe `qqq`: `remanence list` shows all"]),
    "scale": (["run", "tiny", "--scale", "smal"], ["unknown scale `smal`", "did you mean `small`?"]),
    "negative seed": (["run", "tiny", "--seed", "-1"], ["'--seed'", "`remanence run --help`"]),
    "word for a seed": (["run", "tiny", "--seed", "one"], ["'--seed'", "integer"]),
    "seed too large": (["run", "tiny", "--seed", "9" * 30], ["'--seed'"]),
    "no CUDA": (["run", "tiny", "--device", "cuda"], ["`device` is `cuda`", "use `cpu`"]),
    "device": (["run", "tiny", "--device", "gpu"], ["`device` must be like `cpu`", "got `gpu`"]),
    "net": (["audit", "data", "--data", "digits", "--net", "mpl"], ["unknown net `mpl`", "did you mean `mlp`?"]),
    "attack": (
        ["audit", "data", "--data", "digits", "--attack", "ReconNN"],
        ["unknown attack `ReconNN`", "did you mean `RecoNN`?"],
    ),
    "attack of Python": (
        ["audit", "data", "--data", "digits", "--attack", "SimuDy"],
        ["SimuDy is not run by `audit`, which runs GradientMatching, ", "build a release in Python (docs/library.md)"],
    ),
    "attack of another net": (
        ["audit", "data", "--data", "digits", "--net", "cnn", "--attack", "Stein"],
        ["Stein is not run by `audit --net cnn`, which runs GradientMatching, RecoNN, TrainingInversion: "],
    ),
    "data set": (["audit", "data", "--data", "digit"], ["unknown data set `digit`", "did you mean `digits`?"]),
    "set to fetch": (["data", "fetch", "minst"], ["unknown data set `minst`", "did you mean `mnist`?"]),
    "data not fetched": (["audit", "data", "--data", "mnist"], ["`remanence data fetch mnist`"]),
    "images too small": (["audit", "data", "--data", "digits", "--net", "cnn"], ["at least 10x10"]),
    "no table": (["audit", "data", "--data", "no.csv", "--label", "y"], ["no.csv does not exist: check the path"]),
    "no arrays": (["audit", "data", "--data", "no.npz"], ["no.npz does not exist: check the path"]),
    "no folder": (["audit", "data", "--data", "no/folder"], ["no/folder must be", "got nothing there"]),
    "no run": (["report", "nowhere"], ["`nowhere` is not a run folder", "there is no results.json in it"]),
    "not a run": (["report", "."], ["`.` is not a run folder"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_said_in_two_lines(
    call: Call, tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    monkeypatch.setenv("REMANENCE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments, words = REFUSED[case]
    assert_refused(call(*arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_traceback_is_shown_only_on_demand(call: Call) -> None:
    for arguments in (["--debug", "run", "nope"], ["run", "nope", "--debug"]):
        with refused("unknown-name"):
            call(*arguments)


def test_a_defect_is_called_one(call: Call, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cell: Experiment, **_: Any) -> Any:
        raise RuntimeError("what torch says\nin many\nlines")

    monkeypatch.setattr("remanence.experiments.run.run_experiment", broken)
    said = call("run", "tiny")
    assert (said.code, said.out) == (1, "")
    assert said.err == "error: RuntimeError: what torch says\nThis is a defect of remanence: `--debug` shows where.\n"
    with pytest.raises(RuntimeError):
        call("run", "tiny", "--debug")


def test_schemas_of_the_files_of_an_audit(call: Call) -> None:
    for option, title in (("--audit", "remanence audit"), ("--record", "remanence disclosure-control record")):
        assert json.loads(call("schema", option).out)["title"] == title
    assert_refused(call("schema", "--audit", "--record"), "--audit")
