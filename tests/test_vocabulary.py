"""The field's words for the field's things: no identifier of the package uses a word of our own for them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import remanence

ROOT = Path(remanence.__file__).parent.parent
BANNED = {  # our word: the field's
    "anew": "reset, re-initialised",
    "apart": "distance",
    "beside": "residual, with, next to",
    "begun": "initial, from_release",
    "behind": "after",
    "cut": "split, clip, truncate",
    "cutting": "split, clip, truncate",
    "doubt": "caveat, implausibility",
    "doubts": "caveats",
    "drawn": "sampled, rendered",
    "ends": "endpoints, initial and final weights",
    "evened": "whitened",
    "judge": "discriminator, validation",
    "judged": "validated",
    "kept": "checkpoint, selected, keep_fraction",
    "kink": "ReLU boundary",
    "kinks": "ReLU boundaries",
    "leaning": "label logits",
    "leanings": "label logits",
    "least": "min_",
    "most": "max_",
    "moved": "delta, update",
    "mover": "optimizer",
    "octaves": "scales",
    "owed": "backpropagated error, delta",
    "own": "per_example, per_model",
    "place": "index, step, position",
    "places": "indices, positions",
    "pull": "gradient, contribution",
    "pulls": "gradients, contributions",
    "reader": "reconstructor",
    "rest": "residual, remaining, stationary",
    "resting": "stationary",
    "seen": "activations, observed",
    "share": "fraction, ratio, probability",
    "shares": "fractions, probabilities",
    "sharpness": "surrogate temperature",
    "shifter": "optimizer",
    "slope": "gradient, derivative",
    "slopes": "gradients, derivatives",
    "spread": "std, init_std, scale",
    "stages": "lr schedule, curriculum",
    "steepness": "surrogate temperature",
    "told": "identified, is_member, description",
    "way": "update, direction, mode",
    "ways": "updates, directions, modes",
    "whole": "total, generic, finite mask",
    "written": "closed form, analytic",
}
CLEAN = ("remanence", "remanence_recipes")  # files and folders that hold to it
FILES = sorted(
    {f for entry in CLEAN for f in ((ROOT / entry).rglob("*.py") if (ROOT / entry).is_dir() else [ROOT / entry])}
)


def words(identifier: str) -> Iterator[str]:
    """The lower-case words of a snake_case or CamelCase identifier."""
    for part in identifier.split("_"):
        yield from (word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part))


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Every name that a file defines: modules' and functions' variables, arguments, fields, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def banned(source: str) -> list[str]:
    """Each identifier with a word of ours, and the field's word for it."""
    return [
        f"line {line}: `{name}`, say {BANNED[word]}"
        for line, name in identifiers(source)
        for word in words(name)
        if word in BANNED
    ] + [
        f"line {line}: a function called `of`, say from_...; parse"
        for line, name in identifiers(source)
        if name == "of"
    ]


def test_identifiers_use_the_words_of_the_field() -> None:
    found = {str(path.relative_to(ROOT)): banned(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: words for path, words in found.items() if words} == {}


def test_a_banned_word_is_found_wherever_it_is_defined() -> None:
    assert banned("def f(slope):\n    kept_places = 1\n    self.wayOf = 2")
    assert banned("class Spread:\n    share: float = 0.0")
    assert not banned("gradient = placement = ways_and = None".replace("ways_and", "always"))
