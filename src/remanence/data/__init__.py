"""Loading of files as `Data` in [0, 1], and splitting of `Data` into parts that have no record in common."""

from remanence.data._parsing import Part
from remanence.data.arrays import from_cifar, from_dataset, from_idx
from remanence.data.catalogue import CATALOGUE, Listing, data_folders, fetch_named, list_named, load
from remanence.data.download import FetchFailed
from remanence.data.images import from_image_folder
from remanence.data.npz import from_npz
from remanence.data.splits import Split, distinct, split
from remanence.data.tables import from_csv, from_csvs
from remanence.data.tokens import TextSplit, Tokens, decode, python_docs, tokenize

__all__ = [
    "CATALOGUE",
    "FetchFailed",
    "Listing",
    "Part",
    "Split",
    "TextSplit",
    "Tokens",
    "data_folders",
    "decode",
    "distinct",
    "fetch_named",
    "from_cifar",
    "from_csv",
    "from_csvs",
    "from_dataset",
    "from_idx",
    "from_image_folder",
    "from_npz",
    "list_named",
    "load",
    "python_docs",
    "split",
    "tokenize",
]
