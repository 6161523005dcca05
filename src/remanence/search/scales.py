"""Images at several scales: a step updates them at coarser resolutions too (ours).

Each coarser version has half the side of the one before, is zero before a step, and is added to the images after it.
The optimizer scales the update of each version by itself: in deep networks a gradient by single pixels is mostly noise.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate


def coarser(x: Tensor, scales: int) -> list[Tensor]:
    """Zeros for each scale below images (restarts, n, c, h, w), down to one pixel; none for table rows."""
    sides = [[side >> k for side in x.shape[3:]] for k in range(1, scales + 1)] if x.ndim == 5 else []
    return [x.new_zeros(*x.shape[:3], *side) for side in sides if min(side)]


def upsampled(part: Tensor, like: Tensor) -> Tensor:
    """A coarser version (restarts, n, c, h', w') at the resolution of `like` (restarts, n, c, h, w)."""
    return interpolate(part.flatten(0, 1), size=like.shape[3:], mode="bilinear").view_as(like)


def gradient_at_scale(grad: Tensor, part: Tensor) -> Tensor:
    """The gradient by a coarser version, from that by the pixels: the adjoint of `upsampled`."""
    sizes: Sequence[int] = part.flatten(0, 1).shape
    below: Tensor = torch.ops.aten.upsample_bilinear2d_backward(grad.flatten(0, 1), grad.shape[3:], sizes, False)
    return below.view_as(part)
