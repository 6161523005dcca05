"""Files become `Data` in [0, 1], and `Data` becomes a `Split` whose parts share no record."""

from remanence.data.datasets import CATALOGUE, Listing, data_folders, fetch_named, list_named, load
from remanence.data.fetch import FetchFailed
from remanence.data.formats import Part, from_csv, from_dataset, from_image_folder, from_npz, read_cifar, read_idx
from remanence.data.splits import Split, split

__all__ = [
    "CATALOGUE",
    "FetchFailed",
    "Listing",
    "Part",
    "Split",
    "data_folders",
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
