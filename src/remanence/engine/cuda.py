"""Training in place: torch's optimisers with the numbers of ours, and steps that are captured once and replayed."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from remanence.errors import BadInput
from remanence.training.optimizers import SGD, Adam, AdamW, Optimizer, RMSProp

_WARM_UP = 3  # steps before a capture, as torch's notes on CUDA graphs ask for


def torch_optimizer(optimizer: Optimizer, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """torch's optimiser with the numbers of ours: in place, and on a CUDA device fused and ready to be captured."""
    cuda = params[0].device.type == "cuda"
    lr: Any = torch.tensor(optimizer.lr, device=params[0].device) if cuda else optimizer.lr
    fused: dict[str, Any] = {"fused": True} if cuda else {}
    match optimizer:
        case SGD():
            return torch.optim.SGD(params, lr=lr, momentum=optimizer.momentum, **fused)
        case Adam():
            betas = (optimizer.beta1, optimizer.beta2)
            return torch.optim.Adam(params, lr=lr, betas=betas, eps=optimizer.eps, capturable=cuda, **fused)
        case AdamW():
            betas, decay = (optimizer.beta1, optimizer.beta2), optimizer.weight_decay
            return torch.optim.AdamW(
                params, lr=lr, betas=betas, eps=optimizer.eps, weight_decay=decay, capturable=cuda, **fused
            )
        case RMSProp():
            return torch.optim.RMSprop(params, lr=lr, alpha=optimizer.decay, eps=optimizer.eps, capturable=cuda)
    raise BadInput(f"`optimizer` must be SGD, Adam, AdamW or RMSProp here, got {type(optimizer).__name__}")


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: a captured step reads it there
        else:
            group["lr"] = rate


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down the slope of `loss`."""
    params = params_of([optimizer])
    # not backward(): the nodes that add up gradients would outlive the stream that a capture runs on
    for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
        p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)  # fused ones refuse another layout
    optimizer.step()


def replayed(step: Callable[[], None], changed: Callable[[], Sequence[Tensor]]) -> Callable[[], None]:
    """The same step, on a CUDA device captured once: launching its kernels one by one takes longer than they do.

    `changed` lists the tensors that the step changes; one that only the first step makes must begin with zeros.
    """
    device = changed()[0].device
    if device.type != "cuda":
        return step
    with torch.cuda.device(device):
        _warm_up(step, changed)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return graph.replay


def _warm_up(step: Callable[[], None], changed: Callable[[], Sequence[Tensor]]) -> None:
    """A few steps beside the main stream, which make all that is made once, and back to where it was."""
    held = changed()
    start, side = copied(held), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*capturable=True.*")  # it will be captured, after these steps
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    rewind(changed(), held, start)


@torch.no_grad()
def rewind(changed: Sequence[Tensor], held: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
    """Back to the copies of those that were held, and to zeros for those that have been made since."""
    for tensor in changed:
        tensor.zero_()
    restore(held, copies)


def copied(params: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach().clone() for p in params]


@torch.no_grad()
def restore(params: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
    for p, copy in zip(params, copies, strict=True):
        p.copy_(copy)


def params_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[nn.Parameter]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def changed_by(optimizers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    """Their parameters, and what they remember."""
    remembered = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()]
    return [*params_of(optimizers), *(value for value in remembered if isinstance(value, Tensor))]


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
