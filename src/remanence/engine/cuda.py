"""Fast steps on a CUDA device: torch's optimizers with the hyper-parameters of ours, steps that are captured once as a
CUDA graph and replayed, and the precision of matrix products."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from remanence.errors import BadInput
from remanence.training.optimizers import SGD, Adam, AdamW, Optimizer, RMSProp

_WARM_UP = 3  # steps before a capture, as torch's notes on CUDA graphs ask for


def torch_optimizer(optimizer: Optimizer, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """torch's optimizer with the hyper-parameters of ours: in place, and on a CUDA device fused and capturable."""
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
        case RMSProp(eps_in_root=True):
            return RMSPropOfOptax(params, {"lr": lr, "decay": optimizer.decay, "eps": optimizer.eps})
        case RMSProp():
            return FusedRMSProp(params, {"lr": lr, "decay": optimizer.decay, "eps": optimizer.eps})
    message = f"`optimizer` must be SGD, Adam, AdamW or RMSProp here, got {type(optimizer).__name__}"
    raise BadInput(message, code="wrong-type", argument="optimizer")


@final
class FusedRMSProp(torch.optim.Optimizer):
    """RMSProp as fused Adam without a first moment, after so many steps that its bias corrections are one: torch's own
    RMSprop is not fused, and reads and writes every value several times."""

    def __init__(self, params: list[nn.Parameter], defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.many_steps = torch.full((), 2.0**24, device=params[0].device)  # where a float32 stops counting

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["square_avg"] = torch.zeros_like(p)
            grads = [p.grad for p in params]
            adam(
                params,
                grads,
                grads,  # the first moments are the gradients
                [self.state[p]["square_avg"] for p in params],
                [],
                [self.many_steps] * len(params),
                fused=True,
                amsgrad=False,
                maximize=False,
                beta1=0.0,
                beta2=group["decay"],
                lr=group["lr"],
                weight_decay=0.0,
                eps=group["eps"],
            )


@final
class RMSPropOfOptax(torch.optim.Optimizer):
    """RMSProp with epsilon under the root, which torch does not have; in place, and capturable."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.state[p]["square_avg"] = torch.zeros_like(p)
                second = self.state[p]["square_avg"]
                second.mul_(group["decay"]).addcmul_(p.grad, p.grad, value=1 - group["decay"])
                p.sub_(p.grad * (second + group["eps"]).rsqrt_() * group["lr"])


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)  # in place: a captured graph reads it from there
        else:
            group["lr"] = lr


def update(optimizer: torch.optim.Optimizer, loss: Tensor, grad: Tensor | None = None) -> None:
    """Take one step along the gradient of `loss`; or, with the gradient `grad` by its values, of a function of them."""
    params = params_of([optimizer])
    # not backward(): the nodes that add up gradients would outlive the stream that a capture runs on
    for p, g in zip(params, torch.autograd.grad(loss, params, grad), strict=True):
        p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)  # fused ones refuse another layout
    optimizer.step()


def replayed(step: Callable[[], None], changed: Callable[[], Sequence[Tensor]]) -> Callable[[], None]:
    """The same step, on a CUDA device captured once as a graph: launching its kernels one by one takes longer than they
    run.

    `changed` lists the tensors that the step changes; one that only the first step creates must start as zeros.
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
    """Take a few steps on a side stream, which allocate everything that is allocated once, and undo them."""
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
    """Reset the tensors in `held` to their copies, and those that were created since to zeros."""
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
    """The parameters of these optimizers and their state tensors, such as momentum buffers."""
    states = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()]
    return [*params_of(optimizers), *(value for value in states if isinstance(value, Tensor))]


@contextmanager
def precision(*, tf32: bool) -> Iterator[None]:
    """A context in which matrix products and convolutions on a CUDA device are computed in TF32, or in full float32."""
    backends, name, (full, fast) = _precision_settings()
    before = [getattr(backend, name) for backend in backends]
    try:
        for backend in backends:
            setattr(backend, name, fast if tf32 else full)
        yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            setattr(backend, name, value)


def _precision_settings() -> tuple[tuple[Any, Any], str, tuple[Any, Any]]:
    """Where torch keeps the precision of matrix products and of convolutions: the objects, the attribute's name, its
    values for float32 and for TF32. Before torch 2.9 it is a switch; later versions refuse a mix of both forms."""
    cudnn: Any = torch.backends.cudnn  # its `conv` is created at import, where a type checker cannot see it
    if hasattr(cudnn, "conv"):
        return (torch.backends.cuda.matmul, cudnn.conv), "fp32_precision", ("ieee", "tf32")
    return (torch.backends.cuda.matmul, cudnn), "allow_tf32", (False, True)
