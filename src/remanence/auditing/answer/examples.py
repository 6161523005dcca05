"""The records that an attack reconstructed best, for the page and for `images.safetensors`: personal data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from remanence.columns import Columns
from remanence.disk import check_safetensors
from remanence.errors import BadInput, printable
from remanence.experiments.codec import MAX_BYTES, decode, encode, parse_json
from remanence.experiments.finding import Finding
from remanence.experiments.summary import as_pixels, black_and_white
from remanence.metrics.evaluation import oriented
from remanence.metrics.matching import NONE
from remanence.metrics.similarity import column_ranges
from remanence.types import Data

MAX_EXAMPLES = 12  # of each attack
SAME = 0.1  # of the range of a value: no further apart, values count as the same
_MAX_ATTACKS = 100


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
    box = black_and_white(private)
    return Examples(
        metric=scores.primary.name,
        record=torch.tensor([_position(truth_x[i], private) for i in index], dtype=torch.long),
        label=truth.y.cpu()[index],
        score=values[index].float(),
        found=found[index],
        p=p[index].float(),
        rank=test.identification.rank[index],
        same=((reconstructed - truth_x[index]).abs() <= SAME * _ranges(private)).flatten(1).float().mean(1),
        shared=torch.tensor([max(0, int((of_found == candidate[i]).sum()) - 1) for i in index], dtype=torch.long),
        truth=as_pixels(truth_x[index], box),
        reconstruction=as_pixels(reconstructed, box),
        lookalike=as_pixels(scores.lookalike.cpu()[index], box),
        by=tuple(test.recognised_by(int(i)) for i in index),
        held_out=test.identification.held_out,
        columns=private.columns,
    )


def _ranges(private: Data) -> Tensor:
    """The range of each value: that of the box, or where values have none of their own that of most records."""
    if private.is_unit:
        return torch.ones(private.shape)
    return column_ranges(private.x.cpu()).reshape(private.shape)


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


@final
@dataclass(frozen=True, kw_only=True)
class Texts:
    """What stands in the metadata of the file about the examples of one attack."""

    metric: str
    by: tuple[str, ...]
    held_out: int
    columns: Columns | None


def load_examples(path: Path) -> dict[str, Examples]:
    """What `dump_examples` made; nothing where there is no such file."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return {}
    try:
        check_safetensors(path, max_header=MAX_BYTES)
        with safe_open(path, framework="pt") as file:
            texts = parse_json((file.metadata() or {})["examples"])
            if not isinstance(texts, dict) or len(texts) > _MAX_ATTACKS:
                raise ValueError("its metadata is no object of a few attacks")
            return {name: _loaded(file, name, given) for name, given in texts.items()}
    except (BadInput, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        message = f"`{path}` is damaged ({printable(str(error), 300)}): make the audit again"
        raise BadInput(message, code="damaged-file", argument="folder") from None


def _loaded(file: Any, name: str, given: Any) -> Examples:
    texts = decode(Texts, given)
    stored = {field.name: f"{name}/{field.name}" for field in fields(Examples) if field.type is Tensor}
    tensors = {key: file.get_tensor(at) for key, at in stored.items()}
    made = Examples(metric=texts.metric, by=texts.by, held_out=texts.held_out, columns=texts.columns, **tensors)
    shape, dtype = made.truth.shape, made.truth.dtype
    records = [tensors.pop(part) for part in ("truth", "reconstruction", "lookalike")]
    if (dtype, len(shape)) not in ((torch.uint8, 4), (torch.float32, 2)) or 0 in shape[1:]:
        raise ValueError(f"`{name}` holds neither 8-bit images nor rows")
    if any((each.shape, each.dtype) != (shape, dtype) for each in records) or shape[0] > MAX_EXAMPLES:
        raise ValueError(f"`{name}` holds records of several shapes, or too many")
    if any(each.shape != shape[:1] or each.is_complex() for each in tensors.values()) or len(made.by) != shape[0]:
        raise ValueError(f"`{name}` must hold one number for each record")
    if made.columns is not None and not made.columns.fit(shape[1:].numel()):
        raise ValueError(f"`{name}` has columns that are not in its records")
    integers = {key: getattr(made, key).long() for key in ("record", "label", "rank", "shared")}
    return replace(made, found=made.found.bool(), **integers)
