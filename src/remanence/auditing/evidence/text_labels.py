"""The labels of the sequences that an encoder classifies, inferred from an update as those of other records are."""

from typing import final

import torch
from torch import Tensor, nn

from remanence.auditing.answer.report import Evidence
from remanence.auditing.evidence.labels import labels_of
from remanence.auditing.evidence.tokens import as_records
from remanence.data import Tokens
from remanence.models import Transformer
from remanence.releases import Gradient, TransformerUpdate
from remanence.training import CrossEntropy

_MAX_SEQUENCES = 500  # held-out, whose outputs are taken for those of the batch
_NAME = "network"


def text_labels(release: TransformerUpdate, batch: Tokens, held_out: Tokens, *, seed: int) -> Evidence | None:
    """How many labels of all sequences of an update, the `batch`, are inferred; None for a decoder, which has none."""
    if release.model.head is None:
        return None
    private, others = as_records(batch), as_records(held_out)
    shown = Gradient(
        model=_OfNumbers(release.model),
        at={f"{_NAME}.{name}": p for name, p in release.at.items()},
        gradient={f"{_NAME}.{name}": g for name, g in release.gradient.items()},
        labels=None,
        batch_size=release.batch_size,
        shape=private.shape,
        bounds=private.bounds,
        loss=CrossEntropy(),
        defenses=release.defenses,
    )
    return labels_of(shown, private, others, seed=seed, max_simulated=_MAX_SEQUENCES)[0]


@final
class _OfNumbers(nn.Module):
    """A transformer for token ids that are given as floats."""

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.add_module(_NAME, network)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.get_submodule(_NAME)(x.to(torch.int64))
        return logits
