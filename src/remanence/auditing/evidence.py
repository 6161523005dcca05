"""Evidence without a reconstruction: membership, the span of the first layer, labels. It is not counted as found."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from remanence.auditing.report import Evidence
from remanence.experiments.outcome import Figure
from remanence.metrics import membership_test
from remanence.models import apply
from remanence.releases import KnowsFinal
from remanence.seeds import derive_seed
from remanence.types import Data, Params


def gather_evidence(
    release: Any, private: Data, held_out: Data, *, seed: int
) -> tuple[tuple[Evidence, ...], tuple[Figure, ...]]:
    """Every row that the release allows, and the figures that go with them."""
    rows: list[Evidence] = []
    if isinstance(release, KnowsFinal):
        rows += membership_by_loss(release, private, held_out, seed=derive_seed(seed, "loss"))
    return tuple(rows), ()


def membership_by_loss(release: KnowsFinal, private: Data, held_out: Data, *, seed: int) -> list[Evidence]:
    """Membership by the loss of a record (Yeom et al. 2018): members have lower ones."""
    scores = [-losses(release.model, release.final, data) for data in (private, held_out)]
    return _membership_rows("membership by loss", *scores, seed=seed)


def losses(model: Any, params: Params, data: Data) -> Tensor:
    """(records,): the cross-entropy of each record."""
    with torch.no_grad():
        logits = torch.cat([apply(model, params, x) for x in data.x.split(512)])
    if logits.ndim == 1 or logits.shape[1] == 1:
        flat = logits.flatten()
        return softplus(torch.where(data.y == 1, -flat, flat))
    return cross_entropy(logits, data.y, reduction="none")


def _membership_rows(name: str, private: Tensor, held_out: Tensor, *, seed: int) -> list[Evidence]:
    """The fraction identified at 1 % false positives and the AUC, by a score that is larger for members."""
    from scipy.stats import mannwhitneyu

    test = membership_test(private, held_out, seed=seed)
    p = float(mannwhitneyu(private.double().cpu(), held_out.double().cpu(), alternative="greater").pvalue)
    found, auc = test.fraction_identified, test.auc
    return [
        Evidence(
            name=f"{name}: tpr@1%",
            value=found.value,
            low=found.low,
            high=found.high,
            chance=0.01,
            meaning="fraction of the private records identified as members where 1 % of held-out ones are",
            group="membership",
        ),
        Evidence(
            name=f"{name}: AUC",
            value=auc.value,
            low=auc.low,
            high=auc.high,
            chance=0.5,
            meaning="how often a private record scores higher than a held-out one",
            p=p,
            group="membership",
        ),
    ]
