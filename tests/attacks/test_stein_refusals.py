"""Gradients and models that Stein refuses, with the code of the reason."""

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
    name_of,
    planted,
    release_of,
    sent_to,
    some_digits,
    unit_vectors,
)
from refusals import refused
from torch import nn

from remanence import BadInput, Data
from remanence.attacks import Stein
from remanence.models import apply, cnn, initial_params, mlp, server_params
from remanence.releases import Gradient
from remanence.training.losses import CrossEntropy
from remanence.types import Params
from remanence_recipes.wang2023.setting import Square, SquareAndCube

# ---- residuals of zero


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
    remaining = batch.take([1])
    found = Stein().run(replace(release, batch_size=None), seed=0)
    assert error(found, remaining) < 1e-4


# ---- bad input


@pytest.mark.parametrize("part", ["at", "gradient"])
def test_wrong_names_and_shapes_are_refused(part: str) -> None:
    release = planted(nn.Tanh, rows=50)
    params: Params = getattr(release, part)
    wrong: list[Params] = [
        {f"net.{name}": p for name, p in params.items()},
        {name: p for name, p in params.items() if name != "3.bias"},
        params | {"1.weight": params["1.weight"].T},
        params | {"5.weight": params["1.weight"]},
    ]
    for given in wrong:
        with refused("shape-mismatch", part):
            Stein().run(_with(release, part, given), seed=0)


def _with(release: Gradient, part: str, params: Params) -> Gradient:
    return replace(release, at=params) if part == "at" else replace(release, gradient=params)


@pytest.mark.parametrize("part", ["at", "gradient"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["1.weight", "1.bias", "3.weight", "3.bias"])
def test_what_is_not_finite_is_refused(part: str, bad: float, name: str) -> None:
    release = planted(nn.Tanh, rows=50)
    params = {key: p.clone() for key, p in getattr(release, part).items()}
    params[name].view(-1)[-1] = bad
    with refused("not-finite", part):
        Stein().run(_with(release, part, params), seed=0)


def test_a_gradient_of_zero_tells_nothing() -> None:
    release = planted(nn.Tanh, rows=50)
    with refused("empty", "gradient"):
        Stein().run(replace(release, gradient={k: torch.zeros_like(g) for k, g in release.gradient.items()}), seed=0)


def test_a_head_gradient_of_zero_tells_the_head_nothing() -> None:
    release = planted(nn.Tanh, rows=50)
    gradient = release.gradient | {"3.weight": torch.zeros_like(release.gradient["3.weight"])}
    with refused("not-identifiable", "tensor"):
        Stein(source="head").run(replace(release, gradient=gradient), seed=0)


def test_more_records_than_features_or_rows_are_refused() -> None:
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)).double()
    many = Data(x=x, y=torch.zeros(6).long(), num_classes=2)
    with refused("not-identifiable", "batch_size"):
        Stein().run(planted(nn.Tanh, many, rows=50), seed=0)
    with refused("not-identifiable", "batch_size"):
        Stein().run(planted(nn.Tanh, unit_vectors(5), rows=4), seed=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_dependent_records_are_refused_with_their_rank(digits: Data, dtype: torch.dtype) -> None:
    two = digits.x[:2]
    batch = Data(x=torch.cat([two, two.mean(0, keepdim=True)]), y=torch.tensor([0, 1, 1]), num_classes=2)
    with refused("not-identifiable", "batch_size"):
        Stein().run(sent_to(batch, nn.ELU, dtype=dtype), seed=0)


def test_a_record_that_comes_twice_or_is_black_is_refused() -> None:
    two = unit_vectors()
    with refused("not-identifiable", "batch_size"):
        Stein().run(planted(nn.ReLU, replace(two, x=two.x[[0, 0]])), seed=0)
    with refused("not-identifiable", "batch_size"):
        Stein().run(planted(nn.ReLU, replace(two, x=two.x * torch.tensor([[1.0], [0.0]]))), seed=0)


@pytest.mark.parametrize(
    ("activation", "left"),
    [(nn.Identity, "one combination of the batch"), (Square, "the span of the batch")],
    ids=name_of,
)
def test_activations_that_tell_too_little_are_refused_with_what_is_left(activation: Activation, left: str) -> None:
    with refused("not-identifiable") as caught:
        Stein().run(planted(activation), seed=0)
    assert f"only {left}" in str(caught.value)


def layers(*kinds: str) -> nn.Sequential:
    make: dict[str, Activation] = {
        "first": lambda: nn.Linear(FEATURES, 5),
        "last": lambda: nn.Linear(5, 1),
        "only": lambda: nn.Linear(FEATURES, 1),
        "tanh": nn.Tanh,
        "dropout": nn.Dropout,
        "flatten": nn.Flatten,
    }
    return nn.Sequential(*(make[kind]() for kind in kinds))


OTHERS = [
    nn.Linear(FEATURES, 1),
    layers(),
    layers("flatten"),
    layers("only"),
    layers("tanh", "first", "tanh", "last"),
    layers("first", "tanh", "dropout", "last"),
    layers("first", "tanh", "last", "tanh"),
    cnn((1, 10, 10), 1),
]


@pytest.mark.parametrize("model", OTHERS, ids=[" ".join(type(m).__name__ for m in o.modules()) for o in OTHERS])
def test_models_of_other_layers_are_refused(model: nn.Module) -> None:
    with refused("unsupported-model", "release"):
        Stein().run(replace(planted(nn.Tanh, rows=50), model=model), seed=0)


def test_an_unknown_source_is_refused() -> None:
    with refused("unknown-name", "source"):
        Stein(source="heads")  # type: ignore[arg-type]


def test_a_layer_too_narrow_to_settle_the_batch_is_refused(digits: Data) -> None:
    release = honest(some_digits(digits, 0, 4), nn.Tanh, hidden=(12,))
    with refused("not-identifiable", "batch_size"):
        Stein().run(release, seed=0)


def test_the_papers_span_is_for_two_layers_only(digits: Data) -> None:
    release = honest(some_digits(digits, 0, 4), nn.Tanh, hidden=(150, 500))
    with refused("unsupported-model", "exact_span"):
        Stein(exact_span=False).run(release, seed=0)


def test_an_activation_that_mixes_neurons_is_refused(digits: Data) -> None:
    release = honest(some_digits(digits, 0, 2), partial(nn.Softmax, dim=1))
    with refused("unsupported-model", "release"):
        Stein().run(release, seed=0)


def test_one_feature_and_an_unknown_number_of_records() -> None:
    batch = Data(x=torch.tensor([[0.7]]).double(), y=torch.tensor([1]), num_classes=2)
    release = replace(planted(nn.Tanh, batch), batch_size=None)
    assert_exact(Stein().run(release, seed=0), batch)


def test_a_shape_that_does_not_fit_the_first_layer_is_refused() -> None:
    with pytest.raises(BadInput, match="shape"):
        Stein().run(replace(planted(nn.Tanh), shape=(19,)), seed=0)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_no_records_is_refused(size: int) -> None:
    with refused("out-of-range", "batch_size"):
        Stein().run(replace(planted(nn.Tanh), batch_size=size), seed=0)


def test_rows_that_are_all_alike_are_named_in_the_refusal() -> None:
    release = planted(nn.Tanh, rows=50)
    at = release.at | {"1.weight": torch.ones_like(release.at["1.weight"])}
    with refused("not-identifiable", "at"):
        Stein().run(replace(release, at=at), seed=0)


def test_an_even_head_under_cross_entropy_is_refused() -> None:
    """The residuals of a record sum to zero, so what reaches the rows is rounding."""
    model = mlp((FEATURES,), 3, hidden=(ROWS,), activation=nn.Tanh)
    with pytest.raises(BadInput):
        Stein().run(release_of(model, server_params(model, seed=0), unit_vectors(), loss=CrossEntropy()), seed=0)


@pytest.mark.parametrize("wrong", [{"restarts": 0}, {"projections": 0}])
def test_a_setting_of_zero_is_refused_by_its_name(wrong: dict[str, int]) -> None:
    with refused("out-of-range", next(iter(wrong))):
        Stein(**wrong).run(planted(nn.Tanh), seed=0)  # type: ignore[arg-type]


def test_an_activation_that_is_used_twice_counts_twice() -> None:
    """`named_children` names a module that comes again only once."""
    act = nn.Tanh()
    model = nn.Sequential(nn.Linear(FEATURES, 50), act, nn.Linear(50, 1), act)
    at = {name: p.detach().double() for name, p in initial_params(model, seed=0).items()}
    with pytest.raises(BadInput, match="fully connected layers"):
        Stein().run(release_of(model, at, unit_vectors()), seed=0)
