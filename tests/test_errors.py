"""Numbers that would let a training or a search do nothing, refused before it is begun."""

from collections.abc import Callable
from math import inf, nan

import pytest

from remanence import KKT, SGD, BadInput, Equilibrium, GradientMatching, KKTRun, Mnemonist, RecoNN, Training
from remanence.training import Adam, AdamW, RMSProp

WRONG: list[tuple[Callable[..., object], str, float]] = [
    (Training, "epochs", -1),
    (Training, "batch_size", 0),
    (Training, "weight_decay", -0.1),
    (SGD, "lr", nan),
    (SGD, "lr", inf),
    (Adam, "lr", -1e-3),
    (AdamW, "weight_decay", nan),
    (RMSProp, "lr", -1),
    (KKT, "iterations", 0),
    (KKT, "candidates", 0),
    (Equilibrium, "steps", -1),
    (Equilibrium, "restarts", 0),
    (GradientMatching, "steps", 0),
    (RecoNN, "batch_size", 0),
    (RecoNN, "clip", -1),
    (KKTRun, "alpha", nan),
    (Mnemonist, "masks", -1),
]


@pytest.mark.parametrize(("kind", "field", "value"), WRONG)
def test_a_number_below_its_least_is_refused(kind: Callable[..., object], field: str, value: float) -> None:
    with pytest.raises(BadInput, match=rf"`{field}` of \w+ must be [01] or more, got {value}"):
        kind(**{field: value})


def test_kkt_needs_a_run() -> None:
    with pytest.raises(BadInput, match="`runs` of KKT must hold one or more"):
        KKT(runs=())
