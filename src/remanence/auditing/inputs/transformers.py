"""What a federated client that trains a transformer sends, from its network and the files of weights or of a gradient.

A network is ours (`remanence.models.decoder`, `encoder`), or has the names of GPT-2 and computes what it does: the two
are compared on the client's tokens.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remanence.data import Tokens
from remanence.errors import BadInput
from remanence.models import Transformer
from remanence.models.gpt2 import OFFSET, from_gpt2, gpt2, is_gpt2
from remanence.models.transformer import PADDING, Approximation
from remanence.progress import say
from remanence.releases import TransformerUpdate
from remanence.types import Params

_HEAD = 64  # width of a head of every published GPT-2
_SAME = 1e-3  # of the standard deviation of logits: further off, a network computes something else
_COARSE = (torch.bfloat16, torch.float16)
_APPROXIMATIONS: tuple[Approximation, ...] = ("tanh", "none")
_PROJECTIONS = [f"blocks.{block}.{name}" for block in (0, 1) for name in ("query", "key", "value")]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TokenNetwork:
    """A transformer as its owner makes it, the same as attacks know it, and how names become those of the latter."""

    module: nn.Module
    model: Transformer
    renamed: Callable[[Params], Params]

    def checked(self, at: Params, batch: Tokens) -> "TokenNetwork":
        """The network, with the approximation of GELU by which it computes on `batch` what its owner's does at the
        weights `at`, under the owner's names; it is refused where none does. Others cannot be compared."""
        if self.module is self.model:
            return self
        ids = batch.ids[:1, : int((batch.ids[0] != PADDING).sum())]
        theirs = _logits(self.module, at, ids - OFFSET)
        if theirs is None:
            say(
                "note: the network cannot be called with token ids alone, and is taken for GPT-2 as it was published, "
                f"with {_heads(self.module, at)[0]} heads; it may say another number as `config.n_head`"
            )
            return self
        differences, numbers = list[float](), _heads(self.module, at)
        for heads, gelu in product(numbers, _APPROXIMATIONS):
            model = gpt2(at, heads=heads, gelu=gelu)
            ours = functional_call(model, self.renamed(at), (ids,))[..., OFFSET:]
            differences.append(float((ours - theirs).abs().max() / theirs.std()))
            if differences[-1] < _SAME:
                return TokenNetwork(module=self.module, model=model, renamed=self.renamed)
        tried = (
            "whatever the number of heads" if len(numbers) > 1 else f"with the {numbers[0]} heads of `config.n_head`"
        )
        message = (
            "the network has the names of GPT-2 and computes something else: logits of the first sequence differ by "
            f"{min(differences):.2g} of their standard deviation, {tried}; write it as `remanence.models.decoder` does"
        )
        raise BadInput(message, code="unsupported-model", argument="model")


def token_network(module: nn.Module) -> TokenNetwork | None:
    """The transformer that `module` is; None where it is none that attacks on text know."""
    if isinstance(module, Transformer):
        return TokenNetwork(module=module, model=module, renamed=lambda params: params)
    held = module.state_dict()
    if not is_gpt2(held):
        return None
    return TokenNetwork(module=module, model=gpt2(held, heads=_heads(module, held)[0]), renamed=from_gpt2)


def embeds_tokens(module: nn.Module) -> bool:
    """Whether the network begins as those of text do, by embeddings."""
    return any(isinstance(each, nn.Embedding) for each in module.modules())


def unread_transformer(name: str) -> BadInput:
    """The refusal of a network of text that attacks on text do not know."""
    message = (
        f"`{name}` embeds tokens, and text is read from the updates of two kinds of network alone: ours "
        "(`remanence.models.decoder`, `encoder`), and those that compute what GPT-2 does under its names. Call yours "
        "wte, wpe, h.0.ln_1, h.0.attn.c_attn (queries, keys and values as one matrix), h.0.attn.c_proj, h.0.ln_2, "
        "h.0.mlp.c_fc, h.0.mlp.c_proj, h.1.…, ln_f, and rename the tensors of its files likewise"
    )
    return BadInput(message, code="unsupported-model", argument="model")


def token_update(
    network: TokenNetwork,
    before: Params,
    sent: Params,
    batch: Tokens,
    *,
    gradient: bool,
    lr: float = 1.0,
    decay: float = 0.0,
) -> TransformerUpdate:
    """The release of a client that trained on `batch`: `sent` is a gradient, or the weights after a step of SGD with
    this learning rate and weight decay, both under the owner's names, as are the weights `before`."""
    network = network.checked(before, batch)
    at, values = network.renamed(before), network.renamed(sent)
    if gradient:
        changed = {name: g for name, g in values.items() if bool(g.any())}
    else:
        trained = [name for name, value in values.items() if not torch.equal(value, at[name])]
        changed = {name: (at[name] - values[name]) / lr - decay * at[name] for name in trained}
    if not changed:
        message = "the client sent nothing: its gradient is zero, or the weights before and after are the same"
        raise BadInput(message, code="conflict", argument="gradient" if gradient else "after")
    blocks = len(network.model.blocks)
    kinds = ("weight", "lora_a")
    frozen = [name for name in _PROJECTIONS[: 3 * blocks] if not any(f"{name}.{kind}" in changed for kind in kinds)]
    zeros = {f"{name}.weight": torch.zeros_like(at[f"{name}.weight"]) for name in frozen}
    return TransformerUpdate(
        model=network.model,
        at=at,
        gradient=changed | zeros,
        batch_size=len(batch),
        length=batch.ids.shape[1],
        rounding=_rounding(values, changed) / (1 if gradient else lr),
    )


def _rounding(values: Params, gradient: Params) -> float:
    """The largest standard deviation of the errors of an attention's `values`, a gradient or weights after a step, that
    come from the format in which they were stored, over the root mean square entry of the `gradient`."""
    attention = [name for name in gradient if name.rpartition(".")[0] in _PROJECTIONS and gradient[name].ndim == 2]
    stored = [kind for kind in _COARSE if all(_exact(values[name], kind) for name in attention)]
    errors = [0.0]
    for name in attention:
        eps = torch.finfo((*stored, values[name].dtype)[0]).eps
        unit = eps * torch.exp2(values[name].double().abs().clamp_min(1e-300).log2().floor())  # in the last place
        errors.append(float(unit.square().mean().sqrt() / sqrt(12) / gradient[name].double().square().mean().sqrt()))
    return max(errors)


def _exact(values: Tensor, kind: torch.dtype) -> bool:
    return torch.equal(values.to(kind).to(values.dtype), values)


def _heads(module: nn.Module, held: Params) -> list[int]:
    """The numbers of heads that a GPT-2 may have, which its weights do not show: that of its `config`; where it says
    none all that divide the width, the one of the usual width first."""
    given = getattr(getattr(module, "config", None), "n_head", None)
    if isinstance(given, int):
        return [given]
    width = next(min(value.shape) for name, value in held.items() if name.endswith("c_attn.weight"))
    divisors = [number for number in range(1, width + 1) if width % number == 0]
    return sorted(divisors, key=lambda number: abs(number - width / _HEAD))


def _logits(module: nn.Module, at: Params, ids: Tensor) -> Tensor | None:
    """What the owner's network says of its token ids (1, length): (1, length, vocabulary); None where it cannot be
    called like that."""
    held = [*module.named_parameters(), *module.named_buffers()]  # each once, of those that are tied
    with suppress(Exception), torch.no_grad():  # anything may happen in a stranger's network
        said: Any = functional_call(module, {name: at[name] for name, _ in held if name in at}, (ids,))
        said = getattr(said, "logits", said[0] if isinstance(said, tuple) else said)
        if isinstance(said, Tensor) and said.ndim == 3 and said.shape[1] == ids.shape[1]:
            return said
    return None
