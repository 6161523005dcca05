"""The command line as a user meets it: what it prints where, how it ends, and what it leaves behind."""

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_cells import tiny_cell

import remanence.data
import remanence.results.folder
import remanence_recipes.demo
from remanence import Cell
from remanence.cli import main
from remanence.data import FetchFailed
from remanence.errors import BadInput
from remanence.progress import track
from remanence.results import parse_records, read_run
from remanence_recipes import RECIPES

pytestmark = pytest.mark.xdist_group("cli")  # the runs below are made once for all tests of the file
ROOT = Path(__file__).parents[1]
FILES = ["images.safetensors", "report.html", "results.json", "scores.csv"]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Call = Callable[..., Said]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Call the program in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["remanence", *map(str, arguments)])
        capsys.readouterr()
        code = ended(main)
        return Said(code, *capsys.readouterr())

    return called


def ended(program: Callable[[], None]) -> int:
    try:
        program()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe of two cells that take no time."""
    monkeypatch.setitem(RECIPES, "tiny", lambda scale: [tiny_cell("one"), tiny_cell("two")])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """`audit` at the budget of the smoke scale."""
    monkeypatch.setattr(remanence_recipes.demo, "audit_cells", partial(remanence_recipes.demo.audit_cells, quick=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(said: Said, *words: str) -> None:
    """Exit code 2, nothing on stdout, and one or two lines on stderr that hold the words."""
    assert (said.code, said.out) == (2, "")
    assert_told(said, *words)


def assert_told(said: Said, *words: str) -> None:
    assert said.err.startswith("error: ")
    assert said.err.endswith("\n")
    assert len(said.err.splitlines()) <= 2, said.err
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


# ---- the program


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


def test_a_run_prints_its_records_and_nothing_else(demo_run: Finished) -> None:
    assert (demo_run.said.code, demo_run.said.err) == (0, "")
    records = parse_records(demo_run.said.out, where="stdout")
    assert records == read_run(demo_run.folder).records
    assert [record["cell"] for record in records] == ["gradient of a batch", "all records but one"]
    assert {(record["recipe"], record["scale"], record["seed"]) for record in records} == {("demo.digits", "smoke", 0)}
    command = f"remanence run demo.digits --scale smoke --json --out {demo_run.folder}"
    assert {record["command"] for record in records} == {command}


def test_a_run_leaves_four_files(demo_run: Finished) -> None:
    assert sorted(contents(demo_run.folder)) == FILES


def test_the_demo_finds_most_records_of_a_gradient(demo_run: Finished) -> None:
    gradient = read_run(demo_run.folder).records[0]["scores"]
    assert gradient["records"] == 8
    assert gradient["found"]["count"] >= 4  # chance finds 8 of 100 times one


def test_a_page_is_drawn_again_to_the_byte(demo_run: Finished, call: Call, tmp_path: Path) -> None:
    for name in ("results.json", "scores.csv", "images.safetensors"):
        shutil.copy(demo_run.folder / name, tmp_path / name)
    said = call("report", tmp_path)
    assert said == Said(0, f"{tmp_path / 'report.html'}\n", "")
    assert (tmp_path / "report.html").read_bytes() == (demo_run.folder / "report.html").read_bytes()


def test_the_paper_of_balle_runs_at_smoke_scale(call: Call, tmp_path: Path) -> None:
    said = call("run", "balle2022.mnist", "--scale", "smoke")
    assert (said.code, said.err) == (0, "")
    cell, page = said.out.splitlines()
    assert cell.startswith("ELU: ")
    assert page == os.path.join("runs", "balle2022.mnist-smoke", "report.html")
    assert sorted(contents(tmp_path / "runs" / "balle2022.mnist-smoke")) == FILES
    (claim,) = read_run(tmp_path / "runs" / "balle2022.mnist-smoke").records[0]["claims"]
    assert (claim["printed"], claim["holds"]) == (0.0089, None)  # printed for another scale


def test_the_demo_takes_the_options_of_a_run(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remanence_recipes.demo, "digits", lambda scale: [tiny_cell(f"at {scale}")])
    said = call("demo", "--seed", 3)
    assert (said.code, said.out.splitlines()[-1]) == (0, os.path.join("runs", "demo", "report.html"))
    (record,) = read_run(tmp_path / "runs" / "demo").records
    assert (record["cell"], record["recipe"], record["seed"]) == ("at small", "demo.digits", 3)


PROGRAMS = {"module": [sys.executable, "-m", "remanence"], "script": [str(Path(sys.executable).with_name("remanence"))]}


def process(arguments: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(arguments, env=os.environ | {"OMP_NUM_THREADS": "1"}, **(pipes | options))


def test_the_script_and_the_module_are_the_same_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"remanence": "remanence.cli:main"}
    both = [process([*program, "run", "demo.digit"]) for program in PROGRAMS.values()]
    said = [Said(each.wait(60), *each.communicate()) for each in both]
    assert said[0] == said[1]
    assert_refused(said[0], "unknown recipe `demo.digit`: did you mean `demo.digits`?")


SLOW = """
import sys, time
from tiny_cells import tiny_cell
from remanence.cli import main
from remanence_recipes import RECIPES

RECIPES["slow"] = lambda scale: [tiny_cell("one"), tiny_cell("two", split=lambda seed: time.sleep(600))]
main()
"""


def test_an_interrupted_run_keeps_what_is_finished(tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "run"
    running = process([sys.executable, "-c", SLOW, "run", "slow", "--out", str(folder)], cwd=Path(__file__).parent)
    assert running.stdout
    first = running.stdout.readline()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert first.startswith("one: ")
    assert (running.returncode, out) == (1, "")
    assert err == f"interrupted after 1 of 2 cells; what is finished is in `{folder}`\n"
    assert [record["cell"] for record in read_run(folder).records] == ["one"]
    assert sorted(contents(folder)) == FILES
    page = (folder / "report.html").read_bytes()
    assert call("report", folder).code == 0
    assert (folder / "report.html").read_bytes() == page


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_interrupting_is_an_exit_code_of_one_everywhere(
    call: Call, tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("remanence.runs.run_cell", interrupt)
    assert call("run", "tiny") == Said(1, "", "interrupted after 0 of 2 cells\n")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(remanence.data, "fetch_named", interrupt)
    assert call("data", "fetch", "mnist") == Said(1, "", "error: interrupted\n")


# ---- what is shown


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
    assert list(track(iter("abc"), total=3, label="silent")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(track(iter("abc"), total=3, label="shown")) == ["a", "b", "c"]
    out, err = capsys.readouterr()
    assert (out, "shown" in err) == ("", True)


def test_a_terminal_without_dashes_gets_the_result_all_the_same(tiny: None, tmp_path: Path) -> None:
    raw = BytesIO()
    with TextIOWrapper(raw, encoding="ascii") as terminal:
        assert printed_to(terminal, "run", "tiny", "--out", str(tmp_path)) == 0
        assert raw.getvalue().decode("ascii").startswith("one: No record was found")


# ---- what cannot be done


REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "command": (["dmeo"], ["No such command 'dmeo'", "'demo'", "remanence --help"]),
    "option": (["list", "--jsn"], ["--jsn", "--json", "`remanence list --help`"]),
    "no recipe": (["run"], ["Missing argument 'RECIPE'", "`remanence run --help`"]),
    "no sub-command": (["data"], ["Missing command", "`remanence data --help`"]),
    "recipe": (["run", "ball2022.mnist"], ["unknown recipe `ball2022.mnist`", "did you mean `balle2022.mnist`?"]),
    "scale": (["run", "tiny", "--scale", "smal"], ["unknown scale `smal`", "did you mean `small`?"]),
    "negative seed": (["run", "tiny", "--seed", "-1"], ["'--seed'", "`remanence run --help`"]),
    "word for a seed": (["run", "tiny", "--seed", "one"], ["'--seed'", "integer"]),
    "seed too large": (["run", "tiny", "--seed", "9" * 30], ["'--seed'"]),
    "no CUDA": (["run", "tiny", "--device", "cuda"], ["`device` is `cuda`", "use `cpu`"]),
    "device": (["run", "tiny", "--device", "gpu"], ["`device` must be like `cpu`", "got `gpu`"]),
    "net": (["audit", "--net", "mpl"], ["unknown net `mpl`", "did you mean `mlp`?"]),
    "attack": (["audit", "--attack", "ReconNN"], ["unknown attack `ReconNN`", "did you mean `RecoNN`?"]),
    "data set": (["audit", "--data", "digit"], ["unknown data set `digit`", "did you mean `digits`?"]),
    "set to fetch": (["data", "fetch", "minst"], ["unknown data set `minst`", "did you mean `mnist`?"]),
    "data not fetched": (["audit", "--data", "mnist"], ["`remanence data fetch mnist`"]),
    "images too small": (["audit", "--net", "cnn"], ["at least 10x10"]),
    "no table": (["audit", "--data", "no.csv", "--label", "y"], ["no.csv does not exist: check the path"]),
    "no arrays": (["audit", "--data", "no.npz"], ["no.npz does not exist: check the path"]),
    "no folder": (["audit", "--data", "no/folder"], ["no/folder must be", "got nothing there"]),
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
        with pytest.raises(BadInput, match="unknown recipe `nope`"):
            call(*arguments)


def test_a_defect_is_called_one(call: Call, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cell: Cell, **_: Any) -> Any:
        raise RuntimeError("what torch says\nin many\nlines")

    monkeypatch.setattr("remanence.runs.run_cell", broken)
    said = call("run", "tiny")
    assert (said.code, said.out) == (1, "")
    assert said.err == "error: RuntimeError: what torch says\nThis is a defect of remanence: `--debug` shows where.\n"
    with pytest.raises(RuntimeError, match="in many"):
        call("run", "tiny", "--debug")


# ---- folders and disks


def test_other_results_are_kept_unless_forced(call: Call, tiny: None, tmp_path: Path) -> None:
    assert call("run", "tiny", "--out", "run").code == 0
    before = contents(tmp_path)
    assert_refused(call("run", "tiny", "--out", "run", "--seed", 1), "`run` holds other results", "--out", "--force")
    assert contents(tmp_path) == before
    assert call("run", "tiny", "--out", "run").code == 0  # the same again is no loss
    assert call("run", "tiny", "--out", "run", "--seed", 1, "--force").code == 0
    assert {record["seed"] for record in read_run(tmp_path / "run").records} == {1}


def test_an_audit_of_something_else_is_another_run(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remanence_recipes.demo, "audit_cells", lambda source, net: [tiny_cell()])
    assert call("audit", "--out", "run").code == 0
    before = contents(tmp_path)
    for other in (["--net", "cnn"], ["--data", "mnist"], ["--label", "y"]):
        assert_refused(call("audit", "--out", "run", *other), "`run` holds other results")
    assert contents(tmp_path) == before


def test_an_audit_with_fewer_attacks_does_not_drop_the_others(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells = [tiny_cell("one"), tiny_cell("two", attack=remanence.GradientMatching(steps=1), split=no_split)]
    monkeypatch.setattr(remanence_recipes.demo, "audit_cells", lambda source, net: cells)
    assert call("audit", "--attack", "Guess", "--out", "run").code == 0
    assert [record["cell"] for record in read_run(tmp_path / "run").records] == ["one"]
    assert_refused(call("audit", "--attack", "GradientMatching", "--out", "run"), "holds other results")


def no_split(seed: int) -> Any:
    raise AssertionError("this cell was not asked for")


@pytest.mark.parametrize("arguments", [["run", "tiny", "--out"], ["demo", "--out"], ["audit", "--out"]])
def test_a_folder_that_cannot_be_made_is_refused(call: Call, tiny: None, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in ("file", os.path.join("file", "run")):
        assert_refused(call(*arguments, folder), f"cannot write into `{folder}` (Not a directory)", "`--out`")
    assert contents(tmp_path) == {"file": b"mine"}


def failing(error: OSError) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_a_read_only_folder_is_refused(call: Call, tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert call("run", "tiny", "--out", "run").code == 0
    before = contents(tmp_path)
    denied = failing(PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(remanence.results.folder, "TemporaryFile", denied)
    assert_refused(call("run", "tiny", "--out", "run"), "cannot write into `run` (Permission denied)", "`--out`")
    assert_refused(call("report", "run"), "cannot write into `run` (Permission denied)", "`--out`")
    assert contents(tmp_path) == before


@contextmanager
def full_disk(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        owner = os if name == "replace" else Path
        patch.setattr(owner, name, failing(OSError(errno.ENOSPC, "No space left on device")))
        yield


@pytest.mark.parametrize("name", ["write_bytes", "write_text", "replace"])
def test_a_full_disk_is_one_line_and_loses_nothing(call: Call, tiny: None, tmp_path: Path, name: str) -> None:
    assert call("run", "tiny", "--out", "run").code == 0
    before = contents(tmp_path)
    with full_disk(name):
        said = call("run", "tiny", "--out", "run", "--seed", 1, "--force")
    assert (said.code, said.out) == (1, "")
    assert_told(said, "No space left on device (`run", "repeat the command")
    assert len(said.err.splitlines()) == 1
    assert contents(tmp_path) == before


def test_a_full_disk_below_stdout_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full:
        assert printed_to(full, "list") == 1
    assert capsys.readouterr().err == "error: No space left on device: put that right and repeat the command\n"


def test_a_reader_that_has_enough_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        assert printed_to(closed, "list") == 1
    assert capsys.readouterr().err == ""


def printed_to(stdout: TextIO, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "argv", ["remanence", *arguments])
        return ended(main)


def test_a_redacted_run_shows_no_record(call: Call, tiny: None, tmp_path: Path) -> None:
    assert call("run", "tiny", "--out", "run").code == 0
    assert call("run", "tiny", "--out", "run", "--redact").code == 0
    assert sorted(contents(tmp_path / "run")) == ["report.html", "results.json"]
    page = (tmp_path / "run" / "report.html").read_bytes()
    assert call("report", "run").code == 0
    assert (tmp_path / "run" / "report.html").read_bytes() == page


def test_a_redacted_page_of_a_full_run(call: Call, tiny: None, tmp_path: Path) -> None:
    call("run", "tiny", "--out", "run")
    before = contents(tmp_path)
    said = call("report", "run", "--out", "public/page.html", "--redact")
    assert said == Said(0, "public/page.html\n", "")
    page = (tmp_path / "public" / "page.html").read_text()
    assert "This page is redacted" in page
    assert "data:image/png" not in page
    (tmp_path / "public" / "page.html").unlink()
    assert contents(tmp_path) == before


def test_a_page_goes_into_a_folder_that_is_there(call: Call, tiny: None, tmp_path: Path) -> None:
    call("run", "tiny", "--out", "run")
    (tmp_path / "there").mkdir()
    assert call("report", "run", "--out", "there").out == f"{os.path.join('there', 'report.html')}\n"
    (tmp_path / "file").write_text("mine")
    assert_refused(call("report", "run", "--out", "file/page.html"), "cannot write into `file`", "`--out`")


@pytest.mark.parametrize(
    ("name", "damage"),
    [("results.json", "{"), ("results.json", "[{}]"), ("scores.csv", "no\nrows\n"), ("images.safetensors", "no")],
)
def test_a_damaged_run_is_refused(call: Call, tiny: None, tmp_path: Path, name: str, damage: str) -> None:
    call("run", "tiny", "--out", "run")
    (tmp_path / "run" / name).write_text(damage)
    before = contents(tmp_path)
    assert_refused(call("report", "run"), name, "make the run again")
    assert contents(tmp_path) == before


# ---- data of one's own


def table(rows: int = 220, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Three numbers and a class that follows from them."""
    made = np.random.default_rng(0).random((rows, 3)).round(4)
    return [
        {"a": a, "b": b, "c": c, "y": ["no", "yes"][a + b > 1]} | {name: column[i] for name, column in columns.items()}
        for i, (a, b, c) in enumerate(made.tolist())
    ]


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_arrays(path: Path, *, n: int = 220, **changes: Any) -> None:
    y = np.arange(n) % 2
    x = np.random.default_rng(0).random((n, 5, 5)) / 2 + y[:, None, None] / 2
    np.savez(path, **({"x": x, "y": y} | changes))


def write_images(folder: Path, *, per_class: int = 110, last: tuple[int, int] = (5, 5)) -> None:
    generator = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            size = last if (label, i) == (1, per_class - 1) else (5, 5)
            pixels = generator.integers(100 * label, 100 * label + 150, size).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


def test_an_audit_of_a_table(call: Call, quick: None, tmp_path: Path) -> None:
    write_table(tmp_path / "people.csv", table())
    said = call("audit", "--data", "people.csv", "--label", "y", "--json")
    assert (said.code, said.err) == (0, "")
    gradient, one = parse_records(said.out, where="stdout")
    assert (gradient["release"]["kind"], one["release"]["kind"]) == ("Gradient", "AllButOne")
    assert gradient["release"]["shows"]["shape"] == "3"
    assert gradient["recipe"] == "audit people.csv --label y --net mlp"
    assert sorted(contents(tmp_path / "runs" / "audit-people")) == FILES


def test_an_audit_of_a_table_with_repeated_rows(call: Call, quick: None, tmp_path: Path) -> None:
    rows = table(210)
    write_table(tmp_path / "people.csv", rows + rows[:60])
    assert call("audit", "--data", "people.csv", "--label", "y", "--attack", "RecoNN").code == 0


def test_an_audit_of_arrays(call: Call, quick: None, tmp_path: Path) -> None:
    write_arrays(tmp_path / "faces.npz")
    said = call("audit", "--data", "faces.npz", "--attack", "RecoNN", "--redact", "--out", "audit")
    assert (said.code, said.err) == (0, "")
    (record,) = read_run(tmp_path / "audit").records
    assert (record["cell"], record["release"]["shows"]["shape"]) == ("all records but one", "1x5x5")
    assert sorted(contents(tmp_path / "audit")) == ["report.html", "results.json"]


def test_an_audit_of_a_folder_of_images(call: Call, quick: None, tmp_path: Path) -> None:
    write_images(tmp_path / "faces")
    said = call("audit", "--data", "faces", "--attack", "GradientMatching")
    assert (said.code, said.err) == (0, "")
    assert read_run(tmp_path / "runs" / "audit-faces").images["0/truth"].shape == (8, 1, 5, 5)


def arrays(**changes: Any) -> Callable[[Path], None]:
    return partial(write_arrays, **changes)


def rows(made: list[dict[str, Any]]) -> Callable[[Path], None]:
    return partial(write_table, rows=made)


LABEL, PIXELS = ["--label", "y"], (220, 5, 5)
BAD_DATA: dict[str, tuple[str, Callable[[Path], object], list[str], list[str]]] = {
    "no label": ("t.csv", rows(table()), [], ["label", "class column"]),
    "unknown label": ("t.csv", rows(table()), ["--label", "yy"], ["`yy`", "did you mean `y`?"]),
    "text in a table": ("t.csv", rows(table(b=["x"] * 220)), LABEL, ["row 2", "`b`", "'x'"]),
    "negative classes": ("t.csv", rows(table(y=[-1, -2] * 110)), LABEL, ["labels", "0..-1"]),
    "fractions for classes": ("t.csv", rows(table(y=[0.5, 1] * 110)), LABEL, ["class numbers", "0.5"]),
    "few records": ("t.csv", rows(table(199)), LABEL, ["199", "at least 200"]),
    "few different records": ("t.csv", rows(table(120) * 2), LABEL, ["120 different records", "at least 200"]),
    "one class": ("t.csv", rows(table(y=[1] * 220)), LABEL, ["one class only"]),
    "integers": ("x.npz", arrays(x=np.ones(PIXELS, int)), [], ["floats in [0, 1]", "divide 8-bit pixels by 255"]),
    "out of range": ("x.npz", arrays(x=np.full(PIXELS, 9.0)), [], ["must lie in [0, 1]", "from 9 to 9"]),
    "not finite": ("x.npz", arrays(x=np.full(PIXELS, np.nan)), [], ["must lie in [0, 1]", "nan"]),
    "a label for arrays": ("x.npz", arrays(), LABEL, ["`label`", ".csv", "leave it out"]),
    "other names": ("x.npz", partial(np.savez, z=np.ones(3)), [], ["`x` and `y`", "got z"]),
    "empty arrays": ("x.npz", arrays(n=0), [], ["0 different records", "at least 200"]),
    "objects": ("x.npz", arrays(x=np.array([{}] * 220)), [], ["x.npz cannot be read", "allow_pickle=False"]),
    "two sizes": ("faces", partial(write_images, last=(5, 6)), [], ["one size", "(5, 5)", "(6, 5)"]),
    "an empty folder": ("faces", Path.mkdir, [], ["one sub-folder of images for each class"]),
    "another file": ("notes.txt", Path.touch, [], ["a .npz, a .csv or a folder of images"]),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_is_refused_and_nothing_is_made(call: Call, quick: None, tmp_path: Path, case: str) -> None:
    name, write, arguments, words = BAD_DATA[case]
    write(tmp_path / name)
    before = contents(tmp_path)
    assert_refused(call("audit", "--data", tmp_path / name, *arguments), *words)
    assert contents(tmp_path) == before
    assert not (tmp_path / "runs").exists()


def test_a_pickle_in_the_data_is_never_run(call: Call, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    np.savez(tmp_path / "trap.npz", x=np.array([Trap()] * 220), y=np.arange(220) % 2)
    assert_refused(call("audit", "--data", "trap.npz"), "trap.npz cannot be read")
    assert not (tmp_path / "sprung").exists()


# ---- the import


HEAVY = ["sklearn", "scipy.optimize", "scipy.stats", "typer", "rich", "jinja2", "PIL", "matplotlib"]


def test_importing_the_package_is_light_and_touches_no_device() -> None:
    script = (
        "import json, sys, remanence, torch\n"
        f"print(json.dumps([[name for name in {HEAVY} if name in sys.modules], torch.cuda.is_initialized()]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [[], False]
