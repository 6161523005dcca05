from dataclasses import replace

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
