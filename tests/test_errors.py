"""Fields that are no usable numbers and names that are not known are refused, with a code and the way out."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from time import process_time
from typing import Any, cast

import numpy as np
import pytest
from refusals import refused

from remanence.attacks import (
    KKT,
    Fitting,
    ImageLoss,
    KKTRun,
    Mnemonist,
    Powers,
    Preprocessing,
    RecoNN,
    Rounds,
    Search,
    ShiftedSurrogate,
    SimuDy,
    Simulation,
    Surrogate,
    WeightFeatures,
)
from remanence.errors import BadInput, check_above, check_between, check_min, unknown_name
from remanence.training import SGD, Adam, AdamW, ByLoss, RMSProp, Training


@dataclass(frozen=True, kw_only=True)
class Fields:
    """A record with one field of each kind that the checks tell from another."""

    count: int = 1
    counts: tuple[int, ...] | int | None = None
    lr: float = 0.0
    clip: float | None = None
    betas: Any = (1.0, 2.0)

    def __post_init__(self) -> None:
        check_min(self, count=1, counts=0, lr=0)
        check_above(self, clip=0)
        check_between(self, "betas", 0, 3, count=2)


@pytest.mark.parametrize(
    ("code", "argument", "value"),
    [
        *[("out-of-range", "count", value) for value in (0, -1)],
        *[("out-of-range", "counts", value) for value in (-1, (0, -1), [3, -2])],
        *[("out-of-range", "lr", value) for value in (-1e-3, nan, inf)],
        *[("out-of-range", "clip", value) for value in (0, -1, nan, inf)],
        *[("out-of-range", "betas", value) for value in ((0.0, 1.0), (1.0, nan), (1.0, 3.0), (1.0, inf))],
        *[("wrong-type", "count", value) for value in (1.5, 2.0, nan, inf, "1")],
        *[("wrong-type", "counts", (0, 1.5)), ("wrong-type", "lr", "a"), ("wrong-type", "clip", "a")],
        *[("wrong-type", "betas", value) for value in (2.0, "ab", ("a", "b"), [1.0, 2.0])],
        *[("shape-mismatch", "betas", value) for value in ((), (2.0,), (1.0, 1.0, 1.0))],
    ],
)
def test_a_field_that_cannot_be_used_is_refused(code: str, argument: str, value: object) -> None:
    with refused(code, argument) as caught:
        Fields(**{argument: cast(Any, value)})
    assert str(caught.value).startswith(f"`{argument}` of Fields must be ")


def test_none_integers_and_numbers_of_numpy_pass() -> None:
    assert Fields(count=cast(int, np.int64(3)), counts=(0, 2), lr=1, clip=None).count == 3
    assert Fields(betas=(np.float32(2), np.int64(1)), clip=0.5).betas == (2, 1)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: Fields(count=0), "`count` of Fields must be 1 or more, got 0"),
        (lambda: Fields(count=cast(int, "a")), "`count` of Fields must be a whole number, 1 or more, got 'a'"),
        (lambda: Fields(clip=0), "`clip` of Fields must be above 0, got 0"),
        (lambda: Fields(betas=2), "`betas` of Fields must be a tuple of 2 numbers between 0 and 3, got 2"),
    ],
)
def test_a_message_says_what_was_expected_and_what_was_got(check: Callable[[], object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        check()
    assert str(caught.value) == message


def test_an_unknown_name_is_answered_with_those_that_are_near() -> None:
    labels = ["100 images, whitened", "100 images, to convergence", "100 images"]
    known = "known: `100 images`; `100 images, to convergence`; `100 images, whitened`"
    error = unknown_name("cell", "whitned", labels, argument="cell")
    assert (error.code, error.argument) == ("unknown-name", "cell")
    assert str(error) == f"unknown cell `whitned`: did you mean `100 images, whitened`? {known}"
    assert str(unknown_name("cell", "100 Images,", labels)) == (
        "unknown cell `100 Images,`: did you mean one of `100 images, to convergence`; `100 images, whitened`? " + known
    )
    assert str(unknown_name("cell", "", labels)) == f"unknown cell ``: {known}"
    assert str(unknown_name("scale", "big", ("small", "paper"))) == "unknown scale `big`: known: paper, small"


def test_many_names_are_left_to_the_command_that_shows_them() -> None:
    many = [f"paper.figure{i}" for i in range(40)]
    assert str(unknown_name("recipe", "qqq", many, shown_by="remanence list")) == (
        "unknown recipe `qqq`: `remanence list` shows all"
    )
    assert "known: paper.figure0, " in str(unknown_name("recipe", "qqq", many))
    near = str(unknown_name("recipe", "paper", many)).partition("known: ")[0]
    assert near.count("`paper.figure") == 12
    assert near.endswith(" or 28 more? ")


WRONG: list[tuple[Callable[..., object], str, object]] = [
    (Training, "epochs", -1),
    (Training, "batch_size", 2.0),
    (Training, "weight_decay", -0.1),
    (Training, "clip", 0),
    (SGD, "lr", nan),
    (Adam, "lr", -1e-3),
    (AdamW, "weight_decay", nan),
    (RMSProp, "lr", -1),
    (ByLoss, "decrease", 0),
    (ByLoss, "factors", ((2.0, 0.1),)),
    (ByLoss, "factors", ((0.5, 0.0),)),
    (ByLoss, "factors", ((-0.1, 0.5),)),
    (KKT, "candidates", 0),
    (KKT, "runs", ()),
    (Preprocessing, "norm", inf),
    (KKTRun, "alpha", nan),
    (Powers, "first", -0.5),
    (ShiftedSurrogate, "beta", (0.0, 1.0)),
    (Rounds, "keep_fractions", (0.5, 1.0)),
    (Search, "steps", 0),
    (Simulation, "segment", nan),
    (Surrogate, "beta", 2.0),
    (SimuDy, "labels", (0, 1.5, 2)),
    (RecoNN, "hidden", (8, 0.5)),
    (RecoNN, "hidden", (0,)),
    (RecoNN, "head", "conv"),
    (Fitting, "dropout", 1.0),
    (Fitting, "validation_fraction", -0.1),
    (Fitting, "epochs", -1),
    (Fitting, "batch_size", 0),
    (WeightFeatures, "min_std_ratio", 1.0),
    (ImageLoss, "lpips", -1.0),
    (Mnemonist, "validation_fraction", 0.0),
    (Mnemonist, "reset_to", "zero"),
    (Mnemonist, "masks", -1),
]


@pytest.mark.parametrize(("kind", "field", "value"), WRONG)
def test_settings_that_would_do_nothing_are_refused(kind: Callable[..., object], field: str, value: object) -> None:
    with pytest.raises(BadInput) as caught:
        kind(**{field: value})
    assert caught.value.argument == field
    assert caught.value.code in ("out-of-range", "wrong-type", "shape-mismatch", "unknown-name", "empty")


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: WeightFeatures(digest=True, pca=3), "digest"),
        (lambda: RecoNN(head="dense", features=WeightFeatures(digest=True)), "features"),
        (lambda: Mnemonist(reconstructor=RecoNN(features=WeightFeatures(digest=True))), "reconstructor"),
    ],
    ids=["digest", "features", "reconstructor"],
)
def test_settings_that_exclude_each_other_are_refused(make: Callable[[], object], argument: str) -> None:
    with refused("conflict", argument):
        make()


HOSTILE = "\x1b[2J\x1b]0;title\x07\r\n\u202egnp.exe\u2028\ud800"


@pytest.mark.parametrize("length", [0, 100, 20_000, 120_000, 10_000_000])
def test_no_message_steers_a_terminal_or_fills_it(length: int) -> None:
    message = str(BadInput(f"the file {HOSTILE * 2} must hold numbers, got {'x' * length}{HOSTILE}: correct it"))
    assert message.isprintable()
    assert len(message) <= 1000
    assert message.startswith(r"the file \x1b[2J\x1b]0;title\x07\r\n\u202egnp.exe\u2028\ud800")
    assert message.endswith(": correct it")


def test_other_letters_and_signs_stay_as_they_are() -> None:
    text = "é \N{EN DASH} 1\N{NO-BREAK SPACE}% \N{GREEK SMALL LETTER MU} \U0001f600 日本"
    assert str(BadInput(text)) == text
    assert str(BadInput(str(BadInput(HOSTILE)))) == str(BadInput(HOSTILE))


@pytest.mark.parametrize("given", ["q", "y" * 100_000])
def test_an_unknown_name_among_very_many_is_answered_soon_and_shortly(given: str) -> None:
    many = [f"column {i} {'x' * 50}" for i in range(50_000)]
    start = process_time()
    message = str(unknown_name("column", given, many))
    assert process_time() - start < 1
    assert len(message) < 700
    assert message.endswith(" more")
