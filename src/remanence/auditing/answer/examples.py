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
from remanence.experiments.summary import as_pixels
from remanence.metrics.evaluation import oriented
from remanence.types import Data

MAX_EXAMPLES = 12  # of each attack
_MAX_ATTACKS = 100


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """The worst records of one attack, worst first: those it found, then by score.

    `truth`, `reconstruction` and `lookalike` (the nearest record that the attacker could own) are 8-bit images
    (n, channels, height, width) or rows (n, features); the other tensors are (n,).
    """

    metric: str
    record: Tensor  # its position among the private records
    label: Tensor
    score: Tensor
    found: Tensor
    truth: Tensor
    reconstruction: Tensor
    lookalike: Tensor
    columns: Columns | None = None  # of a table: what its features mean

    def __len__(self) -> int:
        return len(self.record)

    def __repr__(self) -> str:
        return f"Examples({len(self)} records, {int(self.found.sum())} found)"


def examples_of(finding: Finding, found: Tensor, private: Data) -> Examples:
    """The worst records of `finding`, of which `found` (records,) says whether each was found."""
    scores, truth = finding.scores, finding.truth
    values = scores.values[scores.primary.name].detach().cpu()
    badness = oriented(scores.primary, values).nan_to_num(nan=-torch.inf)
    order = sorted(range(len(truth)), key=lambda i: (not found[i], -float(badness[i])))
    index = torch.tensor([i for i in order if scores.index[i] >= 0][:MAX_EXAMPLES], dtype=torch.long)
    truth_x, candidates = truth.x.cpu(), finding.reconstruction.x.detach().cpu()
    return Examples(
        metric=scores.primary.name,
        record=torch.tensor([_position(truth_x[i], private) for i in index], dtype=torch.long),
        label=truth.y.cpu()[index],
        score=values[index].float(),
        found=found.cpu()[index],
        truth=as_pixels(truth_x[index]),
        reconstruction=as_pixels(candidates[scores.index.cpu()[index]].nan_to_num(0)),
        lookalike=as_pixels(scores.lookalike.cpu()[index]),
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
        texts[name] = {"metric": each.metric, "columns": encode(each.columns)}
    return save(tensors, metadata={"examples": json.dumps(texts)})


@final
@dataclass(frozen=True, kw_only=True)
class Texts:
    """What stands in the metadata of the file about the examples of one attack."""

    metric: str
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
    made = Examples(metric=texts.metric, columns=texts.columns, **tensors)
    shape, dtype = made.truth.shape, made.truth.dtype
    records = [tensors.pop(part) for part in ("truth", "reconstruction", "lookalike")]
    if (dtype, len(shape)) not in ((torch.uint8, 4), (torch.float32, 2)) or 0 in shape[1:]:
        raise ValueError(f"`{name}` holds neither 8-bit images nor rows")
    if any((each.shape, each.dtype) != (shape, dtype) for each in records) or shape[0] > MAX_EXAMPLES:
        raise ValueError(f"`{name}` holds records of several shapes, or too many")
    if any(each.shape != shape[:1] or each.is_complex() for each in tensors.values()):
        raise ValueError(f"`{name}` must hold one number for each record")
    if made.columns is not None and not made.columns.fit(shape[1:].numel()):
        raise ValueError(f"`{name}` has columns that are not in its records")
    return replace(made, found=made.found.bool(), record=made.record.long(), label=made.label.long())
