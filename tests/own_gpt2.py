"""A GPT-2 in plain torch, written from the paper under the names of the published weights; none of ours is used."""

from math import sqrt
from types import SimpleNamespace

import torch
from torch import Tensor, nn


class Conv1D(nn.Module):
    """A linear layer whose matrix is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(0.02 * torch.randn(inputs, outputs)),
            nn.Parameter(0.02 * torch.randn(outputs)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.c_attn, self.c_proj = heads, Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            each.reshape(n, length, self.heads, -1).permute(0, 2, 1, 3) for each in self.c_attn(x).split(width, dim=2)
        )
        scores = torch.einsum("nhid,nhjd->nhij", q, k) / sqrt(width // self.heads)
        later = torch.arange(length)[None, :] > torch.arange(length)[:, None]
        mixed = torch.einsum("nhij,nhjd->nihd", scores.masked_fill(later, -torch.inf).softmax(-1), v)
        projected: Tensor = self.c_proj(mixed.reshape(n, length, width))
        return projected


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        x = 0.5 * x * (1 + torch.tanh(sqrt(2 / torch.pi) * (x + 0.044715 * x**3)))
        projected: Tensor = self.c_proj(x)
        return projected


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = (
            nn.LayerNorm(width),
            Attention(width, heads),
            nn.LayerNorm(width),
            MLP(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        after: Tensor = x + self.mlp(self.ln_2(x))
        return after


class GPT2(nn.Module):
    """Its output has `logits`, and its head is the token embeddings, as in the usual library."""

    def __init__(self, vocabulary: int, *, length: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(n_head=heads)
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(length, width),
                "h": nn.ModuleList(Layer(width, heads) for _ in range(blocks)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight  # type: ignore[assignment]
        nn.init.normal_(self.lm_head.weight, std=0.02)
        nn.init.normal_(self.transformer["wpe"].weight, std=0.02)  # type: ignore[arg-type]

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        parts = self.transformer
        x = parts["wte"](input_ids) + parts["wpe"](torch.arange(input_ids.shape[1]))
        for layer in parts["h"]:  # type: ignore[attr-defined]
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(parts["ln_f"](x)))


def next_token_loss(net: GPT2, ids: Tensor, lengths: Tensor) -> Tensor:
    """The mean cross-entropy of the tokens after the first, of sequences (n, length) of these lengths (n,)."""
    logits = net(ids).logits[:, :-1].log_softmax(-1)
    losses = [-logits[row, at, ids[row, at + 1]] for row, n in enumerate(lengths.tolist()) for at in range(n - 1)]
    return torch.stack(losses).mean()
