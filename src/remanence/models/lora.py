"""Low-rank adapters of linear layers: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (ICLR 2022).

The layer is  y = (W + B A) x + b  with A (rank, in_features) and B (out_features, rank); a client trains A and B alone.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remanence.errors import BadInput

_FACTORS = ("lora_a", "lora_b")


@final
class LoRALinear(nn.Linear):
    """A linear layer with an adapter of low rank; the scale alpha / rank of the paper is one."""

    def __init__(self, in_features: int, out_features: int, *, rank: int) -> None:
        super().__init__(in_features, out_features)
        if not 1 <= rank <= min(in_features, out_features):
            message = f"`rank` of LoRALinear must lie in 1..{min(in_features, out_features)}, got {rank}"
            raise BadInput(message, code="out-of-range", argument="rank")
        self.lora_a = nn.Parameter(torch.empty(rank, in_features))
        self.lora_b = nn.Parameter(torch.empty(out_features, rank))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + F.linear(F.linear(input, self.lora_a), self.lora_b)


def adapter_names(model: nn.Module) -> list[str]:
    """The names of the parameters that LoRA trains: none for a model without adapters."""
    return [name for name, _ in model.named_parameters() if name.rpartition(".")[2] in _FACTORS]
