"""Searches in place: what they say when they diverge, and octaves."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from remanence import (
    Adam,
)
from remanence.errors import Diverged
from remanence.search.solver import coarser, search_in_place


def test_a_search_that_diverges_is_told() -> None:
    x = nn.Parameter(torch.zeros(3))
    with pytest.raises(Diverged, match="the search diverged by its step 5: lower the rate"):
        search_in_place(lambda x: (0.0015 - x).sqrt().sum(), x, optimizer=Adam(), steps=5, label="")


def test_what_no_rate_mends_is_not_blamed_on_the_rate() -> None:
    def search(objective: Callable[[Tensor], Tensor]) -> None:
        search_in_place(objective, nn.Parameter(torch.zeros(3)), optimizer=Adam(), steps=1, label="")

    with pytest.raises(Diverged, match="the objective is not finite where the search begins, whatever the rate"):
        search(lambda x: (x - 2).sqrt().sum())
    with pytest.raises(Diverged, match="the slope of the objective is not finite where the search begins"):
        search(lambda x: (x * x).sqrt().sum())


def test_octaves_move_the_coarse_parts_of_images() -> None:
    """Where a slope is mostly noise from pixel to pixel, the mean of many pixels is what can be told."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 1, 16, 16, generator=generator)
    ramp = torch.linspace(0, 1, 16).expand(2, 1, 16, 16)

    def rough(x: Tensor) -> Tensor:
        return (x - ramp).square().sum() + 0.03 * (60 * x + 20 * noise).sin().sum()

    off = []
    for octaves in (0, 3):
        x = nn.Parameter(torch.full((2, 1, 16, 16), 0.5))
        search_in_place(rough, x, optimizer=Adam(lr=0.02), steps=40, label="", octaves=octaves)
        found = x.detach()
        assert 0 <= float(found.min()) <= float(found.max()) <= 1
        off.append(float(nn.functional.avg_pool2d(found - ramp, 4).square().mean()))
    assert off[1] < 0.5 * off[0]


def test_octaves_end_at_one_pixel_and_tables_have_none() -> None:
    assert [tuple(part.shape) for part in coarser(torch.zeros(3, 1, 8, 4), 9)] == [(3, 1, 4, 2), (3, 1, 2, 1)]
    assert coarser(torch.zeros(3, 8), 2) == []
