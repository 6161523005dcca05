"""Pictures of records on the page."""

import base64
import io
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.experiments.folder import Run
from remanence.experiments.summary import as_pixels

MAX_SIDE = 128  # pixels: a larger picture is shrunk, or photographs would make the page too heavy to mail
MAX_PICTURES = 12
OF_ATTACKS = ("truth", "reconstruction", "lookalike")


@final
@dataclass(frozen=True, kw_only=True)
class PictureRow:
    """The first pictures of one name, and how many there are."""

    name: str
    count: int
    uris: list[str]


def picture_rows(run: Run, index: int) -> list[PictureRow]:
    """The pictures that evaluations made; those of an attack's records are in its gallery."""
    named = {key.partition("/")[2]: x for key, x in run.images.items() if key.partition("/")[0] == str(index)}
    gallery = OF_ATTACKS if run.results[index].attack else ()
    return [
        PictureRow(name=name, count=len(x), uris=[png(picture) for picture in x[:MAX_PICTURES]])
        for name, x in named.items()
        if x.ndim == 4 and name not in gallery
    ]


def png(pixels: Tensor) -> str:
    """A record (channels, height, width) as a PNG data URI: its first channel in grey or its first three in colour."""
    from PIL import Image

    eight_bit = pixels if pixels.dtype == torch.uint8 else as_pixels(pixels[None])[0]
    shown = eight_bit[:3].permute(1, 2, 0).numpy() if len(pixels) >= 3 else eight_bit[0].numpy()
    image = Image.fromarray(shown.copy())
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
