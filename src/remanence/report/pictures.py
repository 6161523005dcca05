"""Pictures of records on the page."""

import base64
import io
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.experiments.folder import Run
from remanence.experiments.summary import as_pixels
from remanence.report.limits import MAX_SIDE, Limits

OF_ATTACKS = ("truth", "reconstruction", "lookalike")


@final
@dataclass(frozen=True, kw_only=True)
class PictureRow:
    """The first pictures of one name, and how many there are."""

    name: str
    count: int
    uris: list[str]


def picture_rows(run: Run, index: int, limits: Limits) -> list[PictureRow]:
    """The pictures that evaluations made; those of an attack's records are in its gallery."""
    named = {key.partition("/")[2]: x for key, x in run.images.items() if key.partition("/")[0] == str(index)}
    gallery = OF_ATTACKS if run.results[index].attack else ()
    return [
        PictureRow(name=name, count=len(x), uris=[png(picture, limits.side) for picture in x[: limits.pictures]])
        for name, x in named.items()
        if x.ndim == 4 and name not in gallery
    ]


def png(pixels: Tensor, side: int = MAX_SIDE) -> str:
    """A record (channels, height, width) as a PNG data URI: its first channel in grey or its first three in colour.

    One larger than `side` is shrunk, or photographs would make the page too heavy to mail; of a very large one only
    every so many pixels are looked at.
    """
    from PIL import Image

    rough = [max(1, length // (8 * side)) for length in pixels.shape[1:]]
    pixels = pixels[:3, :: rough[0], :: rough[1]]
    eight_bit = pixels if pixels.dtype == torch.uint8 else as_pixels(pixels[None])[0]
    shown = eight_bit[:3].permute(1, 2, 0).numpy() if len(pixels) >= 3 else eight_bit[0].numpy()
    image = Image.fromarray(shown.copy())
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
