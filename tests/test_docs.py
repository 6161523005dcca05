"""The documentation keeps its word: its Python runs, its links lead somewhere, and nothing a user meets goes unexplained."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer

import remanence.checks
import remanence.experiment
from remanence.attacks import ATTACKS
from remanence.cli import app
from remanence.metrics import MATCHINGS, METRICS
from remanence_recipes import RECIPES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DOCS = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def run(page: Path) -> None:
    """Every Python block of a page, one after the other in one fresh namespace, as a reader would paste them."""
    torch.set_num_threads(1)
    namespace: dict[str, object] = {"__name__": "pasted"}
    for number, example in enumerate(examples(page), start=1):
        exec(compile(example, f"{page.name}, example {number}", "exec"), namespace)


def test_the_readme_s_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(README)
    printed = capsys.readouterr().out
    found, low, high, ssim, null = (float(text) for text in re.findall(r"(\d+(?:\.\d+)?)(?=%|;|$)", digits_of(printed)))
    assert 0 < low <= found <= high
    assert 0.9 < ssim <= 1
    assert 0.6 < null < 0.85
    assert (tmp_path / "victim.safetensors").is_file()


def digits_of(printed: str) -> str:
    """The printed lines as the README promises them, `found A% ... B% to C%` and `mean SSIM D; ... reach E`."""
    pattern = (
        r"found (\d+%) of the records, 95 % interval (\d+%) to (\d+%); chance finds 1 %\n"
        r"mean SSIM (\d\.\d\d); unrelated digits reach (\d\.\d\d)\n"
    )
    match = re.fullmatch(pattern, printed)
    assert match, printed
    return "; ".join(match.groups())
