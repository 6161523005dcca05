"""`remanence reproduce`: the table, the list, the plan, the runs and the page."""

import json
from pathlib import Path

import pytest
from command_line import ROOT, Call, assert_refused
from tiny_experiments import tiny_measurement

from remanence.reproduction import Paper, PaperClaim, Quantity, UpperBound
from remanence_recipes import RECIPES, papers

KEYS = ["paper", "where", "claim", "printed", "tolerance", "ours", "low", "high", "chance", "seeds", "budget"]
KEYS += ["status", "recipe", "minutes"]
RESULTS = ("--results", ROOT / "results")


def test_the_table_has_every_claim(call: Call) -> None:
    said = call("reproduce", *RESULTS)
    assert (said.code, said.err) == (0, "")
    total = sum(len(paper.claims) for paper in papers.PAPERS)
    assert said.out.splitlines()[-1].startswith(f"{total} claims: ")
    for paper in papers.PAPERS:
        assert paper.title in said.out
        assert all(claim.where in said.out for claim in paper.claims)


def test_the_list_has_these_keys_and_no_others(call: Call) -> None:
    rows = json.loads(call("reproduce", *RESULTS, "--json").out)
    assert all(list(row) == KEYS for row in rows)
    assert {row["paper"] for row in rows} == {paper.name for paper in papers.PAPERS}
    assert {row["status"] for row in rows} <= {"beaten", "reproduced", "smaller", "open", "contradicted", "not run"}
    (elu,) = [row for row in rows if row["claim"] == "MNIST, ELU: mean squared error, by our reconstructor."]
    assert elu["printed"] == 0.0089
    assert elu["low"] < elu["ours"] < elu["high"] < elu["printed"] < elu["chance"]
    assert len(elu["seeds"]) >= 3


def test_papers_and_statuses_select(call: Call) -> None:
    rows = json.loads(call("reproduce", "wang2023", *RESULTS, "--json").out)
    assert {row["paper"] for row in rows} == {"wang2023"}
    not_run = json.loads(call("reproduce", *RESULTS, "--only", "not-run", "--only", "contradicted", "--json").out)
    assert {row["status"] for row in not_run} == {"not run", "contradicted"}


def test_what_cannot_be_done_is_said(call: Call, tmp_path: Path) -> None:
    assert_refused(call("reproduce"), "`results`", "clone", "--results")
    assert_refused(call("reproduce", "ball2022", *RESULTS), "ball2022", "balle2022")
    assert_refused(call("reproduce", *RESULTS, "--only", "done"), "done", "not-run")
    assert_refused(call("reproduce", *RESULTS, "--page", tmp_path / "page.pdf"), "page.pdf", ".html")


def test_the_plan_is_shown_and_nothing_is_run(call: Call, tmp_path: Path) -> None:
    said = call("reproduce", *RESULTS, "--plan", "--minutes", 30)
    assert (said.code, said.err) == (0, "")
    assert "minutes on one H200" in said.out.splitlines()[0]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """One paper with one claim about a recipe that takes no time."""
    monkeypatch.setitem(RECIPES, "made2020.grey", lambda scale: [tiny_measurement("one"), tiny_measurement("two")])
    quantities = (Quantity(recipe="made2020.grey", experiments=("one", "two"), name="mean grey"),)
    claim = PaperClaim(
        where="figure 1", text="It is grey.", criterion=UpperBound(quantities=quantities, bound=1.0), minutes=1.0
    )
    monkeypatch.setattr(papers, "PAPERS", (Paper(name="made2020", title="Made (2020)", claims=(claim,)),))


@pytest.mark.usefixtures("made")
def test_what_fits_is_run_and_written(call: Call, tmp_path: Path) -> None:
    (tmp_path / "results" / "other").mkdir(parents=True)
    (tmp_path / "results" / "other" / "old.json").write_text("[]", encoding="utf-8")
    (row,) = json.loads(call("reproduce", "--json").out)
    assert (row["status"], row["minutes"]) == ("not run", 1.0)
    little = call("reproduce", "--minutes", 0.4, "--device", "cpu")
    assert "does not fit" in little.out
    said = call("reproduce", "--minutes", 2, "--device", "cpu")
    assert said.code == 0
    assert "made2020.grey, one: " in said.out
    assert "decides made2020, figure 1\n" in said.out
    assert said.out.splitlines()[-1].startswith("1 claim: 0 beaten, 1 reproduced")
    (row,) = json.loads(call("reproduce", "--json").out)
    assert (row["status"], row["seeds"]) == ("reproduced", [3])
    assert (tmp_path / "results" / "made2020" / "grey.json").exists()
    assert (tmp_path / "runs" / "reproduce" / "made2020.grey-seed-3" / "report.html").exists()
    again = call("reproduce", "--minutes", 2, "--device", "cpu", "--json")
    assert "0 runs" in again.err
    assert json.loads(again.out) == [row]


def test_the_page_is_a_file_or_in_a_folder(call: Call, tmp_path: Path) -> None:
    said = call("reproduce", "wang2023", *RESULTS, "--page", tmp_path)
    assert (said.code, said.out) == (0, f"{tmp_path / 'reproduction.html'}\n")
    html = (tmp_path / "reproduction.html").read_text(encoding="utf-8")
    assert "theorem 5.1" in html
    assert "balle2022" not in html
