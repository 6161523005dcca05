"""Releases and an attack in, a finding out: the attack sees the releases, then the truth is opened and scored."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import torch

from remanence.attacks import Attack, ShadowAttack
from remanence.data.splits import check_disjoint
from remanence.errors import BadInput
from remanence.execution import Backend
from remanence.metrics import Matching, Metric, Scores, evaluate, hungarian
from remanence.release import Case, KnowsRest
from remanence.shadow import build_bank
from remanence.types import Data, Reconstruction, concat


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Finding:
    """What one attack got out of a release, or out of several of one kind put together."""

    release: object  # the first of them: they differ in numbers only
    attack: object
    public: Data  # the records that the attacker owned
    truth: Data
    reconstruction: Reconstruction
    scores: Scores
    seconds: float


def audit(
    cases: Sequence[Case[Any]],
    attack: Attack[Any] | ShadowAttack,
    *,
    public: Data,
    unrelated: Data,
    matching: Matching = hungarian,
    metrics: Sequence[Metric] | None = None,
    backend: Backend | None = None,
    seed: int = 0,
) -> Finding:
    """Run `attack` on every release and score all reconstructions together against all that was withheld.

    `public` are the records the attacker owns (a learning attack trains its shadows on them), `unrelated` records that
    nobody trained on, for the null levels.
    """
    if not cases:
        raise BadInput("`cases` is empty: there is no release to attack")
    truth = concat(case.truth for case in cases)
    if len(public):
        check_disjoint({"truth": truth, "public": public})
    start = perf_counter()
    ready = attack
    if isinstance(attack, ShadowAttack):
        ready = attack.fit(build_bank(cases[0].release, public, seed=seed, backend=backend), seed=seed)
    assert isinstance(ready, Attack)
    found = _joined([ready.run(case.release, seed=seed + i) for i, case in enumerate(cases)])
    seconds = perf_counter() - start
    owned = concat([public, cases[0].release.fixed]) if isinstance(cases[0].release, KnowsRest) else public
    scores = evaluate(found, truth, unrelated=unrelated, known=owned, matching=matching, metrics=metrics, seed=seed)
    return Finding(
        release=cases[0].release,
        attack=attack,
        public=public,
        truth=truth,
        reconstruction=found,
        scores=scores,
        seconds=seconds,
    )


def _joined(parts: Sequence[Reconstruction]) -> Reconstruction:
    labels = [part.y for part in parts if part.y is not None]
    return Reconstruction(
        x=torch.cat([part.x for part in parts]), y=torch.cat(labels) if len(labels) == len(parts) else None
    )
