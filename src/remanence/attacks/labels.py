"""The labels of a batch from what a client sent: how many records of each class, repeated ones included.

For mean cross-entropy the gradient of the last bias is mean(softmax) - (share of each class), the mean being over the
batch. Zhao, Mopuri, Bilen, "iDLG" (2020) read the label of one record off its sign; Wainakh et al., "User-Level Label
Leakage from Gradients in Federated Learning" (PoPETs 2022), counts.
"""

import torch
from torch import Tensor

from remanence.errors import NotEnoughKnowledge
from remanence.nets import apply
from remanence.release import KnowsUpdate
from remanence.training import CrossEntropy


def infer_labels(release: KnowsUpdate, looks_like: Tensor, guessed: Tensor | None = None) -> Tensor:
    """The labels of the batch, sorted, one for each of its `batch_size` records.

    A class with a negative entry is in the batch for certain, whatever the weights; for one record that is the answer.
    The places left go to the classes with the largest remaining counts, the mean softmax being that of the records
    `looks_like`: public ones, noise, or candidates. With labels `guessed` for these it is followed along the steps of
    a client that takes several.
    """
    if release.batch_size is None:
        raise NotEnoughKnowledge("inferring labels needs `batch_size` to know how many records to look for")
    last = [name for name, _ in release.model.named_parameters()][-1]
    bias = release.sent[last]
    if bias.ndim != 1 or not isinstance(release.loss, CrossEntropy):
        raise NotEnoughKnowledge(
            "labels are read off the gradient of the last layer's bias under cross-entropy, which this release lacks: "
            "it must show `labels`"
        )
    looks_like = looks_like.to(bias)
    if guessed is None:
        softmax = apply(release.model, release.at, looks_like).softmax(dim=-1).mean(dim=0)
    else:
        shares = torch.bincount(guessed, minlength=len(bias)) / len(guessed)
        softmax = release.simulate(looks_like, guessed)[last] + shares.to(bias)
    counts = (softmax - bias) * release.batch_size
    certain = bias.argsort()[: int((bias < 0).sum())][: release.batch_size]
    counts[certain] -= 1
    labels = list(certain)
    while len(labels) < release.batch_size:
        labels.append(counts.argmax())
        counts[labels[-1]] -= 1
    return torch.stack(labels).sort().values
