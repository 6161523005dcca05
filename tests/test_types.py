from dataclasses import replace
from math import inf, nan

import pytest
import torch
from refusals import refused

from remanence import Data
from remanence.types import concat


def make(x: torch.Tensor, y: torch.Tensor | None = None, classes: int = 3) -> Data:
    return Data(x=x, y=torch.zeros(len(x), dtype=torch.int64) if y is None else y, num_classes=classes, name="pets")


@pytest.mark.parametrize(
    ("x", "y", "code"),
    [
        (torch.zeros(2, 4, dtype=torch.uint8), None, "wrong-type"),
        (torch.full((2, 4), 255.0), None, "out-of-range"),
        (torch.full((2, 4), torch.nan), None, "not-finite"),
        (torch.zeros(2, 0), None, "shape-mismatch"),
        (torch.full((2, 4), -torch.inf), None, "out-of-range"),
        (torch.zeros(2, 3, 4), None, "shape-mismatch"),
        (torch.zeros(2, 4), torch.tensor([0, 3]), "out-of-range"),
        (torch.zeros(2, 4), torch.tensor([-1, 0]), "out-of-range"),
        (torch.zeros(2, 4), torch.tensor([0]), "shape-mismatch"),
        (torch.zeros(2, 4), torch.tensor([0.0, 1.0]), "wrong-type"),
    ],
)
def test_bad_records_are_refused_by_name(x: torch.Tensor, y: torch.Tensor | None, code: str) -> None:
    with refused(code):
        make(x, y)


def test_take_to_and_concat_keep_records_and_labels_together() -> None:
    data = make(torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 1, 0]))
    part = data.take([3, 1]).to("cpu", torch.float64)
    assert torch.equal(part.x, data.x[[3, 1]].double())
    assert part.y.tolist() == [1, 1]
    assert part.shape == (1, 2, 2)
    assert part.is_image
    both = concat([data, data.take(slice(0, 1))])
    assert len(both) == 6
    assert both.y.tolist() == [0, 1, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        (torch.tensor([0.0, 1.0]), "wrong-type"),
        (torch.tensor([0, 1], dtype=torch.int32), "wrong-type"),
        (torch.tensor([0]), "shape-mismatch"),
        (torch.tensor([[0], [1]]), "shape-mismatch"),
    ],
)
def test_bad_groups_are_refused_by_name(groups: torch.Tensor, code: str) -> None:
    with refused(code, "groups"):
        replace(make(torch.rand(2, 4)), groups=groups)


def test_groups_go_with_their_records() -> None:
    data = replace(make(torch.rand(4, 3)), groups=torch.tensor([7, -2, 7, 5]))
    assert data.take([3, 0]).groups.tolist() == [5, 7]
    assert data.take(slice(1, 3)).to("cpu", torch.float64).groups.tolist() == [-2, 7]
    assert concat([data.take([1]), data.take([0, 3])]).groups.tolist() == [-2, 7, 5]
    without = replace(data, groups=None)
    assert without.take([0]).groups is None
    assert concat([data, without]).groups is None  # of some records the subject is not known


def test_records_of_different_shapes_cannot_be_joined() -> None:
    with refused("shape-mismatch", "parts"):
        concat([make(torch.rand(2, 4)), make(torch.rand(2, 5))])


def test_records_lie_in_a_box_that_can_be_given() -> None:
    x = torch.tensor([[-3.0, 7.0], [0.0, 0.5]])
    with refused("out-of-range", "x") as refusal:
        make(x)
    assert "`bounds`" in str(refusal.value)
    free = Data(x=x, y=torch.tensor([0, 1]), num_classes=2, bounds=(-inf, inf))
    assert not free.is_unit
    assert make(x.clamp(0, 1)).is_unit
    assert free.take([1]).bounds == free.to("cpu", torch.float64).bounds == (-inf, inf)
    assert replace(free, bounds=(-3.0, 7.0)).bounds == (-3.0, 7.0)
    with refused("out-of-range", "x"):
        replace(free, bounds=(0.0, inf))
    tenth = torch.full((1, 2), 0.1)  # in float32 more than the float64 0.1
    assert Data(x=tenth, y=torch.tensor([0]), num_classes=1, bounds=(0.0, 0.1)).bounds == (0.0, 0.1)


def test_an_infinite_value_is_refused_in_every_box() -> None:
    for value in (inf, -inf):
        with refused("not-finite", "x"):
            Data(x=torch.full((1, 2), value), y=torch.tensor([0]), num_classes=1, bounds=(-inf, inf))


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (0.5, 0.5), (nan, 1.0), (0.0,), [0.0, 1.0], ("0", "1"), None], ids=str)
def test_what_is_no_box_is_refused(bounds: object) -> None:
    with refused("out-of-range", "bounds"):
        Data(x=torch.zeros(1, 2), y=torch.tensor([0]), num_classes=1, bounds=bounds)  # type: ignore[arg-type]


def test_joined_records_lie_in_a_box_that_holds_all() -> None:
    unit = make(torch.rand(2, 4))
    above = replace(unit, x=unit.x * 9, bounds=(0.0, inf))
    below = replace(unit, x=-unit.x, bounds=(-1.0, 0.0))
    assert concat([unit, unit]).bounds == (0.0, 1.0)
    assert concat([unit, above]).bounds == (0.0, inf)
    assert concat([below, unit]).bounds == (-1.0, 1.0)
