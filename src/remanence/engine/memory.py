"""How much memory a graph takes, by estimate, and how much is free."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from remanence.models import activations

USABLE_FRACTION = 0.6  # of the free memory, that graphs may fill
_VALUES_PER_ACTIVATION = 3  # that a graph of a gradient holds for each value of the forward pass
_ASSUMED_FREE = 4 << 30  # bytes, where the system does not say


def graph_bytes(model: nn.Module, shape: Sequence[int], *, batch: int, like: Tensor) -> int:
    """Bytes that autograd's graph of one training step on `batch` records of this shape holds, by estimate."""
    parameters = sum(p.numel() for p in model.parameters())
    values = _VALUES_PER_ACTIVATION * batch * activations(model, shape) + 2 * parameters
    return like.element_size() * values


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    table = Path("/proc/meminfo")
    if not table.exists():
        return _ASSUMED_FREE
    entries = dict(line.split(":") for line in table.read_text(encoding="ascii").splitlines())
    return 1024 * int(entries["MemAvailable"].split()[0])
