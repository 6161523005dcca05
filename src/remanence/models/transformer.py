"""Small transformers: a decoder like GPT-2 (Radford et al. 2019) and an encoder like BERT (Devlin et al. 2019).

Both normalise before each part of a block. The decoder predicts the next token, with the token embeddings as its head;
the encoder classifies a sequence by its first position. Like every model here they hold no values (decision 0003).
"""

from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remanence.errors import BadInput
from remanence.models.lora import LoRALinear
from remanence.types import Params

PADDING = 0  # token id: at the end of a sequence, without a loss, and not attended to
END = 1  # token id: what a decoder has to predict after the last token of a sequence
Approximation: TypeAlias = Literal["none", "tanh"]  # of GELU
_STD = 0.02  # of initial weights


@final
class Block(nn.Module):
    """Attention and a two-layer MLP, each after a LayerNorm and added to the residual stream (n, length, width)."""

    def __init__(self, width: int, *, heads: int, rank: int | None, gelu: Approximation = "none") -> None:
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        for name in ("query", "key", "value"):
            linear = nn.Linear(width, width) if rank is None else LoRALinear(width, width, rank=rank)
            self.add_module(name, linear)
        self.output, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.projections(x)
        return self.finish(x, self.attend(query, key, value, mask))

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the residual stream `x`, each of its shape."""
        x = self.norm1(x)
        return self.get_submodule("query")(x), self.get_submodule("key")(x), self.get_submodule("value")(x)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """What queries (n, m, width) take from the values (n, length, width) where `mask` (n or 1, m, length) is
        true."""
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (query, key, value))
        mask = None if mask is None else mask[:, None]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The residual stream after the block."""
        x = x + self.output(attended)
        after: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.gelu))
        return after


@final
class Transformer(nn.Module):
    """Logits for token ids (n, length): (n, length, vocabulary) of a decoder, (n, classes) of an encoder.

    A decoder with a vocabulary that was made elsewhere (`special` is False) predicts neither PADDING nor an END.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        length: int,
        width: int,
        blocks: int,
        heads: int,
        classes: int | None,
        rank: int | None,
        gelu: Approximation = "none",
        special: bool = True,
    ) -> None:
        super().__init__()
        self.special = special
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads=heads, rank=rank, gelu=gelu) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = None if classes is None else nn.Linear(width, classes)

    @property
    def causal(self) -> bool:
        """Whether this is a decoder, in which a position attends to itself and those before it."""
        return self.head is None

    def forward(self, ids: Tensor, y: Tensor | None = None) -> Tensor:
        """The logits; with labels `y` (n,), which a decoder does not look at, the loss."""
        return self.logits(ids) if y is None else self.loss(ids, y)

    def logits(self, ids: Tensor) -> Tensor:
        x, mask = self.embed(ids), self.mask(ids)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        if self.head is not None:
            classes: Tensor = self.head(x[:, 0])
            return classes
        logits = F.linear(x, self.tokens.weight)
        return logits if self.special else logits.index_fill(-1, torch.tensor(PADDING, device=x.device), -torch.inf)

    def embed(self, ids: Tensor) -> Tensor:
        """The residual stream (n, length, width) that enters the first block."""
        embedded: Tensor = self.tokens(ids)
        return embedded + self.positions.weight[: ids.shape[1]]

    def mask(self, ids: Tensor) -> Tensor:
        """(n or 1, length, length): whether a position (second) attends to another (last)."""
        length = ids.shape[1]
        if self.causal:
            return torch.ones(1, length, length, dtype=torch.bool, device=ids.device).tril()
        return (ids != PADDING)[:, None, :].expand(-1, length, -1)

    def loss(self, ids: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy: of a decoder over the next tokens, the last of which is END if it has one; of an
        encoder over the labels `y` (n,)."""
        logits = self.logits(ids)
        if not self.causal:
            return F.cross_entropy(logits, y)
        following = F.pad(ids[:, 1:], (0, 1), value=PADDING)
        if self.special:
            following = torch.where((following == PADDING) & (ids != PADDING), END, following)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=PADDING)


def decoder(
    vocabulary: int, *, length: int, width: int = 256, blocks: int = 2, heads: int = 4, rank: int | None = None
) -> Transformer:
    """A decoder for sequences of up to `length` tokens; with adapters of `rank` on its attention where one is given."""
    _check(width, heads)
    with torch.device("meta"):
        return Transformer(
            vocabulary, length=length, width=width, blocks=blocks, heads=heads, classes=None, rank=rank
        ).eval()


def encoder(
    vocabulary: int,
    classes: int,
    *,
    length: int,
    width: int = 256,
    blocks: int = 3,
    heads: int = 4,
    rank: int | None = None,
) -> Transformer:
    """An encoder that classifies sequences of up to `length` tokens by its first position."""
    _check(width, heads)
    with torch.device("meta"):
        return Transformer(
            vocabulary, length=length, width=width, blocks=blocks, heads=heads, classes=classes, rank=rank
        ).eval()


def transformer_params(model: Transformer, *, seed: int, lora_std: float = 0.0) -> Params:
    """Initial weights as GPT-2 has them: normal with standard deviation 0.02, biases zero, norms one. The factors B of
    adapters are zero, or normal with `lora_std`, as they are in the middle of training."""
    generator = torch.Generator().manual_seed(seed)
    params: Params = {}
    for name, parameter in model.named_parameters():
        values = torch.zeros(parameter.shape)
        if parameter.ndim == 1:
            values += float("norm" in name and name.endswith("weight"))
        else:
            std = lora_std if name.endswith("lora_b") else _STD
            values.normal_(std=std, generator=generator) if std else values
        params[name] = values
    return params


def _check(width: int, heads: int) -> None:
    if heads < 1 or width % heads:
        message = f"`width` must be a multiple of the number of `heads`, got {width} and {heads}"
        raise BadInput(message, code="out-of-range", argument="width")
