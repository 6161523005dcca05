"""The parser of a folder of images with one sub-folder for each class."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from remanence.data._parsing import (
    Array,
    as_floats,
    as_tensor,
    check_one_size,
    check_unpacked,
    first_of,
    parsing,
    user_path,
)
from remanence.disk import open_regular
from remanence.errors import MAX_NAME, BadInput, printable
from remanence.progress import track
from remanence.types import Data

if TYPE_CHECKING:
    import PIL.Image

_IMAGES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}
_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_MAX_PIXELS = 2**25  # of one image: far more than any network takes


def from_image_folder(path: Path | str) -> Data:
    """Load images of one size from one sub-folder for each class, in the order of the sub-folders' names."""
    folder = user_path(path)
    files = _class_files(folder)
    sizes, modes = zip(*_headers([file for file, _ in files]), strict=True)
    check_one_size([str(file) for file, _ in files], sizes)
    mode = "L" if set(modes) <= set(_GREY) else "RGB"
    unpacked = len(files) * prod(sizes[0]) * len(mode)
    check_unpacked(folder, unpacked, sum(file.stat().st_size for file, _ in files))
    pixels = np.stack([_pixels(file, mode) for file, _ in track(files, total=len(files), label="images")])
    y = torch.tensor([label for _, label in files])
    name = printable(folder.resolve().name, MAX_NAME)
    return Data(x=as_floats(as_tensor(pixels)), y=y, num_classes=int(y[-1]) + 1, name=name)


def _headers(files: list[Path]) -> list[tuple[tuple[int, int], str]]:
    """The size and mode of each image; all that cannot be used are named in one refusal."""
    found, faults = list[tuple[tuple[int, int], str]](), list[BadInput]()
    for file in track(files, total=len(files), label="sizes of images"):
        try:
            found.append(_header(file))
        except BadInput as fault:
            faults.append(fault)
    if not faults:
        return found
    said = first_of([printable(str(fault), 180) for fault in faults], f"of {len(files)} images")
    raise BadInput(said, code=faults[0].code, argument="path") from None


def _class_files(folder: Path) -> list[tuple[Path, int]]:
    with parsing(folder, "a folder"):
        classes = sorted(sub for sub in folder.iterdir() if sub.is_dir() and not sub.name.startswith("."))
        found = [sorted(file for file in sub.iterdir() if file.suffix.lower() in _IMAGES) for sub in classes]
    if not classes:
        message = f"{folder} must hold one sub-folder of images for each class, got no sub-folder: make them"
        raise BadInput(message, code="empty", argument="path")
    for sub, files in zip(classes, found, strict=True):
        if not files:
            message = f"the class folder {sub} must hold {', '.join(_IMAGES)} files, got none: fill or remove it"
            raise BadInput(message, code="empty", argument="path")
    return [(file, label) for label, files in enumerate(found) for file in files]


def _header(file: Path) -> tuple[tuple[int, int], str]:
    with _opened(file) as image:
        if image.mode not in _GREY + _COLOUR:
            message = f"{file} must have 8 bits for each channel, got pixels of mode {image.mode}: convert it"
            raise BadInput(message, code="wrong-type", argument="path")
        return image.size, image.mode


def _pixels(file: Path, mode: str) -> Array:
    with _opened(file) as image:
        # Pillow warns about a palette with transparency unless it goes through RGBA
        image = image.convert("RGBA") if image.mode in ("P", "PA") else image
        pixels = np.asarray(image.convert(mode))
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


@contextmanager
def _opened(file: Path) -> Iterator["PIL.Image.Image"]:
    from PIL import Image

    limit = min(_MAX_PIXELS, Image.MAX_IMAGE_PIXELS or _MAX_PIXELS)
    with parsing(file, "an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Pillow says of damage that it can pass over
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            # a closed list of formats, so that a disguised file never reaches a decoder that runs programs
            with open_regular(file) as raw, Image.open(raw, formats=sorted(set(_IMAGES.values()))) as image:
                if prod(image.size) > limit:
                    raise Image.DecompressionBombError
                yield image
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            message = f"{file} must have at most {limit} pixels, got a decompression bomb: remove it"
            raise BadInput(message, code="too-large", argument="path") from error
