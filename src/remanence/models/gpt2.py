"""GPT-2 (Radford et al. 2019) under the names of its published weights, as a `Transformer`.

    model = gpt2(params, heads=12)          # params: wte.weight, wpe.weight, h.0.attn.c_attn.weight, ...
    at = from_gpt2(params)                  # the same values, or those of a gradient, under the names of `model`

The architecture is the same: LayerNorm before each part, attention scaled by the root of a head's width, the token
embeddings as head. Three things differ. Queries, keys and values are one matrix, matrices are transposed, and the
vocabulary has no padding, so that its ids are one less than ours: row 0 of `tokens.weight` is zero and never predicted.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from remanence.errors import BadInput, listed
from remanence.models.transformer import Approximation, Transformer
from remanence.types import Params

OFFSET = 1  # of a token id of ours from that of GPT-2
_LAYERS = {
    "ln_1": "norm1",
    "ln_2": "norm2",
    "attn.c_proj": "output",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
_TABLES = {"wte": "tokens", "wpe": "positions", "ln_f": "norm"}


def is_gpt2(names: Mapping[str, object]) -> bool:
    """Whether weights have the names of GPT-2, with any prefix."""
    return _prefix(names) is not None


def gpt2(params: Mapping[str, Tensor], *, heads: int, gelu: Approximation = "tanh") -> Transformer:
    """The decoder of these weights, of which the shapes are looked at; it holds no values."""
    prefix = _prefix(params) or ""
    of_blocks = [name.removeprefix(f"{prefix}h.") for name in params if name.startswith(f"{prefix}h.")]
    blocks = len({name.partition(".")[0] for name in of_blocks})
    needed = [*(f"{each}.weight" for each in _TABLES), "ln_f.bias", *_block_names(blocks)]
    if missing := [name for name in needed if f"{prefix}{name}" not in params]:
        message = f"the network has names of GPT-2 and lacks {listed(missing)}: it must be a GPT-2 with all of them"
        raise BadInput(message, code="unsupported-model", argument="model")
    (vocabulary, width), length = params[f"{prefix}wte.weight"].shape, len(params[f"{prefix}wpe.weight"])
    if params[f"{prefix}h.0.mlp.c_fc.bias"].shape != (4 * width,) or heads < 1 or width % heads:
        message = (
            f"a GPT-2 of width {width} must have {4 * width} units in each MLP, and a number of heads that divides the "
            f"width, got {heads}"
        )
        raise BadInput(message, code="unsupported-model", argument="model")
    with torch.device("meta"):
        return Transformer(
            vocabulary + OFFSET,
            length=length,
            width=width,
            blocks=blocks,
            heads=heads,
            classes=None,
            rank=None,
            gelu=gelu,
            special=False,
        ).eval()


def from_gpt2(params: Mapping[str, Tensor]) -> Params:
    """Weights, or a gradient, under the names of the `Transformer`; what is not in `params` is not in it."""
    return dict(_renamed(params, _prefix(params) or ""))


def _renamed(params: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in params.items():
        part, _, kind = name.removeprefix(prefix).rpartition(".")
        if part in _TABLES:
            yield f"{_TABLES[part]}.{kind}", F.pad(value, (0, 0, OFFSET, 0)) if part == "wte" else value
        elif part.startswith("h."):
            number, _, layer = part.removeprefix("h.").partition(".")
            value = value.T if value.ndim == 2 and _transposed(params, prefix) else value
            if layer == "attn.c_attn":
                for projection, each in zip(("query", "key", "value"), value.chunk(3), strict=True):
                    yield f"blocks.{number}.{projection}.{kind}", each.contiguous()
            elif layer in _LAYERS:
                yield f"blocks.{number}.{_LAYERS[layer]}.{kind}", value.contiguous()


def _transposed(params: Mapping[str, Tensor], prefix: str) -> bool:
    """Whether matrices are (inputs, outputs), as published, and not those of `nn.Linear`."""
    found = [value for name, value in params.items() if name.startswith(prefix) and name.endswith("c_attn.weight")]
    return not found or found[0].shape[0] < found[0].shape[1]


def _prefix(names: Mapping[str, object]) -> str | None:
    """What stands before the names of GPT-2, such as `transformer.`; None where they are not these."""
    of_blocks = [name.partition("h.0.attn.c_attn.weight") for name in names]
    return next((prefix for prefix, found, after in of_blocks if found and not after), None)


def _block_names(blocks: int) -> Iterator[str]:
    for number in range(blocks):
        for layer in (*_LAYERS, "attn.c_attn"):
            yield from (f"h.{number}.{layer}.{kind}" for kind in ("weight", "bias"))
