"""The documentation keeps its word: its Python runs, its links lead somewhere, and what a user meets is explained."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import nn

import remanence
from remanence import SGD, Training, load, split
from remanence.attacks import ATTACKS
from remanence.cli import app
from remanence.engine import train
from remanence.metrics import MATCHINGS, METRICS
from remanence.models import initial_params
from remanence_recipes import RECIPES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def run(page: Path) -> None:
    """Every Python block of a page, one after the other in one fresh namespace, as a reader would paste them."""
    torch.set_num_threads(1)
    blocks = re.findall(r"^```python\n(.*?)^```$", text(page), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    namespace: dict[str, object] = {"__name__": "pasted"}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page.name}, example {number}", "exec"), namespace)


def test_the_examples_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(ROOT / "README.md")
    promised = (
        r"found (\d+)% of the records, 95 % interval (\d+)% to (\d+)%; chance finds 1 %\n"
        r"mean SSIM (\d\.\d\d); unrelated digits reach (\d\.\d\d)\n"
    )
    match = re.fullmatch(promised, capsys.readouterr().out)
    assert match
    assert re.search(promised.replace(r"\n", r"\n\s*"), text(ROOT / "README.md"))
    share, low, high, ours, null = map(float, match.groups())
    assert 1 < low <= share <= high  # more than chance
    assert 0 < null < ours <= 1
    assert (tmp_path / "victim.safetensors").is_file()


def test_the_attack_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    guide = DOCS / "add-an-attack.md"
    run(guide)
    printed = capsys.readouterr().out.splitlines()
    assert printed
    assert all(f"    {line}\n" in text(guide) for line in printed)


def test_the_release_of_two_files_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From random first weights, tuned as the example says."""
    monkeypatch.chdir(tmp_path)
    parts = split(load("digits"), private=20, fixed=0, public=0, test=400, seed=0)
    for name, part in (("private", parts.private), ("others", parts.test)):
        np.savez(f"{name}.npz", x=part.x.numpy(), y=part.y.numpy())
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    base = initial_params(model, seed=0)
    torch.save(base, "base.pt")
    torch.save(train(Training(optimizer=SGD(lr=0.05), epochs=20), model, base, parts.private), "tuned.pt")
    run(DOCS / "threat-models.md")
    told, found = capsys.readouterr().out.splitlines()
    assert told == "20 of 20 told to be in the set, which by the rank holds 20"
    assert int(found.removesuffix(" of 20 found")) >= 18


def test_the_readme_is_short() -> None:
    assert 80 <= len(text(ROOT / "README.md").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
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


def caveat_codes() -> set[str]:
    """The codes that stand in the source, wherever a caveat is made."""
    calls = [
        node
        for path in (ROOT / "src" / "remanence").rglob("*.py")
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Caveat"
    ]
    return {ast.literal_eval(word.value) for call in calls for word in call.keywords if word.arg == "code"}


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


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_every_attack_has_a_section_with_its_fields(attack: type) -> None:
    section = re.search(
        rf"^## {attack.__name__}$(.*?)(?=^## )", text(DOCS / "choose-an-attack.md"), re.DOTALL | re.MULTILINE
    )
    assert section
    for field in dataclasses.fields(attack):
        shown = re.search(rf"^\| `{field.name}` \| `?(.+?)`? \|", section[1], re.MULTILINE)
        assert shown, field.name
        assert eval(shown[1], vars(remanence) | vars(remanence.attacks)) == field.default, field.name
    assert f"`{attack.__name__}`" in text(ROOT / "README.md")


def test_everything_that_list_shows_is_described() -> None:
    evidence, recipes = text(DOCS / "evidence.md"), text(DOCS / "reproduce.md")
    assert not [each.name for each in (*MATCHINGS, *METRICS) if f"| `{each.name}` |" not in evidence]
    assert all(f"| `{name}` |" in evidence for name in ("normalised_X", "greedy_X"))  # made by functions
    assert not [name for name in RECIPES if f"| `{name}` |" not in recipes]
