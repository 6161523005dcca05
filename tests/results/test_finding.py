"""The whole walk, and the caveats that an audit owes its reader."""

import dataclasses

import pytest
import torch
from refusals import refused

from remanence import (
    AllButOne,
    Data,
    Experiment,
    Reconstruction,
    Training,
    Victims,
    evaluate,
    run_experiment,
    train_victim,
)
from remanence.attacks import GradientMatching, RecoNN, with_search
from remanence.data import Split
from remanence.experiments import Finding, attack_cases
from remanence.experiments.checks import caveats
from remanence.metrics import Matching, hungarian, identity
from remanence.models import initial_params, mlp
from remanence.releases import Case, all_but_one, gradient_at_initial, weights_only


@dataclasses.dataclass(frozen=True)
class Replay:
    """An attack that returns what it is told, whatever the release."""

    x: torch.Tensor

    def run(self, release: object, *, seed: int) -> Reconstruction:
        return Reconstruction(x=self.x)


def finding(x: torch.Tensor, parts: Split, matching: Matching = hungarian, truth: Data | None = None) -> Finding:
    truth = truth or parts.private
    return attack_cases(
        [Case(release=None, truth=truth)], Replay(x), public=parts.public, unrelated=parts.test, matching=matching
    )


def codes(found: Finding) -> set[str]:
    return {caveat.code for caveat in caveats(found)}


def test_several_releases_are_scored_together(parts: Split) -> None:
    cases = [Case(release=None, truth=parts.private.take(slice(k, k + 1))) for k in range(3)]
    found = attack_cases(
        cases, Replay(parts.private.x[:1]), public=parts.public, unrelated=parts.test, matching=identity
    )
    assert len(found.truth) == 3
    assert found.scores.found.tolist() == [True, False, False]
    with refused("empty", "cases"):
        attack_cases([], Replay(parts.private.x), public=parts.public, unrelated=parts.test)


def test_a_learning_attack_on_a_poorer_release_says_what_is_missing(parts: Split) -> None:
    model = mlp(parts.fixed.shape, 10)
    initial = initial_params(model, seed=0)
    victim = train_victim(model, Training(epochs=2), initial, parts.fixed, parts.private, seed=0)
    with refused("not-enough-knowledge", "release"):
        attack_cases([weights_only(victim)] * 2, RecoNN(), public=parts.public, unrelated=parts.test)


def test_one_bank_serves_releases_of_one_start_and_one_fixed_set(parts: Split) -> None:
    model, target = mlp(parts.fixed.shape, 10), parts.private.take(slice(0, 1))

    def release(start: int, fixed: Data) -> Case[AllButOne]:
        initial = initial_params(model, seed=start)
        return all_but_one(train_victim(model, Training(epochs=1), initial, fixed, target, seed=0))

    first, fewer = release(0, parts.fixed), parts.fixed.take(slice(0, 50))
    for other in (release(1, parts.fixed), release(0, fewer)):
        with refused("conflict", "cases"):
            attack_cases([first, other], RecoNN(), public=parts.public, unrelated=parts.test)


@pytest.mark.slow
def test_the_nearest_neighbour_is_looked_for_in_all_that_the_attacker_owns(parts: Split) -> None:
    model = mlp(parts.fixed.shape, 10)
    initial, target = initial_params(model, seed=0), parts.private.take(slice(0, 1))
    case = all_but_one(train_victim(model, Training(epochs=2), initial, parts.fixed, target, seed=0))
    found = attack_cases([case], Replay(target.x), public=parts.public, unrelated=parts.test)
    owned = torch.cat([parts.public.x, parts.fixed.x])
    nearest = owned[(owned - target.x).square().flatten(1).mean(dim=1).argmin()]
    assert torch.equal(found.scores.lookalike[0], nearest)


def test_a_clean_leak_raises_no_caveat(parts: Split) -> None:
    assert codes(finding(parts.private.x, parts)) == set()


def test_nothing_found_is_said_and_is_no_proof(parts: Split) -> None:
    found = finding(parts.public.x.mean(dim=0).expand_as(parts.private.x), parts, identity)
    assert codes(found) == {"nothing-found", "no-better-than-a-neighbour"}


@pytest.mark.slow
def test_few_records_few_nulls_unmatched_and_broken_are_said(parts: Split) -> None:
    assert codes(finding(parts.private.x[:5], parts, truth=parts.private.take(slice(0, 5)))) == {"few-records"}
    assert codes(finding(parts.private.x[:35], parts)) == {"unmatched-records"}
    small = dataclasses.replace(parts, test=parts.test.take(slice(0, 100)))
    assert codes(finding(parts.private.x, small)) == {"few-held-out-records"}
    known = (parts.test.y != 3) & (parts.test.y != 7)
    lacking = dataclasses.replace(parts, test=parts.test.take(known.nonzero()[:, 0]))
    missing = finding(parts.private.x, lacking)
    assert codes(missing) == {"classes-not-held-out"}
    assert not missing.scores.test.listed[~torch.isin(parts.private.y, lacking.test.y)].any()
    ours = parts.private.x.mean(0) * 0.5 + 0.5 * parts.private.x  # of another kind than the held-out ones
    other = dataclasses.replace(parts, private=dataclasses.replace(parts.private, x=ours))
    assert "records-alike" in codes(finding(ours, other))
    broken = parts.private.x.clone()
    broken[0] = torch.nan
    assert codes(finding(broken, parts, identity)) == {"broken-reconstructions"}


def cell(parts: Split, **changes: object) -> Experiment:
    plain = Experiment(
        label="gradient",
        victims=Victims(
            split=lambda seed: dataclasses.replace(parts, private=parts.private.take(slice(seed, seed + 6))),
            model=lambda data: mlp(data.shape, data.num_classes, hidden=(64,)),
            training=Training(epochs=5),
            reveal=gradient_at_initial,
            per_victim=3,
        ),
        attack=with_search(GradientMatching(), steps=150, restarts=1),
    )
    return dataclasses.replace(plain, **changes)


@pytest.mark.slow
def test_a_cell_walks_from_split_to_scores(parts: Split) -> None:
    result = run_experiment(cell(parts), seed=2)
    assert torch.equal(result.finding.truth.x, parts.private.x[2:8])
    assert result.finding.reconstruction.x.shape == (6, 1, 8, 8)
    again = evaluate(
        result.finding.reconstruction, result.finding.truth, unrelated=parts.test, known=parts.public, seed=2
    )
    assert torch.equal(again.values["ssim"], result.finding.scores.values["ssim"])
    assert result.finding.scores.fraction_found.value > 0.5


@pytest.mark.slow
def test_a_choice_made_with_the_truth_in_hand_is_said(parts: Split) -> None:
    result = run_experiment(cell(parts, tuned_on_truth=True, attack=with_search(GradientMatching(), steps=5)))
    assert "tuned-on-truth" in {caveat.code for caveat in result.outcome.caveats}


def test_cuda_is_refused_where_there_is_none(parts: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device in ("cuda", "cuda:0", "meta", "gpu please"):
        with refused("unknown-name", "device"):
            run_experiment(cell(parts), device=device)
