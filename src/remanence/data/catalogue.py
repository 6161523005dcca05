"""The named data sets: what they are, where their files are, and `load`, which also loads your own files."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final, get_args

import torch

from remanence.data._parsing import Part, parsing, user_path
from remanence.data.arrays import from_cifar, from_idx
from remanence.data.download import KnownFile, Source, fetch
from remanence.data.images import from_image_folder
from remanence.data.npz import from_npz
from remanence.data.tables import from_csv
from remanence.errors import BadInput, unknown_name
from remanence.types import Data, concat


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """A named set; its first `train` files are the training part, the others the test part."""

    description: str
    parse: Callable[[Sequence[Path]], Data]
    source: Source | None = None  # None: the records come with an installed package
    train: int = 0

    def files(self, part: Part) -> tuple[KnownFile, ...]:
        files = () if self.source is None else self.source.files
        return {"train": files[: self.train], "test": files[self.train :], "all": files}[part]


@final
@dataclass(frozen=True, kw_only=True)
class Listing:
    """A line of `remanence data list`; `where` is None for a set that needs no files or whose files are missing."""

    name: str
    present: bool
    where: Path | None
    description: str


def load(source: str | Path, *, part: Part = "all", label: str | None = None, encode: str | None = None) -> Data:
    """Load a named set, or your own .npz, .csv (with the name of its `label` column) or folder of images.

    `encode="auto"` takes columns of a .csv that are no numbers too: see `from_csv`.

    A string that is a name in the catalogue means that set; write `./mnist` for a folder called mnist.
    """
    if part not in get_args(Part):
        raise unknown_name("part", part, get_args(Part), argument="part")
    path = user_path(source, argument="source")
    if label is not None and path.suffix.lower() != ".csv":
        message = f"`label` names the class column of a .csv file, got it for {source}: leave it out"
        raise BadInput(message, code="conflict", argument="label")
    if encode is not None and path.suffix.lower() != ".csv":
        message = f"`encode` is for the columns of a .csv file, got it for {source}: leave it out"
        raise BadInput(message, code="conflict", argument="encode")
    if source == "":
        raise unknown_name("data set", "", CATALOGUE, argument="source")
    if isinstance(source, str) and source in CATALOGUE:
        return _load_named(source, CATALOGUE[source], part)
    if path.suffix.lower() == ".npz":
        return from_npz(path, part=part)
    if part != "all":
        message = f"`part` of {source} must be all, got {part}: only named sets and .npz files have parts"
        raise BadInput(message, code="conflict", argument="part")
    return _load_path(path, str(source), label, encode)


def _load_path(path: Path, given: str, label: str | None, encode: str | None) -> Data:
    with parsing(path, "a path"):
        path.exists()  # a name may be too long, and a folder above it closed
    if path.suffix.lower() == ".csv":
        if label is None and path.exists():
            message = f"`label` must name the class column of {path}, got none: give the column's name"
            raise BadInput(message, code="missing-argument", argument="label")
        return from_csv(path, label or "", encode=encode)
    if path.is_dir():
        return from_image_folder(path)
    if path.exists() or os.path.dirname(given):
        found = "another kind of file" if path.exists() else "nothing there"
        message = f"{path} must be a .npz, a .csv or a folder of images, got {found}: check the path"
        raise BadInput(message, code="wrong-type" if path.exists() else "missing-file", argument="source")
    raise unknown_name("data set", given, CATALOGUE, argument="source")


def _load_named(name: str, entry: Entry, part: Part) -> Data:
    if entry.source is None and part != "all":
        message = f"`part` of {name} must be all, got {part}: it is not published in parts, use `split`"
        raise BadInput(message, code="conflict", argument="part")
    paths = [_checked(name, entry.source.folder, file) for file in entry.files(part)] if entry.source else []
    return replace(entry.parse(paths), name=name)


def _checked(name: str, folder: str, file: KnownFile) -> Path:
    path = _find(folder, file)
    if path is None:
        looked = " and ".join(str(root / folder) for root in data_folders()) or "no folder, as there is no home"
        raise BadInput(
            f"{name} needs the file {file.name}, got none in {looked}: run `remanence data fetch {name}`, "
            f"or put the file into `$REMANENCE_DATA/{folder}/`",
            code="missing-file",
            argument="source",
        )
    got = file.digest_of(path)
    if got != file.digest:
        raise BadInput(
            f"{path} must have the {file.algorithm} {file.digest}, got {got}: "
            f"delete it and run `remanence data fetch {name}`",
            code="damaged-file",
            argument="source",
        )
    return path


def _find(folder: str, file: KnownFile) -> Path | None:
    paths = (root / folder / file.name for root in data_folders())
    return next((path for path in paths if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that is closed to us
        return False


def data_folders() -> list[Path]:
    """The folders that are searched for files, in this order: `$REMANENCE_DATA` if it is set, then the user's cache,
    where there is a home directory."""
    given, cache = os.environ.get("REMANENCE_DATA"), os.environ.get("XDG_CACHE_HOME")
    folders = [user_path(given, argument="REMANENCE_DATA")] if given else []
    with suppress(RuntimeError):  # a process in a container may have neither $HOME nor a user
        folders.append(Path(cache or Path.home() / ".cache") / "remanence")
    return folders


def fetch_named(name: str, *, root: Path | None = None, address: str | None = None) -> list[Path]:
    """Download a named set into `root`, or the first of `data_folders()`; `address` is a mirror to use instead."""
    if name not in CATALOGUE:
        raise unknown_name("data set", name, CATALOGUE, argument="name")
    source = CATALOGUE[name].source
    if source is None:
        return []
    if not (roots := [root] if root else data_folders()):
        message = "there is no home directory to put files into: set `$REMANENCE_DATA` to a folder"
        raise BadInput(message, code="missing-file", argument="root")
    return fetch(source, roots[0], address=address)


def list_named() -> list[Listing]:
    """List every set of the catalogue and whether its files are there; their content is checked on loading."""
    return [_listing(name, entry) for name, entry in CATALOGUE.items()]


def _listing(name: str, entry: Entry) -> Listing:
    paths = [_find(entry.source.folder, file) for file in entry.files("all")] if entry.source else []
    present = None not in paths
    where = paths[0].parent if present and paths and paths[0] else None
    return Listing(name=name, present=present, where=where, description=entry.description)


def _parse_digits(_: Sequence[Path]) -> Data:
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.from_numpy(found.images).float().div(16).unsqueeze(1)
    return Data(x=x, y=torch.from_numpy(found.target).long(), num_classes=10)


def _parse_idx_pairs(paths: Sequence[Path]) -> Data:
    pairs = zip(paths[::2], paths[1::2], strict=True)
    return concat(from_idx(images, labels, num_classes=10, name=images.name) for images, labels in pairs)


def _idx_entry(description: str, address: str, folder: str, digests: Sequence[str]) -> Entry:
    names = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    files = tuple(KnownFile(name=name, digest=digest) for name, digest in zip(names, digests, strict=True))
    source = Source(address=address, folder=folder, files=files)
    return Entry(description=description, parse=_parse_idx_pairs, source=source, train=2)


_TORONTO = "https://www.cs.toronto.edu/~kriz/"

CATALOGUE: dict[str, Entry] = {
    "digits": Entry(
        description="1,797 handwritten digits, 1x8x8, 10 classes; comes with scikit-learn",
        parse=_parse_digits,
    ),
    "mnist": _idx_entry(
        "60,000 + 10,000 handwritten digits, 1x28x28, 10 classes",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _idx_entry(
        "60,000 + 10,000 pieces of clothing, 1x28x28, 10 classes",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "fashion-mnist",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "cifar10": Entry(
        description="50,000 + 10,000 photographs, 3x32x32, 10 classes",
        parse=partial(from_cifar, label_bytes=1, num_classes=10, name="cifar10"),
        train=5,
        source=Source(
            address=_TORONTO,
            folder="cifar-10-batches-bin",
            archive=KnownFile(name="cifar-10-binary.tar.gz", digest="c32a1d4ab5d03f1284b67883e8d87530"),
            files=tuple(
                KnownFile(name=f"{name}.bin", digest=digest, algorithm="sha1")
                for name, digest in {
                    "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
                    "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
                    "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
                    "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
                    "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
                    "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
                }.items()
            ),
        ),
    ),
    "cifar100": Entry(
        description="50,000 + 10,000 photographs, 3x32x32, 100 classes",
        parse=partial(from_cifar, label_bytes=2, num_classes=100, name="cifar100"),
        train=1,
        source=Source(
            address=_TORONTO,
            folder="cifar-100-binary",
            archive=KnownFile(name="cifar-100-binary.tar.gz", digest="03b5dce01913d631647c71ecec9e9cb8"),
            files=(
                KnownFile(name="train.bin", digest="6172c7755cfe09b2fe270c85cebc1b15"),
                KnownFile(name="test.bin", digest="4499cfba6c016c1be1438163640a0898"),
            ),
        ),
    ),
}
