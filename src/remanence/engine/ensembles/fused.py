"""The middle stage of an ensemble of MLPs with one hidden layer as one Triton kernel: activation, output layer,
softmax, backward pass. Why there is one: docs/decisions/0015."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from remanence.types import Params

kernel: Any = None
try:
    from remanence.engine.ensembles import _kernel

    if _kernel.TESTED:
        kernel = _kernel.kernel
except ImportError:  # Triton comes with torch's CUDA builds for Linux, new enough from torch 2.11 on
    pass

if TYPE_CHECKING:
    from remanence.engine.ensembles.mlp import Centre, Records

MAX_WEIGHTS = 128  # of the output layer: one thread holds the sums of all their gradients in registers
BLOCK = 32  # records at a time, one for each thread of a warp


def can_fuse(activations: tuple[nn.Module, ...], products: Tensor, last: Tensor) -> bool:
    """Whether the kernel applies, given the products of the first layer and the weights of the output layer."""
    if kernel is None or len(activations) != 1 or _kind(activations[0]) is None:
        return False
    return last[0].numel() <= MAX_WEIGHTS and products.is_contiguous()


def middle(
    names: tuple[str, ...],
    activation: nn.Module,
    params: Params,
    products: Tensor,
    records: "Records",
    clip: float | None,
    scale: float,
    centre: "Centre | None",
) -> tuple[Tensor, Params]:
    """As `mlp.middle` computes; the products are overwritten."""
    first, last = names
    small = {name: params[name].contiguous() for name in (f"{first}.bias", f"{last}.weight", f"{last}.bias")}
    grads = {name: torch.empty_like(p) for name, p in small.items()}
    (models, classes, width), count = small[f"{last}.weight"].shape, products.shape[2]
    kind = _kind(activation)
    assert kind is not None
    labels, squares = (t.expand(models, count) for t in (records.labels, records.squares))
    around = (centre.products, centre.deltas) if centre else (products, products)
    with torch.cuda.device_of(products):
        kernel[(models,)](
            products,
            *around,
            *small.values(),
            labels,
            squares,
            *grads.values(),
            count,
            *labels.stride(),
            *squares.stride(),
            clip or 0.0,
            scale,
            kind[1],
            WIDTH=width,
            CLASSES=classes,
            BLOCK=BLOCK,
            KIND=kind[0],
            CLIPPED=clip is not None,
            CENTRED=centre is not None,
            num_warps=1,
        )
    return products, grads


def _kind(activation: nn.Module) -> tuple[str, float] | None:
    """The name of an activation in the kernel and its parameter; None where the kernel has no such activation."""
    match activation:
        case nn.ReLU() | nn.Identity() | nn.Sigmoid() | nn.Tanh() | nn.SiLU() | nn.SELU():
            return type(activation).__name__, 0.0
        case nn.ELU() | nn.CELU():
            return type(activation).__name__, float(activation.alpha)
        case nn.LeakyReLU():
            return "LeakyReLU", float(activation.negative_slope)
        case nn.Threshold() if activation.threshold == activation.value:
            return "Threshold", float(activation.value)
        case nn.Softplus() if (activation.beta, activation.threshold) == (1, 20):
            return "Softplus", 20.0
        case nn.GELU() if activation.approximate == "tanh":
            return "GELU", 0.0
    return None
