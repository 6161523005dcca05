"""The choice of an engine: a closed form where there is one for the network, else `torch.func`."""

from collections.abc import Sequence

from torch import nn

from remanence.engine import mlp
from remanence.engine.base import Engine
from remanence.engine.generic import GenericEngine
from remanence.training import Training


def engine_for(model: nn.Module, training: Training, shape: Sequence[int]) -> Engine:
    """The fastest engine for `model` on records of `shape` by the loss of `training`. Per-example clipping of DP-GD is
    generic."""
    closed_form = None if training.privacy else mlp.of(model, training.loss, shape)
    return closed_form or GenericEngine(model=model, loss=training.loss, privacy=training.privacy)
