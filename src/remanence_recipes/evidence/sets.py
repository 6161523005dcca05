"""The data sets that the test of a leak is tried on, as far as they are there: digits, photographs, clothes, faces, a
table."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

import torch

from remanence.data import data_folders, distinct, list_named, load
from remanence.experiments import Scale
from remanence.types import Data
from remanence_recipes.records import shuffled

_NAMED = ("mnist", "cifar10", "fashion-mnist")
_FILES = {"cifar100": "cifar100-5000.npz", "fashion-mnist": "fashion.npz", "faces": "faces.npz"}
_RECORDS = 12_000  # at most of each set
IMAGES = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "faces")


def data_sets(scale: Scale) -> Mapping[str, Callable[[], Data]]:
    """The sets by name, each with what loads it: digits and a table, which need no files, and at larger scales those
    that are found.

    `faces.npz` may hold several photographs `x` of each person `y` (of AT&T's faces, ten of each of 40); for what a
    face classifier learns, their class is the same for all.
    """
    found: dict[str, Callable[[], Data]] = {"digits": partial(load, "digits"), "table": _table}
    if scale != "smoke":
        here = {listing.name for listing in list_named() if listing.present}
        found |= {name: partial(load, name, part="train") for name in _NAMED if name in here}
        for name, file in _FILES.items():
            path = next((root / file for root in data_folders() if (root / file).is_file()), None)
            if path is not None and name not in found:
                found[name] = partial(load, path)
    return found


@cache
def data_set(name: str) -> Data:
    """The records of one of the sets, each once, in a random order."""
    data = replace(data_sets("full")[name](), name=name)
    return distinct(shuffled(one_class(data) if name == "faces" else data, 0).take(slice(0, _RECORDS)))


def one_class(data: Data) -> Data:
    """The records without their classes."""
    return replace(data, y=torch.zeros_like(data.y), num_classes=2)


def _table() -> Data:
    """The rows of scikit-learn's table of breast cancers, 30 columns scaled to [0, 1]."""
    from sklearn.datasets import load_breast_cancer

    raw = load_breast_cancer()
    x = torch.from_numpy(raw.data).float()
    scaled = (x - x.amin(0)) / (x.amax(0) - x.amin(0))
    return Data(x=scaled.clamp(0, 1), y=torch.from_numpy(raw.target).long(), num_classes=2, name="table")
