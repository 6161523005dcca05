"""The completed experiment that the tests of results share."""

import pytest
import torch
from made_result import LOST, PRIVATE, made_completed
from tiny_experiments import made_data

from remanence.experiments import Completed


@pytest.fixture(scope="module")
def completed() -> Completed:
    """Reconstructions in reverse order: half exact, half worse and worse, four missing, one broken."""
    data = made_data(200)
    truth, unrelated = data.take(slice(0, PRIVATE)), data.take(slice(PRIVATE, 200))
    noise = torch.rand(truth.x.shape, generator=torch.Generator().manual_seed(1))
    fraction = torch.linspace(-1, 1, PRIVATE).clamp(min=0).reshape(-1, 1, 1, 1)
    x = ((1 - fraction) * truth.x + fraction * noise).flip(0)[LOST:]
    x[0] = torch.nan
    return made_completed(truth, unrelated, x)
