"""The last token of each sequence, for decoders that predict no end: ours.

Such a decoder, as GPT-2 is trained, reads the last token of a sequence without a loss: no attention shows it. It is the
target of the token before it. After the last MLP's output only a norm and the head follow, position by position. So the
gradient of that layer is  dL/dW = D^T A  with its inputs A, known from the sequences, and one error for each position:
D by least squares. The error at a position is that of one target: every token of the vocabulary is tried.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remanence.models.transformer import PADDING, Transformer
from remanence.progress import track


def complete_sequences(model: Transformer, gradient: Tensor, ids: Tensor) -> Tensor:
    """The sequences (n, length), each with the token that follows it; `gradient` (width, m) is that of the last MLP's
    output, and `model` holds its weights. They stay as they are where they have more positions than it has inputs."""
    present = ids != PADDING
    if not len(ids) or int(present.sum()) > gradient.shape[1]:
        return ids
    inputs, stream = _activations(model, ids)
    errors = torch.zeros(*ids.shape, len(gradient), dtype=torch.float64, device=ids.device)
    errors[present] = torch.linalg.pinv(inputs[present].double()).T @ gradient.double().T
    embeddings, weight, bias = (each.double() for each in (model.tokens.weight, model.norm.weight, model.norm.bias))
    completed = F.pad(ids, (0, 1), value=PADDING)
    sizes = list(enumerate(present.sum(1).tolist()))
    for row, size in track(sizes, total=len(sizes), label="last tokens", after=1.0):
        x = stream[row, size - 1].double()
        logits = embeddings @ F.layer_norm(x, x.shape, weight, bias, model.norm.eps)
        logits[PADDING] = -torch.inf
        targets = _through_norm(model.norm, x, logits.softmax(0) @ embeddings - embeddings)
        likely = F.cosine_similarity(targets, errors[row, size - 1], dim=1)
        likely[PADDING] = -torch.inf
        completed[row, size] = likely.argmax()
    return completed


def _activations(model: Transformer, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What enters the last MLP's output layer (n, length, 4 width), and the residual stream after it."""
    layers = [model.get_submodule(f"blocks.{len(model.blocks) - 1}.down"), model.norm]
    observed: list[Tensor] = []
    handles = [layer.register_forward_pre_hook(lambda _, given: observed.append(given[0])) for layer in layers]
    with torch.no_grad():
        model.logits(ids)
    for handle in handles:
        handle.remove()
    inputs, stream = observed
    return inputs, stream


def _through_norm(norm: nn.LayerNorm, x: Tensor, errors: Tensor) -> Tensor:
    """(v, width): the `errors` (v, width) of a norm's output as those of its input `x` (width,)."""
    deviation = (x.var(correction=0) + norm.eps).sqrt()
    normal, scaled = (x - x.mean()) / deviation, errors * norm.weight.double()
    return (scaled - scaled.mean(1, keepdim=True) - normal * (scaled @ normal / len(x))[:, None]) / deviation
