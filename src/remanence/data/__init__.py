"""Files become `Data` in [0, 1], and `Data` becomes a `Split` whose parts share no record."""

from remanence.data.arrays import from_dataset, from_npz, read_cifar, read_idx
from remanence.data.datasets import CATALOGUE, Listing, data_folders, fetch_named, list_named, load
from remanence.data.fetch import FetchFailed
from remanence.data.images import from_image_folder
from remanence.data.reading import Part
from remanence.data.splits import Split, distinct, split
from remanence.data.tables import from_csv

__all__ = [
    "CATALOGUE",
    "FetchFailed",
    "Listing",
    "Part",
    "Split",
    "data_folders",
    "distinct",
    "fetch_named",
    "from_csv",
    "from_dataset",
    "from_image_folder",
    "from_npz",
    "list_named",
    "load",
    "read_cifar",
    "read_idx",
    "split",
]
