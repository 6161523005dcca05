"""Several MLPs of a sweep trained at once, each on records of its own: a few stacked products for many small ones."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from remanence.engine import mlp as plain_mlp
from remanence.errors import BadInput
from remanence.training.in_full import ByLoss, train_in_full
from remanence.training.training import Training
from remanence.types import Data, Params


def train_together(
    trainings: Sequence[Training], model: nn.Module, initial: Sequence[Params], data: Sequence[Data]
) -> list[Params]:
    """What each training alone would give. They may differ in weight decay; `UntilRest` waits until all have come to
    rest, `ByLoss` follows each one's own loss."""
    first, by_hand = trainings[0], plain_mlp.of(model, trainings[0].loss)
    alike = all(replace(each, weight_decay=first.weight_decay) == first for each in trainings)
    alike = alike and len({len(each) for each in data}) == 1
    if by_hand is None or by_hand.standard or not alike or first.privacy or first.clip is not None or first.batch_size:
        raise BadInput(
            "train_together() takes MLPs with ReLU, full batches of equally many records and a loss of ours, without "
            "DP-GD and `clip`, that differ in weight decay alone: train the others one by one"
        )
    x, y = torch.stack([each.x.flatten(1) for each in data]), torch.stack([each.y for each in data])
    decay = x.new_tensor([each.weight_decay for each in trainings])
    in_logs = [each.in_logs(by_hand) for each in trainings]  # none may have decay where the rate follows the loss

    def gradient(params: Params) -> Params:
        slopes = in_logs[0].gradients(params, x, y)
        if isinstance(first.stages, ByLoss):
            return first.stages.bounded(slopes, first.optimizer.lr, stacked=True)
        return {n: g.addcmul(decay.view(-1, *[1] * (g.ndim - 1)), params[n]) for n, g in slopes.items()}

    starts = {name: torch.stack([each[name] for each in initial]) for name in initial[0]}
    final = train_in_full(gradient, starts, first.optimizer, epochs=first.epochs, stages=first.stages)
    return [{name: p[place].clone() for name, p in final.items()} for place in range(len(trainings))]
