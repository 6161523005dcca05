"""DAGER: the tokens and sequences of a batch, exactly, from the gradients of a transformer's attention.

Petrov, Dimitrov, Baader, Müller, Vechev, "DAGER: Exact Gradient Inversion for Large Language Models" (NeurIPS 2024).
The tokens are found in the first block (`token_span.py`), the sequences of a decoder in the second (`token_trees.py`),
those of an encoder in both (`token_sentences.py`), and last tokens without a loss as targets (`token_completion.py`).
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from remanence.attacks.gradients.token_completion import complete_sequences
from remanence.attacks.gradients.token_sentences import arrange_sequences
from remanence.attacks.gradients.token_span import Span, find_tokens, projection_gradient
from remanence.attacks.gradients.token_trees import grow_sequences
from remanence.errors import BadInput, check_above, check_min
from remanence.models.transformer import PADDING, Transformer
from remanence.releases.protocols import require
from remanence.releases.text import KnowsTokenGradient
from remanence.types import TokenReconstruction

_TOKEN_ROUNDING = 2  # units in the last place: embeddings are known exactly
_PREFIX_ROUNDING = 10  # what enters the second block was computed by the client, and rounded on the way


@final
@dataclass(frozen=True, kw_only=True)
class DAGER:
    """Tokens and sequences of a batch; nothing is sampled. The objective is the fraction of the first block's span, by
    singular values, that the tokens leave unexplained."""

    exact: float = 0.999  # fraction of a squared norm in the span above which a token or prefix is in it
    max_atoms: int = 40_000  # prefixes that are considered at a time: the best ones

    def __post_init__(self) -> None:
        check_above(self, exact=0)
        check_min(self, max_atoms=1)
        if self.exact >= 1:
            raise BadInput(f"`exact` must be below 1, got {self.exact}", code="out-of-range", argument="exact")

    def run(self, release: KnowsTokenGradient, *, seed: int) -> TokenReconstruction:
        require(release, KnowsTokenGradient, by=type(self).__name__)
        model = _with_weights(release)
        first = Span.from_release(release, 0, rounding=_TOKEN_ROUNDING)
        if not first.edge:
            raise BadInput(
                "the gradients of the first attention are zero or were not sent: it is frozen, or adapters have a "
                "factor B of zero, as before the first step; take an update that trains it",
                code="not-identifiable",
                argument="release",
            )
        tokens, token_scores, objective = find_tokens(
            model,
            first,
            length=release.length,
            exact=self.exact,
            max_tokens=release.batch_size * release.length,
        )
        ids, scores = torch.zeros(0, release.length, dtype=torch.int64), torch.zeros(0)
        second = Span.from_release(release, 1, rounding=_PREFIX_ROUNDING) if len(model.blocks) > 1 else None
        if second is not None and second.edge and len(tokens):
            values = projection_gradient(release, 0, "value")
            if model.causal:
                ids, scores = grow_sequences(
                    model,
                    second,
                    tokens,
                    count=release.batch_size,
                    length=max(1, release.length - (not model.special)),  # the last token has no loss
                    exact=self.exact,
                    max_atoms=self.max_atoms,
                )
            elif len(values):
                ids, scores = arrange_sequences(
                    model,
                    second,
                    values,
                    tokens,
                    count=release.batch_size,
                    length=release.length,
                    exact=self.exact,
                )
        if not model.special:
            ids = _completed(release, model, ids)
            new = ids.unique()
            new = new[~torch.isin(new, tokens.to(new.device)) & (new != PADDING)].to(tokens.device)
            tokens, token_scores = torch.cat([tokens, new]), torch.cat([token_scores, token_scores.new_ones(len(new))])
        return TokenReconstruction(
            ids=ids, scores=scores, tokens=tokens, token_scores=token_scores, objective=objective
        )


def _completed(release: KnowsTokenGradient, model: Transformer, ids: Tensor) -> Tensor:
    """The sequences (n, length) with their last tokens where the gradient shows these, padded to the release's
    length."""
    name = f"blocks.{len(model.blocks) - 1}.down.weight"
    if name in release.gradient and len(ids):
        ids = complete_sequences(model, release.gradient[name].detach(), ids.to(model.tokens.weight.device)).cpu()
    return F.pad(ids, (0, release.length - ids.shape[1]), value=PADDING)


def _with_weights(release: KnowsTokenGradient) -> Transformer:
    """The model of the release with its weights in it, where they are."""
    like = release.at["tokens.weight"]
    model = deepcopy(release.model).to_empty(device=like.device).to(like.dtype)
    model.load_state_dict(release.at)
    return model.requires_grad_(False)
