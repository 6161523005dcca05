"""What a run leaves in its folder, whatever happens on the way."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from files import contents
from refusals import refused
from safetensors.torch import load_file
from tiny_experiments import Guess, cut, made_data, tiny_experiment, tiny_measurement, tiny_outcome

import remanence.disk
from remanence import SGD, Split, Training
from remanence.errors import BadInput
from remanence.experiments import Experiment, Outcome
from remanence.experiments.distributed import run_jobs
from remanence.experiments.folder import joined, read_run, write_run
from remanence.experiments.results import Result, dump_results
from remanence.experiments.run import Job, run_job
from remanence.metrics.leakage import retest
from remanence.report import render, write_page
from remanence.training import DPGD

ALL = {"results.json", "scores.csv", "images.safetensors", "evidence.safetensors", "report.html"}


def job(folder: Path, **changes: Any) -> Job:
    fields = {"recipe": "tiny", "scale": "small", "seed": 0, "device": "cpu", "folder": folder, "command": "remanence"}
    return Job(**(fields | changes))


def done(cells: Sequence[Experiment], folder: Path, **changes: Any) -> list[Result]:
    made, asked = [], job(folder, **changes)
    for run, record in run_job(cells, asked):
        write_page(asked.page, run, redact=asked.redact)
        made.append(record)
    return made


def never(seed: int) -> Split:
    raise AssertionError("work was done before the way was looked at")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_run_writes_five_files_and_makes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "deep"
    results = done([tiny_experiment("one"), tiny_experiment("two")], folder)
    assert names(folder) == ALL
    assert (folder / "results.json").read_text() == dump_results(results)
    assert [result.label for result in results] == ["one", "two"]
    run = read_run(folder)
    assert run.images.keys() == {f"{i}/{part}" for i in (0, 1) for part in ("truth", "reconstruction", "lookalike")}
    assert [(row["experiment"], row["record"]) for row in run.rows] == [
        (c, str(i)) for c in ("one", "two") for i in range(20)
    ]


def test_the_p_values_of_a_run_can_be_computed_again_from_its_evidence(tmp_path: Path) -> None:
    done([tiny_experiment("one"), tiny_measurement("two"), tiny_experiment("three")], tmp_path)
    evidence = load_file(tmp_path / "evidence.safetensors")
    assert evidence.keys() == {f"{i}/{name}" for i in (0, 2) for name in ("scores", "labels", "release")}
    run = read_run(tmp_path)
    for index, label in ((0, "one"), (2, "three")):
        arrays = {name.split("/")[1]: x for name, x in evidence.items() if name.startswith(f"{index}/")}
        again, test = retest(arrays, seed=0), run.results[index].attack.scores.test
        assert [row["p"] for row in run.rows_of(label)] == [f"{p:.4g}" for p in again.records.tolist()]
        assert again.together == test.p
        assert len(arrays["labels"]) == 20 + test.held_out


def test_the_pictures_are_those_of_the_private_records(tmp_path: Path) -> None:
    done([tiny_experiment()], tmp_path, seed=4)
    run, private = read_run(tmp_path), cut(made_data, 4).private
    assert torch.equal(run.images["0/truth"], (private.x * 255).round().to(torch.uint8))
    assert (run.images["0/reconstruction"] == 128).all()  # 0.5 of 255, rounded to even
    assert [row["label"] for row in run.rows] == [str(int(y)) for y in private.y]


def test_the_folder_is_complete_after_every_cell(tmp_path: Path) -> None:
    run = run_job([tiny_experiment("one"), tiny_experiment("two")], job(tmp_path))
    next(run)
    assert names(tmp_path) == ALL - {"report.html"}
    assert [record.label for record in read_run(tmp_path).results] == ["one"]


def shared(_: int) -> Split:
    """A public set that holds a target."""
    parts = cut(made_data, 0)
    return replace(parts, public=parts.private)


def relabelled(_: int) -> Split:
    parts = cut(made_data, 0)
    return replace(parts, private=replace(parts.private, y=parts.private.y + 2))


def of_integers(_: int) -> Split:
    parts = cut(made_data, 0)
    return replace(parts, test=replace(parts.test, x=(parts.test.x * 255).long()))


BAD_CELLS: dict[str, tuple[dict[str, Any], str]] = {
    "a target in the public set": ({"split": shared}, "conflict"),
    "labels outside the classes": ({"split": relabelled}, "out-of-range"),
    "integers": ({"split": of_integers}, "wrong-type"),
    "an empty split": ({"split": partial(cut, made_data, private=0)}, "empty"),
    "too few records": ({"split": partial(cut, partial(made_data, 12))}, "out-of-range"),
    "a rate of zero": ({"training": Training(optimizer=SGD(lr=0.0), epochs=3)}, "not-fitted"),
    "a rate too high": ({"training": Training(optimizer=SGD(lr=1e30), epochs=9)}, "diverged"),
}


def test_noise_that_leaves_nothing_to_learn_is_a_result_with_a_caveat(tmp_path: Path) -> None:
    unlearnt, learnt = (
        tiny_experiment(
            f"noise {noise:g}", training=Training(optimizer=SGD(lr=0.5), epochs=8, privacy=DPGD(clip=1.0, noise=noise))
        )
        for noise in (1000.0, 1e-6)
    )
    codes = [[caveat.code for caveat in record.caveats] for record in done([unlearnt, learnt], tmp_path)]
    assert ["learnt-nothing" in each for each in codes] == [True, False]


@pytest.mark.parametrize("case", BAD_CELLS)
def test_a_bad_cell_is_refused_and_the_finished_ones_are_kept(tmp_path: Path, case: str) -> None:
    changes, code = BAD_CELLS[case]
    run = run_job([tiny_experiment("good"), tiny_experiment("bad", **changes)], job(tmp_path))
    next(run)
    before = contents(tmp_path)
    with refused(code):
        next(run)
    assert contents(tmp_path) == before
    assert [record.label for record in read_run(tmp_path).results] == ["good"]


@pytest.mark.slow
def test_a_run_that_goes_on_says_why_a_cell_or_a_study_was_refused(tmp_path: Path) -> None:
    def diverging(seed: int, device: torch.device) -> Outcome:
        raise BadInput("the <rate> is too high")

    bad = tiny_experiment("bad", training=Training(optimizer=SGD(lr=0.0), epochs=3))
    cells = [bad, tiny_experiment("good"), tiny_measurement("worse", run=diverging), tiny_experiment("better")]
    made = done(cells, tmp_path, skip_refused=True)
    assert [r.kind for r in made] == ["refused", "attack", "refused", "attack"]
    assert made[0].refusal.startswith("the victim did not fit")
    run, page = read_run(tmp_path), (tmp_path / "report.html").read_text()
    assert run.results == made
    assert {row["experiment"] for row in run.rows} == {"good", "better"}
    assert {name.split("/")[0] for name in run.images} == {"1", "3"}
    assert "Refused: the victim did not fit" in page
    assert "Refused: the &lt;rate&gt; is too high" in page
    assert [r.label for r in done(cells, tmp_path, skip_refused=True)] == [cell.label for cell in cells]
    with refused("refused"):
        done([bad, replace(cells[2], label="worst")], tmp_path / "other", skip_refused=True)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"scale": "full"}, {"recipe": "other"}], ids=lambda changes: next(iter(changes))
)
def test_other_results_are_not_touched(tmp_path: Path, changes: dict[str, Any]) -> None:
    done([tiny_experiment()], tmp_path)
    before = contents(tmp_path)
    with refused("conflict", "--out"):
        done([tiny_experiment()], tmp_path, **changes)
    assert contents(tmp_path) == before
    done([tiny_experiment()], tmp_path, **changes, force=True)
    record = read_run(tmp_path).results[0]
    assert {name: getattr(record, name) for name in changes} == changes


def test_results_that_a_run_would_not_make_again_are_other_results(tmp_path: Path) -> None:
    done([tiny_experiment("one"), tiny_experiment("two")], tmp_path)
    before = contents(tmp_path)
    for cells in ([tiny_experiment("one")], [tiny_experiment("one"), tiny_experiment("two", attack=Guess(grey=0.4))]):
        with refused("conflict", "--out"):
            done(cells, tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_the_same_run_may_be_repeated_and_completed(tmp_path: Path) -> None:
    next(run_job([tiny_experiment("one"), tiny_experiment("two")], job(tmp_path)))  # broken off after the first cell
    done([tiny_experiment("one"), tiny_experiment("two")], tmp_path)
    done([tiny_experiment("one"), tiny_experiment("two")], tmp_path)
    assert [record.label for record in read_run(tmp_path).results] == ["one", "two"]


def counted_cells(calls: list[str]) -> list[Experiment]:
    def measure(label: str, seed: int, device: torch.device) -> Outcome:
        calls.append(label)
        return tiny_outcome(seed, device)

    measured = [tiny_measurement(label, run=partial(measure, label)) for label in ("one", "three")]
    return [measured[0], tiny_experiment("two"), measured[1]]


def interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that ended after two of three cells."""
    monkeypatch.setenv("REMANENCE_COMMIT", "0123456789ab")
    run = run_job(counted_cells([]), job(folder, resume=True))
    next(run)
    next(run)
    return folder


def test_a_run_that_was_interrupted_goes_on_after_its_finished_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, calls = interrupted(tmp_path / "resumed", monkeypatch), list[str]()
    results = done(counted_cells(calls), folder, resume=True)
    assert calls == ["three"]
    assert [result.label for result in results] == ["one", "two", "three"]
    assert "note: 2 of 3 experiments were finished before" in capsys.readouterr().err
    done(counted_cells(calls), tmp_path / "undisturbed", resume=True)
    for name in ALL - {"results.json", "report.html"}:
        assert (folder / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    undisturbed = read_run(tmp_path / "undisturbed").results
    assert [replace(each, seconds=0.0) for each in results] == [replace(each, seconds=0.0) for each in undisturbed]
    calls.clear()
    done(counted_cells(calls), folder, resume=True)  # it is complete, so it is made again
    assert calls == ["one", "three"]


def test_of_several_jobs_those_that_are_finished_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMANENCE_COMMIT", "0123456789ab")
    calls: list[str] = []
    jobs = [(counted_cells(calls), job(tmp_path / str(seed), seed=seed, resume=True)) for seed in (0, 1)]
    made = run_jobs(jobs)
    for _ in range(4):
        next(made)
    assert calls == ["one", "three", "one"]
    calls.clear()
    found = [(each.seed, result.label) for each, _, result in run_jobs(jobs)]
    assert calls == ["three"]
    assert found == [(seed, label) for seed in (0, 1) for label in ("one", "two", "three")]
    calls.clear()
    list(run_jobs(jobs))
    assert calls == ["one", "three"] * 2


@pytest.mark.parametrize(
    ("changes", "commit"),
    [
        ({"resume": False}, "0123456789ab"),
        ({"force": True}, "0123456789ab"),
        ({"command": "another"}, "0123456789ab"),
        ({}, "ba9876543210"),
        ({}, "0123456789ab-dirty"),
    ],
)
def test_what_another_command_or_code_finished_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], commit: str
) -> None:
    folder, calls = interrupted(tmp_path, monkeypatch), list[str]()
    monkeypatch.setenv("REMANENCE_COMMIT", commit)
    done(counted_cells(calls), folder, **({"resume": True} | changes))
    assert calls == ["one", "three"]


def test_files_of_two_moments_are_not_taken_for_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, calls = interrupted(tmp_path / "a", monkeypatch), list[str]()
    other = tmp_path / "b"  # where the last cell was finished before the first
    write_run(other, joined([read_run(folder).part(1)]))
    assert read_run(other).results[0].label == "two"
    (other / "images.safetensors").write_bytes((folder / "images.safetensors").read_bytes())
    done(counted_cells(calls), other, resume=True)
    assert calls == ["one", "three"]
    assert read_run(other).images.keys() == {f"1/{part}" for part in ("truth", "reconstruction", "lookalike")} | {
        "0/greys",
        "2/greys",
    }


@pytest.mark.parametrize("name", sorted(ALL))
def test_files_of_somebody_else_are_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    (tmp_path / "notes.txt").write_text("mine too")
    before = contents(tmp_path)
    with refused("conflict", "--out"):
        done([tiny_experiment()], tmp_path)
    assert contents(tmp_path) == before
    done([tiny_experiment()], tmp_path, force=True)
    assert names(tmp_path) == ALL | {"notes.txt"}
    assert contents(tmp_path)["notes.txt"] == b"mine too"


def test_a_full_disk_is_not_called_a_wrong_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "a reason"))
    monkeypatch.setattr(remanence.disk, "TemporaryFile", full)
    with pytest.raises(OSError, match="a reason"):
        done([tiny_experiment(split=never)], tmp_path)


def test_a_redacted_run_shows_no_record_and_removes_what_an_earlier_one_showed(tmp_path: Path) -> None:
    done([tiny_experiment("one")], tmp_path)
    assert names(tmp_path) == ALL
    records = done([tiny_experiment("one")], tmp_path, redact=True)
    assert names(tmp_path) == {"results.json", "report.html"}
    run = read_run(tmp_path)
    assert (run.results, run.rows, run.images) == (records, [], {})
    page = (tmp_path / "report.html").read_text()
    assert "This page is redacted" in page
    assert "data:image/png" not in page
    assert render(run) == page


def test_rows_of_a_table_are_kept_as_numbers(tmp_path: Path) -> None:
    source = partial(made_data, shape=(5,))
    done([tiny_experiment(split=partial(cut, source))], tmp_path)
    private = cut(source, 0).private
    assert torch.equal(read_run(tmp_path).images["0/truth"], private.x)


def test_a_study_stands_beside_the_cells(tmp_path: Path) -> None:
    records = done([tiny_experiment("one"), tiny_measurement("two"), tiny_experiment("three")], tmp_path, seed=3)
    kinds = {record.label: record.kind for record in records}
    assert kinds == {"one": "attack", "two": "measurement", "three": "attack"}
    run = read_run(tmp_path)
    assert run.results == records
    assert {row["experiment"] for row in run.rows} == {"one", "three"}
    drawn = torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(3))
    assert torch.equal(run.images["1/greys"], (drawn * 255).round().to(torch.uint8))
    assert records[1].measures[0].value == pytest.approx(float(drawn.mean()), rel=1e-5)
    assert render(run).encode() == (tmp_path / "report.html").read_bytes()


def test_a_redacted_study_keeps_its_curves_and_nothing_about_a_record(tmp_path: Path) -> None:
    done([tiny_measurement()], tmp_path, redact=True)
    assert names(tmp_path) == {"results.json", "report.html"}
    (record,) = read_run(tmp_path).results
    assert [figure.title for figure in record.figures] == ["A curve"]
    assert "data:image/png" not in (tmp_path / "report.html").read_text()


def test_the_same_study_may_be_repeated_and_another_one_not(tmp_path: Path) -> None:
    done([tiny_measurement("one")], tmp_path)
    done([tiny_measurement("one")], tmp_path)
    with refused("conflict", "--out"):
        done([tiny_measurement("two")], tmp_path)
    with refused("conflict", "--out"):
        done([tiny_experiment("one")], tmp_path)
