"""The choice of an engine: a closed form where there is one for the network, else `torch.func`."""

from collections.abc import Sequence

from torch import nn

from remanence.engine.base import Engine, GenericEngine
from remanence.engine.cnn import cnn_engine
from remanence.engine.mlp import mlp_engine
from remanence.training import Training
from remanence.types import Params


def engine_for(
    model: nn.Module, training: Training, shape: Sequence[int], *, frozen: Params | None = None, records: int = 1
) -> Engine:
    """The engine for `model` on records of `shape` by the loss of `training`: a closed form for MLPs with ReLU, else
    generic, as is the per-example clipping of DP-GD.

    A CNN has a closed form too, for weights whose frozen statistics are given as `frozen`: it is made for what is
    differentiated again, with respect to records, in batches of `records`.
    """
    if training.privacy is None:
        if closed_form := mlp_engine(model, training.loss, shape):
            return closed_form
        if frozen and (convolutional := cnn_engine(model, training.loss, frozen, shape=shape, records=records)):
            return convolutional
    return GenericEngine(model=model, loss=training.loss, privacy=training.privacy)
