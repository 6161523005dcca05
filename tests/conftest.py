"""What all tests share: one thread each, and a small world to attack."""

import pytest
import torch

from remanence import Data, load
from remanence.data import Split, split

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits() -> Data:
    return load("digits")


@pytest.fixture(scope="session")
def parts(digits: Data) -> Split:
    return split(digits, private=40, fixed=60, public=300, test=1000, seed=0)
