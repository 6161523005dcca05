"""What all tests share: one thread each, a small world to attack, and the order of the files."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from remanence import Data, load
from remanence.data import Split, split

torch.set_num_threads(1)

TESTS = Path(__file__).parent
FIRST = ("chaos", "execution", "test_examples.py", "recipes", "reproduction/test_papers.py")  # few tests that take long


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests take long begin, or one worker would end alone with them; then those of most tests."""
    tests = Counter(item.path for item in items)

    def order(item: pytest.Item) -> tuple[int, int]:
        name = item.path.relative_to(TESTS)
        return next((i for i, first in enumerate(FIRST) if name.is_relative_to(first)), len(FIRST)), -tests[item.path]

    items.sort(key=order)


@pytest.fixture(scope="session")
def digits() -> Data:
    return load("digits")


@pytest.fixture(scope="session")
def parts(digits: Data) -> Split:
    return split(digits, private=40, fixed=60, public=300, test=1000, seed=0)
