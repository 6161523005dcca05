"""The records that an attack reconstructed best, for the page and for `images.safetensors`: personal data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from remanence.columns import Columns
from remanence.errors import BadInput
from remanence.experiments.codec import decode, encode
from remanence.experiments.finding import Finding
from remanence.experiments.summary import as_pixels
from remanence.metrics.evaluation import oriented
from remanence.metrics.matching import NONE
from remanence.types import Data

MAX_EXAMPLES = 12  # of each attack
SAME = 0.1  # of the range of a value: no further apart, values count as the same


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """The worst records of one attack, worst first: those it found, the surest of them first, then by score.

    `truth`, `reconstruction` and `lookalike` (the nearest record that the attacker could own) are 8-bit images
    (n, channels, height, width) or rows (n, features); the other tensors are (n,).
    """

    metric: str
    record: Tensor  # its position among the private records
    label: Tensor
    score: Tensor
    found: Tensor
    p: Tensor  # that a held-out record of the class is recognised as well
    rank: Tensor  # among held-out records, by the likeness to the reconstruction; 1 is the best
    same: Tensor  # the fraction of the values that are the same to a tenth of their range
    shared: Tensor  # other found records that the same reconstruction resembles best: it is a mixture
    truth: Tensor
    reconstruction: Tensor
    lookalike: Tensor
    by: tuple[str, ...] = ()  # the similarity that recognises each
    held_out: int = 0  # records that each is ranked among
    columns: Columns | None = None  # of a table: what its features mean

    def __len__(self) -> int:
        return len(self.record)

    def __repr__(self) -> str:
        return f"Examples({len(self)} records, {int(self.found.sum())} found)"


def examples_of(finding: Finding, private: Data) -> Examples:
    """The worst records of `finding`."""
    scores, truth, test = finding.scores, finding.truth, finding.scores.test
    found, p = test.found, test.of_records
    candidate = torch.where(found & (test.candidate != NONE), test.candidate, scores.index.cpu())
    values = scores.values[scores.primary.name].detach().cpu()
    badness = oriented(scores.primary, values).nan_to_num(nan=-torch.inf)
    order = sorted(range(len(truth)), key=lambda i: (not found[i], not test.copies[i], float(p[i]), -float(badness[i])))
    index = torch.tensor([i for i in order if candidate[i] != NONE][:MAX_EXAMPLES], dtype=torch.long)
    truth_x, reconstructed = truth.x.cpu(), finding.reconstruction.x.detach().cpu().nan_to_num(0)[candidate[index]]
    of_found = candidate[found]
    return Examples(
        metric=scores.primary.name,
        record=torch.tensor([_position(truth_x[i], private) for i in index], dtype=torch.long),
        label=truth.y.cpu()[index],
        score=values[index].float(),
        found=found[index],
        p=p[index].float(),
        rank=test.identification.rank[index],
        same=((reconstructed - truth_x[index]).abs() <= SAME).flatten(1).float().mean(1),
        shared=torch.tensor([max(0, int((of_found == candidate[i]).sum()) - 1) for i in index], dtype=torch.long),
        truth=as_pixels(truth_x[index]),
        reconstruction=as_pixels(reconstructed),
        lookalike=as_pixels(scores.lookalike.cpu()[index]),
        by=tuple(test.recognised_by(int(i)) for i in index),
        held_out=test.identification.held_out,
        columns=private.columns,
    )


def _position(x: Tensor, private: Data) -> int:
    """Where the record stands among all private ones, of which an attack may have been scored on a sample."""
    same = (private.x.cpu().to(x.dtype) == x).flatten(1).all(1)
    return int(same.nonzero()[0]) if bool(same.any()) else -1


def dump_examples(examples: Mapping[str, Examples]) -> bytes:
    """The bytes of `images.safetensors`: tensors by attack and field, texts in the metadata."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    texts: dict[str, dict[str, Any]] = {}
    for name, each in examples.items():
        values = {field.name: getattr(each, field.name) for field in fields(each)}
        tensors |= {f"{name}/{key}": v.contiguous() for key, v in values.items() if isinstance(v, Tensor)}
        texts[name] = {"metric": each.metric, "by": each.by, "held_out": each.held_out, "columns": encode(each.columns)}
    return save(tensors, metadata={"examples": json.dumps(texts)})


def load_examples(path: Path) -> dict[str, Examples]:
    """What `dump_examples` made; nothing where there is no such file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            texts = json.loads((file.metadata() or {})["examples"])
            return {name: _loaded(file, name, given) for name, given in texts.items()}
    except (BadInput, SafetensorError, ValueError, KeyError, TypeError) as error:
        message = f"`{path}` is damaged ({error}): make the audit again"
        raise BadInput(message, code="damaged-file", argument="folder") from None


def _loaded(file: Any, name: str, texts: Mapping[str, Any]) -> Examples:
    tensors = {field.name: f"{name}/{field.name}" for field in fields(Examples) if field.type is Tensor}
    made = Examples(
        metric=str(texts["metric"]),
        by=tuple(str(each) for each in texts["by"]),
        held_out=int(texts["held_out"]),
        columns=None if texts["columns"] is None else decode(Columns, texts["columns"]),
        **{key: file.get_tensor(stored) for key, stored in tensors.items()},
    )
    pictures = {(made.truth.dtype, made.truth.ndim), (made.reconstruction.dtype, made.reconstruction.ndim)}
    if (
        not pictures <= {(torch.uint8, 4), (torch.float32, 2)}
        or len({len(getattr(made, key)) for key in (*tensors, "by")}) > 1
    ):
        raise ValueError(f"`{name}` holds neither 8-bit images nor rows, one for each record")
    return replace(made, found=made.found.bool())
