"""How many bits a CUDA device keeps of the factors of its products."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def precision(*, tf32: bool) -> Iterator[None]:
    """Matrix products and convolutions on a CUDA device with TF32's ten bits, or with all of float32's."""
    cudnn: Any = torch.backends.cudnn  # its `conv` is made at import, where a type checker cannot see it
    places = (torch.backends.cuda.matmul, cudnn.conv)
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "tf32" if tf32 else "ieee"
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value
