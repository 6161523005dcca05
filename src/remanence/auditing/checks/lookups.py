"""Whether the model looks values of the records up in an embedding, where attacks that follow gradients find none."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from remanence.auditing.answer.report import Check
from remanence.auditing.checks.outputs import logits_of
from remanence.auditing.checks.records import evenly
from remanence.errors import listed
from remanence.types import Data, Params, concat

LOOKUP = "lookup"
_RECORDS = 64  # of each set


def check_lookups(release: Any, params: Params, private: Data, held_out: Data) -> list[Check]:
    """A warning where records have codes of their own in an embedding; positions, the same for all, are none. Where the
    values of a table were scaled, from which codes do not come back exactly, a stop."""
    some = concat([evenly(data, _RECORDS) for data in (private, held_out)])
    found = [path for path, codes in _looked_up(release.model, params, some.x) if _differ(codes, len(some))]
    if not found:
        return []
    where = f"The model looks values of the records up in {listed([f'`{path}`' for path in found])}, by codes of "
    if private.columns is not None:
        text = (
            f"{where}categories, and a code that is rounded down is another category: columns that were scaled to "
            "[0, 1] come back with rounding errors. Give records that stay as they are, in an .npz with an array "
            "`bounds` of the smallest and the largest value they can have, such as [-inf, inf]."
        )
        return [Check(name=LOOKUP, status="stop", text=text)]
    text = (
        f"{where}categories: no gradient leads to a code, so that attacks search the other values alone. Which rows of "
        "an embedding an update changed is read without any attack. Name a function that returns a wrapper which takes "
        "one column for each category, and multiplies these by the embedding's weight."
    )
    return [Check(name=LOOKUP, status="warning", text=text)]


def _looked_up(model: nn.Module, params: Params, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The embeddings that the model uses for records `x`, each with the codes that it was given."""
    given = dict[str, Tensor]()

    def keep(path: str) -> Any:
        return lambda _layer, inputs: given.setdefault(path, inputs[0].detach())

    embeddings = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, nn.Embedding)]
    handles = [layer.register_forward_pre_hook(keep(path)) for path, layer in embeddings]
    try:
        if handles:
            logits_of(model, params, x)
    finally:
        for handle in handles:
            handle.remove()
    yield from given.items()


def _differ(codes: Tensor, records: int) -> bool:
    """Whether records have different codes."""
    return codes.ndim > 0 and len(codes) == records and bool((codes != codes[:1]).any())
