"""Imports point one way, and no attack can see the truth."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import remanence

ROOT = Path(remanence.__file__).parent
LAYERS = [  # lowest first
    {"columns", "errors", "seeds"},
    {"bounds", "progress"},
    {"disk"},
    {"types"},
    {"data"},
    {"models"},
    {"training"},
    {"engine"},
    {"releases"},
    {"caching"},
    {"search"},
    {"execution"},
    {"shadow"},
    {"attacks"},
    {"diagnostics"},
    {"metrics"},
    {"experiments"},
    {"reproduction"},
    {"report"},
    {"auditing"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
SOURCES = {
    path: path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"
}


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Every `remanence` module a file imports, lazily or not, with each name taken from it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "remanence":
            assert node.level == 0
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "remanence":
                    yield alias.name, ""


def wrong_way(layer: str, source: str) -> list[str]:
    """The imports in `source` that do not point down from `layer`."""
    wrong = []
    for module, name in imported(source):
        target = [*module.split("."), name][1]
        if target != layer and not RANK[target] < RANK[layer]:
            wrong.append(f"{layer} imports {target}")
    return wrong


def sees_the_truth(source: str) -> list[str]:
    forbidden = {"metrics", "audit", "Victim", "Case", "Reveal", "train_victim", "train_victims"}
    return [f"{m}.{n}" for m, n in imported(source) if forbidden & {*m.split("."), n}]


def test_imports_point_one_way() -> None:
    for path, source in SOURCES.items():
        assert layer_of(path) in RANK, f"{path.name} is in no layer: give it one in LAYERS"
        assert wrong_way(layer_of(path), source) == [], path


def test_no_attack_imports_what_holds_the_truth() -> None:
    seen = {path.name: sees_the_truth(source) for path, source in SOURCES.items() if layer_of(path) == "attacks"}
    assert {name: found for name, found in seen.items() if found} == {}
    assert len(seen) > 10


def test_the_library_imports_no_recipe() -> None:
    """The command line loads them by name."""
    for path, source in SOURCES.items():
        assert not re.search(r"^\s*(from|import) remanence_recipes", source, re.MULTILINE), path


def test_the_rules_can_fail() -> None:
    assert wrong_way("types", "def f():\n    from remanence.metrics import evaluate")
    assert wrong_way("data", "from remanence.models import mlp")
    assert sees_the_truth("from remanence.releases import Gradient, Case")
    assert sees_the_truth("import remanence.metrics.evaluation")
    assert not sees_the_truth("from remanence.releases import KnowsGradient")
