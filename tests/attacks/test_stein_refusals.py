"""Gradients and models that Stein refuses, with the code of the reason."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from gradients import (
    FEATURES,
    PAPERS,
    ROWS,
    Activation,
    assert_exact,
    error,
    honest,
    planted,
    release_of,
    sent_to,
    some_digits,
    unit_vectors,
)
from refusals import refused
from torch import Tensor, nn

from remanence import Data
from remanence.attacks import Stein
from remanence.data import load
from remanence.models import apply, cnn, mlp, server_params
from remanence.releases import Gradient
from remanence.training.losses import CrossEntropy
from remanence.types import Params
from remanence_recipes.wang2023.setting import Square, SquareAndCube


@pytest.mark.parametrize("seed", range(3))
def test_without_an_offset_the_papers_estimator_loses_a_record(seed: int) -> None:
    """E[x^2 + x^3] = 1: every record with label +1 nearly vanishes (METHODS 3.2); little is not nothing for an SVD."""
    release, truth = planted(SquareAndCube, seed=seed, offset=0.0), unit_vectors()
    assert error(replace(PAPERS, source="head").run(release, seed=0), truth) > 0.6
    assert_exact(Stein().run(release, seed=0), truth)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_record_without_a_residual_leaves_no_trace(dtype: torch.dtype) -> None:
    batch = unit_vectors()
    model = mlp(batch.shape, 1, hidden=(ROWS,), activation=SquareAndCube)
    at = server_params(model, seed=0, offset=0.0)
    at["3.bias"] += 1 - apply(model, at, batch.x[:1])[0]
    release = release_of(model, {name: p.to(dtype) for name, p in at.items()}, batch)
    with refused("not-identifiable", "batch_size"):
        Stein().run(release, seed=0)
    found = Stein().run(replace(release, batch_size=None), seed=0)
    assert error(found, batch.take([1])) < 1e-4


def small() -> Gradient:
    return planted(nn.Tanh, rows=50)


def with_values(part: str, name: str, change: Callable[[Tensor], Tensor]) -> Gradient:
    params: Params = getattr(small(), part)
    return replace(small(), **{part: params | {name: change(params[name])}})


def last_entry(value: float) -> Callable[[Tensor], Tensor]:
    return lambda p: torch.cat([p.flatten()[:-1], p.new_tensor([value])]).view_as(p)


def of_records(x: Tensor, activation: Activation = nn.ReLU, **options: int) -> Gradient:
    return planted(activation, Data(x=x.double(), y=torch.arange(len(x)) % 2, num_classes=2), **options)


def dependent(dtype: torch.dtype) -> Gradient:
    two = load("digits").x[:2]
    batch = Data(x=torch.cat([two, two.mean(0, keepdim=True)]), y=torch.tensor([0, 1, 1]), num_classes=2)
    return sent_to(batch, nn.ELU, dtype=dtype)


def four_digits(activation: Activation, *hidden: int) -> Gradient:
    return honest(some_digits(load("digits"), 0, 4), activation, hidden=hidden)


def even_head() -> Gradient:
    """The residuals of a record sum to zero under cross-entropy, so that only rounding reaches the rows."""
    model = mlp((FEATURES,), 3, hidden=(ROWS,), activation=nn.Tanh)
    return release_of(model, server_params(model, seed=0), unit_vectors(), loss=CrossEntropy())


Case = tuple[Callable[[], Gradient], str, str | None]
REFUSED: dict[str, Case] = {
    "gradient of zeros": (
        lambda: replace(small(), gradient={n: torch.zeros_like(g) for n, g in small().gradient.items()}),
        *("empty", "gradient"),
    ),
    "more records than features": (lambda: of_records(torch.rand(6, 4), rows=50), "not-identifiable", "batch_size"),
    "more records than rows": (lambda: of_records(torch.eye(20)[:5], rows=4), "not-identifiable", "batch_size"),
    "a record twice": (lambda: of_records(torch.eye(20)[[0, 0]]), "not-identifiable", "batch_size"),
    "a black record": (lambda: of_records(torch.eye(20)[:2] * torch.tensor([[1], [0]])), *("not-identifiable", None)),
    "dependent records": (lambda: dependent(torch.float64), "not-identifiable", "batch_size"),
    "dependent records in float32": (lambda: dependent(torch.float32), "not-identifiable", "batch_size"),
    "narrow layer": (lambda: four_digits(nn.Tanh, 12), "not-identifiable", "batch_size"),
    "activation over neurons": (lambda: four_digits(partial(nn.Softmax, dim=1), 500), "unsupported-model", "release"),
    "linear": (lambda: planted(nn.Identity), "not-identifiable", None),
    "quadratic": (lambda: planted(Square), "not-identifiable", None),
    "equal rows": (lambda: with_values("at", "1.weight", torch.ones_like), "not-identifiable", "at"),
    "even head": (even_head, "unsupported-model", "model"),
    "wrong shape": (lambda: replace(small(), shape=(19,)), "unsupported-model", None),
    "no records": (lambda: replace(small(), batch_size=0), "out-of-range", "batch_size"),
    "negative number of records": (lambda: replace(small(), batch_size=-1), "out-of-range", "batch_size"),
    "as many records as features, uncounted": (
        lambda: replace(of_records(torch.eye(4), nn.ELU), batch_size=None),
        *("not-enough-knowledge", "batch_size"),
    ),
    "labels of another number": (lambda: replace(small(), labels=torch.tensor([0, 1, 1])), "shape-mismatch", "labels"),
    **{
        f"{value} in {part} {name}": (partial(with_values, part, name, last_entry(value)), "not-finite", part)
        for part in ("at", "gradient")
        for value in (float("nan"), float("inf"))
        for name in ("1.weight", "1.bias", "3.weight", "3.bias")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_release_that_does_not_determine_the_batch_is_refused(case: str) -> None:
    make, code, argument = REFUSED[case]
    with refused(code, argument):
        Stein().run(make(), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["at", "gradient"])
def test_wrong_names_and_shapes_are_refused(part: str) -> None:
    params: Params = getattr(small(), part)
    wrong: list[Params] = [
        {f"net.{name}": p for name, p in params.items()},
        {name: p for name, p in params.items() if name != "3.bias"},
        params | {"1.weight": params["1.weight"].T},
        params | {"5.weight": params["1.weight"]},
    ]
    for given in wrong:
        with refused("shape-mismatch", part):
            Stein().run(replace(small(), **{part: given}), seed=0)


ONLY_FIRST, LAST, TANH = nn.Linear(FEATURES, 5), nn.Linear(5, 1), nn.Tanh()
OTHERS = [
    nn.Linear(FEATURES, 1),
    nn.Sequential(),
    nn.Sequential(nn.Flatten()),
    nn.Sequential(nn.Linear(FEATURES, 1)),
    nn.Sequential(nn.Tanh(), ONLY_FIRST, TANH, LAST),
    nn.Sequential(ONLY_FIRST, TANH, nn.Dropout(), LAST),
    nn.Sequential(ONLY_FIRST, TANH, LAST, TANH),  # one module, used twice
    cnn((1, 10, 10), 1),
]


@pytest.mark.parametrize("model", OTHERS, ids=[" ".join(type(m).__name__ for m in o.modules()) for o in OTHERS])
def test_models_of_other_layers_are_refused(model: nn.Module) -> None:
    with refused("unsupported-model", "release"):
        Stein().run(replace(small(), model=model), seed=0)


@pytest.mark.parametrize(
    ("fields", "make", "code", "argument"),
    [
        ({"restarts": 0}, small, "out-of-range", "restarts"),
        ({"projections": 0}, small, "out-of-range", "projections"),
        ({"source": "heads"}, small, "unknown-name", "source"),
        ({"contraction": "one"}, small, "unknown-name", "contraction"),
        ({"plug_in": 1}, small, "conflict", "plug_in"),
        ({"plug_in": 1, "exact_span": False}, lambda: planted(nn.ReLU), "conflict", "plug_in"),
        ({"exact_span": False}, lambda: four_digits(nn.Tanh, 150, 500), "unsupported-model", "exact_span"),
        (
            {"source": "head"},
            lambda: with_values("gradient", "3.weight", torch.zeros_like),
            *("not-identifiable", "tensor"),
        ),
    ],
)
def test_settings_that_cannot_serve_are_refused(
    fields: dict[str, int], make: Callable[[], Gradient], code: str, argument: str
) -> None:
    with refused(code, argument):
        Stein(**fields).run(make(), seed=0)
