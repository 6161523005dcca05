import pytest
import torch

from remanence import Data
from remanence.errors import BadInput
from remanence.types import concat


def make(x: torch.Tensor, y: torch.Tensor | None = None, classes: int = 3) -> Data:
    return Data(x=x, y=torch.zeros(len(x), dtype=torch.int64) if y is None else y, num_classes=classes, name="pets")


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (torch.zeros(2, 4, dtype=torch.uint8), None, "pets must hold floats in .0, 1., got torch.uint8.*255"),
        (torch.full((2, 4), 255.0), None, "must lie in .0, 1., got values from 255 to 255"),
        (torch.full((2, 4), torch.nan), None, "must lie in .0, 1., got nan among its values"),
        (torch.zeros(2, 0), None, r"must hold a number each or more, got the shape \(0,\)"),
        (torch.full((2, 4), -torch.inf), None, "must lie in .0, 1."),
        (torch.zeros(2, 3, 4), None, r"got \(2, 3, 4\)"),
        (torch.zeros(2, 4), torch.tensor([0, 3]), r"labels of pets must lie in 0\.\.2, got 0\.\.3"),
        (torch.zeros(2, 4), torch.tensor([-1, 0]), r"got -1\.\.0"),
        (torch.zeros(2, 4), torch.tensor([0]), "one int64 label for each of the 2 records"),
        (torch.zeros(2, 4), torch.tensor([0.0, 1.0]), "got torch.float32"),
    ],
)
def test_bad_records_are_refused_by_name(x: torch.Tensor, y: torch.Tensor | None, says: str) -> None:
    with pytest.raises(BadInput, match=says):
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


def test_records_of_different_shapes_cannot_be_joined() -> None:
    with pytest.raises(BadInput, match="different shapes"):
        concat([make(torch.rand(2, 4)), make(torch.rand(2, 5))])
