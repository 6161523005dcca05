"""Releases and an attack in, a finding out: the attack gets the releases, then the truth is opened and scored."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from remanence.attacks import Attack, Linearised, ShadowAttack, SimuDy
from remanence.data.splits import check_disjoint
from remanence.errors import BadInput
from remanence.execution import Backend
from remanence.metrics import Matching, Metric, Scores, evaluate, hungarian
from remanence.metrics.leakage import Releases
from remanence.metrics.limit import Limit, reconstruction_limit
from remanence.progress import track
from remanence.releases import Case, KnowsFixed, KnowsTraining, require
from remanence.search import with_search
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank, Store, build_bank
from remanence.training.guarantee import guarantee_of
from remanence.types import Data, Reconstruction, concat

A = TypeVar("A")  # an attack


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Finding:
    """What one attack reconstructed from a release, or from several of one kind taken together."""

    release: object  # the first of them: they differ in values only
    attack: object
    public: Data  # the records that the attacker owned
    truth: Data
    reconstruction: Reconstruction
    scores: Scores
    seconds: float
    limit: Limit | None = None  # what differential privacy allows, where the victims were trained with it

    def __repr__(self) -> str:
        found = f"{int(self.scores.found.sum())} of {len(self.truth)} records found"
        return f"Finding({type(self.attack).__name__} on {type(self.release).__name__}: {found}, {self.seconds:.3g} s)"


def attack_cases(
    cases: Sequence[Case[Any]],
    attack: Attack[Any] | ShadowAttack,
    *,
    public: Data,
    unrelated: Data,
    bank: ShadowBank | None = None,
    matching: Matching = hungarian,
    metrics: Sequence[Metric] | None = None,
    backend: Backend | None = None,
    store: Store | None = None,
    seed: int = 0,
) -> Finding:
    """Run `attack` on every release, and score all reconstructions together against all records withheld.

    `public` are the records the attacker owns (a learning attack trains its shadow models on them unless it is given
    their `bank`), `unrelated` records that nobody trained on, for the null levels. Shadow models and searches that an
    interrupted run left in `store` are resumed.
    """
    if not cases:
        raise BadInput("`cases` is empty: there is no release to attack", code="empty", argument="cases")
    truth, start = concat(case.truth for case in cases), perf_counter()
    if len(public) and truth.is_image:  # rows of a table may well be equal
        check_disjoint({"truth": truth, "public": public})
    if isinstance(attack, ShadowAttack):
        _check_alike([case.release for case in cases], by=type(attack).__name__)
        bank = bank or build_bank(cases[0].release, public, seed=seed, backend=backend, store=store)
        check_disjoint({"truth": truth, "bank": bank.targets})
    parts = _reconstruct_each([case.release for case in cases], attack, bank=bank, store=store, seed=seed)
    found, seconds = _concatenated(parts), perf_counter() - start
    releases = Releases(
        candidates=_numbered([len(part.x) for part in parts]), records=_numbered([len(case.truth) for case in cases])
    )
    owned = concat([public, cases[0].release.fixed]) if isinstance(cases[0].release, KnowsFixed) else public
    scores = evaluate(
        found,
        truth,
        unrelated=unrelated,
        known=owned,
        matching=matching,
        metrics=metrics,
        releases=releases,
        seed=seed,
    )
    return Finding(
        release=cases[0].release,
        attack=attack,
        public=public,
        truth=truth,
        reconstruction=found,
        scores=scores,
        seconds=seconds,
        limit=_limit(cases, found, truth, concat([unrelated, owned]) if len(owned) else unrelated, seed),
    )


def reconstruct(
    releases: Sequence[Any],
    attack: Attack[Any] | ShadowAttack,
    *,
    bank: ShadowBank | None = None,
    store: Store | None = None,
    seed: int = 0,
) -> Reconstruction:
    """Run `attack`, fitted to `bank` where it learns from shadow models, on each release; the candidates of all, in
    the order of the releases. No truth is given."""
    return _concatenated(_reconstruct_each(releases, attack, bank=bank, store=store, seed=seed))


def _reconstruct_each(
    releases: Sequence[Any],
    attack: Attack[Any] | ShadowAttack,
    *,
    bank: ShadowBank | None,
    store: Store | None,
    seed: int,
) -> list[Reconstruction]:
    ready = resumable(attack, store)
    if isinstance(attack, ShadowAttack):
        assert bank is not None
        ready = attack.fit(bank, seed=seed)
    assert isinstance(ready, Attack)
    attacked = track(enumerate(releases), total=len(releases), label="releases")
    return [ready.run(release, seed=seed + i) for i, release in attacked]


def resumable(attack: A, store: Store | None) -> A:
    """The attack, with its search resumed from `store` where it can be."""
    if store is not None and isinstance(attack, SimuDy | Linearised):
        return with_search(attack, checkpoints=store.folder)
    return attack


def _numbered(counts: Sequence[int]) -> Tensor:
    """The number of each group, as often as it has members."""
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


def _check_alike(releases: Sequence[Any], *, by: str) -> None:
    """Refuse releases that one bank of shadow models does not serve: other fixed records or other initial weights."""
    first = releases[0]
    for release in releases:
        require(release, KnowsFixed, by=by)
        same_data = release.fixed is first.fixed or torch.equal(release.fixed.x, first.fixed.x)
        initial, other = (getattr(each, "initial", {}) for each in (first, release))
        same_init = all(torch.equal(p, other[name]) for name, p in initial.items())
        if not (same_data and same_init):
            what = "initial weights" if same_data else "fixed records"
            raise BadInput(
                f"the releases differ in their {what}, and one bank of shadow models serves one: attack each alone",
                code="conflict",
                argument="cases",
            )


def _limit(cases: Sequence[Case[Any]], found: Reconstruction, truth: Data, prior: Data, seed: int) -> Limit | None:
    """The bound that differential privacy sets; None without noise, where a release withholds more than one record, and
    for Poisson samples without dp-accounting."""
    release, alone = cases[0].release, all(len(case.truth) == 1 for case in cases)
    if not (isinstance(release, KnowsTraining | KnowsFixed) and alone and len(found.x) == len(truth)):
        return None
    if (guarantee := guarantee_of(release.training)) is None:
        return None
    try:
        return reconstruction_limit(found, truth, prior, guarantee=guarantee, seed=derive_seed(seed, "limit"))
    except BadInput as refusal:  # a caveat says so
        if refusal.code != "missing-dependency":
            raise
        return None


def _concatenated(parts: Sequence[Reconstruction]) -> Reconstruction:
    labels = [part.y for part in parts if part.y is not None]
    objectives = [part.objective for part in parts if part.objective is not None]
    return Reconstruction(
        x=torch.cat([part.x for part in parts]),
        y=torch.cat(labels) if len(labels) == len(parts) else None,
        objective=sum(objectives) / len(objectives) if len(objectives) == len(parts) else None,  # mean over releases
    )
