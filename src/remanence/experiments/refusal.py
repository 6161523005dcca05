"""A cell or a study that cannot be done, where the others go on."""

from dataclasses import dataclass
from typing import final

import torch


@final
@dataclass(frozen=True, kw_only=True)
class Refusal:
    label: str
    why: str  # the sentence of the refusal
    seconds: float
    device: torch.device
