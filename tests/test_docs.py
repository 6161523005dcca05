"""The documentation is correct: its Python runs, its links resolve, its tables are current, and it is complete."""

import ast
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from remanence.attacks import ATTACKS
from remanence.cli import app
from remanence.metrics import MATCHINGS, METRICS
from remanence_recipes import RECIPES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / part / "README.md" for part in ("examples", "results"))]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture
def printed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs every Python block of a page, in one namespace, as a reader would paste them, and returns the output."""

    def run(page: Path) -> list[str]:
        torch.set_num_threads(1)
        monkeypatch.chdir(tmp_path)
        blocks = re.findall(r"^```python\n(.*?)^```$", text(page), flags=re.DOTALL | re.MULTILINE)
        namespace: dict[str, object] = {"__name__": "pasted"}
        for number, block in enumerate(blocks, start=1):
            exec(compile(block, f"{page.name}, example {number}", "exec"), namespace)
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.slow
def test_the_audit_of_the_readme_prints_what_it_shows(printed_by: Any) -> None:
    shown = text(ROOT / "README.md").split("report.save")[1]
    printed = printed_by(ROOT / "README.md")
    for label in ("severity ", "FirstLayer "):
        (line,) = [each for each in printed if each.startswith(label)]
        assert line.partition(", p ")[0] in shown


@pytest.mark.slow
def test_the_blocks_of_the_tutorial_run(printed_by: Any) -> None:
    printed = printed_by(DOCS / "tutorial.md")
    assert all(f"    {line}\n" in text(DOCS / "tutorial.md") for line in printed)
    assert printed


@pytest.mark.slow
def test_the_attacks_of_the_library_page_run(printed_by: Any) -> None:
    gradient, tuned, rank, weights, own = printed_by(DOCS / "library.md")
    found = [int(line.split("found ")[1].split(" of")[0]) for line in (gradient, tuned, weights, own)]
    assert found[0] == 8
    assert found[1] >= 16
    assert found[2] >= 5
    assert found[3] <= 2
    assert rank.endswith("20 records")


@pytest.mark.slow
def test_the_attack_of_the_guide_runs(printed_by: Any) -> None:
    guide = DOCS / "add-an-attack.md"
    printed = printed_by(guide)
    assert printed
    assert all(f"    {line}\n" in text(guide) for line in printed)


def test_lengths() -> None:
    assert 100 <= len(text(ROOT / "README.md").splitlines()) <= 140
    assert len(text(DOCS / "choose-an-attack.md").split()) <= 1000


def test_links_resolve() -> None:
    for page in PAGES:
        for link in LINK.findall(text(page)):
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as their addresses: small letters, hyphens for blanks, other signs dropped."""
    headings = re.findall(r"^#+ (.+)$", text(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index() -> None:
    linked = {(DOCS / link).resolve() for link in LINK.findall(text(DOCS / "README.md"))}
    assert {page for page in DOCS.rglob("*.md") if page.name != "README.md"} <= linked


@pytest.mark.slow
def test_generated_tables_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    monkeypatch.setattr(sys, "argv", ["build.py", "--check"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(DOCS / "build.py"), run_name="__main__")
    assert not end.value.code, f"run `make docs`: {end.value.code}"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_every_attack_has_a_page_with_its_fields(attack: type) -> None:
    pages = [page for page in (DOCS / "methods").glob("*.md") if text(page).startswith(f"# {attack.__name__}: ")]
    assert len(pages) == 1
    assert f"<!-- generated: fields remanence.attacks.{attack.__name__} -->" in text(pages[0])
    for part in ("Idea", "Equation", "Algorithm", "Cost"):
        assert f"**{part}" in text(pages[0]), part
    assert f"`{attack.__name__}`" in text(ROOT / "README.md")


def caveat_codes() -> set[str]:
    """The codes in the source, wherever a caveat is made."""
    calls = [
        node
        for path in (ROOT / "src" / "remanence").rglob("*.py")
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Caveat"
    ]
    return {ast.literal_eval(word.value) for call in calls for word in call.keywords if word.arg == "code"}


@pytest.mark.slow
def test_every_caveat_has_a_row() -> None:
    assert caveat_codes() == set(re.findall(r"^\| `([a-z-]+)` \|", text(DOCS / "caveats.md"), flags=re.MULTILINE))


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by the words that call it."""
    inside = getattr(command, "commands", {})
    if not inside:
        yield " ".join(words), command
    for name, sub in inside.items():
        yield from commands(sub, (*words, name))


def test_every_command_and_option_is_described() -> None:
    described, readme = text(DOCS / "command-line.md"), text(ROOT / "README.md")
    for name, command in commands(typer.main.get_command(app)):
        assert f"`{name}" in described
        assert f"`remanence {name}" in readme
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        assert not {option for option in options if f"`{option}" not in described}


def test_everything_that_list_shows_is_described() -> None:
    evidence, recipes = text(DOCS / "evidence.md"), text(DOCS / "reproduce.md")
    assert not [each.name for each in (*MATCHINGS, *METRICS) if f"| `{each.name}` |" not in evidence]
    assert all(f"| `{name}` |" in evidence for name in ("normalised_X", "greedy_X"))  # made by functions
    assert not [name for name in RECIPES if f"`{name}`" not in recipes]
