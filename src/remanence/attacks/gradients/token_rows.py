"""The tokens of a batch, by the rows of the embeddings' gradient that stand out.

A token's embedding has a gradient through the inputs where the token is in the batch: of an encoder all other rows are
zero (Melis et al., "Exploiting Unintended Feature Leakage in Collaborative Learning", 2019). Where the embeddings are
the head too, every row has one, and those of the batch are far longer (Gupta et al., "Recovering Private Text in
Federated Learning of Language Models", 2022). Ours: rows of other tokens have nearly one direction, that of what enters
the head, which is projected out. A row of many entries averages noise, and stands out of more noise than the span of an
attention does.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from remanence.errors import NotEnoughKnowledge
from remanence.models.transformer import END, PADDING
from remanence.releases.text import KnowsTokenGradient

_ROW = "tokens.weight"
_OUTLIER = 5.0  # robust standard deviations of the logarithm of a row's norm: normal ones: one row in three million


def infer_tokens(release: KnowsTokenGradient) -> Tensor:
    """The ids (k,) of tokens whose rows stand out, the longest first, at most as many as the batch can have."""
    if _ROW not in release.gradient:
        message = f"tokens by embeddings need the gradient of `{_ROW}`, which this client does not send"
        raise NotEnoughKnowledge(message, argument="gradient")
    rows = release.gradient[_ROW].detach().double()
    common = F.normalize(rows.median(dim=0).values, dim=0)
    norms = (rows - (rows @ common)[:, None] * common).norm(dim=1)
    norms[: (END if release.model.causal and release.model.special else PADDING) + 1] = 0
    if int((norms > 0).sum()) <= len(norms) / 2:
        outliers = norms > 0
    else:
        logarithm = norms.clamp_min(torch.finfo(norms.dtype).tiny).log()
        deviation = (logarithm - logarithm.median()).abs().median() * 1.4826  # of a normal distribution
        outliers = logarithm > logarithm.median() + _OUTLIER * deviation
    count = min(int(outliers.sum()), release.batch_size * release.length)
    return torch.where(outliers, norms, 0).topk(count).indices
