"""Calibration: a planted leak is found, planted nothing is not, and neither are a mean image or a known class."""

import pytest
import torch
from refusals import refused

from remanence import Data, Reconstruction, evaluate
from remanence.data import split
from remanence.metrics import MATCHINGS, MSE, NCC, SSIM, Matching, Scores, greedy_ssim, hungarian, identity, nearest_ncc

SEEDS = range(10)


def planted(digits: Data, candidates: str, matching: Matching, seed: int, records: int = 100) -> Scores:
    parts = split(digits, private=records, fixed=0, public=400, test=800, seed=seed)
    truth = parts.private.x
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed))
    classes = torch.stack([parts.public.x[parts.public.y == label].mean(dim=0) for label in range(10)])
    x = {
        "truth plus small noise": (truth + 0.02 * noise).clamp(0, 1),
        "unrelated": parts.public.x[:records],
        "twice as many unrelated": parts.public.x[: 2 * records],
        "mean image": parts.public.x.mean(dim=0).expand_as(truth),
        "class means": classes[parts.private.y],
    }[candidates]
    given = {"unrelated": parts.test, "matching": matching, "metrics": (SSIM,)}
    return evaluate(Reconstruction(x=x), parts.private, **given, seed=seed)


def fraction_found(scores: list[Scores]) -> float:
    return float(torch.cat([score.found for score in scores]).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize("matching", MATCHINGS, ids=lambda matching: matching.name)
def test_a_planted_leak_is_found(digits: Data, matching: Matching) -> None:
    scores = [planted(digits, "truth plus small noise", matching, seed) for seed in range(3)]
    assert fraction_found(scores) >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidates", "matching"),
    [
        *(("unrelated", matching) for matching in MATCHINGS),
        *(("twice as many unrelated", matching) for matching in (nearest_ncc, hungarian)),
        *((guess, identity) for guess in ("mean image", "class means")),
    ],
)
def test_what_says_nothing_about_the_records_finds_none(digits: Data, candidates: str, matching: Matching) -> None:
    scores = [planted(digits, candidates, matching, seed, records=50) for seed in SEEDS]
    assert fraction_found(scores) <= 0.02


def test_a_neighbour_given_as_the_reconstruction_is_no_closer_than_itself(digits: Data) -> None:
    parts = split(digits, private=20, fixed=0, public=100, test=200, seed=0)
    apart = torch.cdist(parts.private.x.flatten(1), parts.public.x.flatten(1))
    x = parts.public.x[apart.argmin(dim=1)]
    x[0] = parts.private.x[0]
    told = evaluate(
        Reconstruction(x=x), parts.private, unrelated=parts.test, known=parts.public, matching=identity, metrics=(MSE,)
    )
    assert told.closer.tolist() == [True] + [False] * 19


@pytest.mark.slow
def test_every_score_stands_beside_five_null_levels(digits: Data) -> None:
    parts = split(digits, private=20, fixed=0, public=0, test=200, seed=0)
    scores = evaluate(Reconstruction(x=parts.private.x), parts.private, unrelated=parts.test)
    assert set(scores.nulls) == {"held_out", "unrelated", "noise", "mean_image", "nearest_neighbour"}
    for null in scores.nulls.values():
        assert set(null.values) == set(scores.values)
        assert float(scores.values["ssim"].mean()) > float(null.values["ssim"].nanmean())
    assert scores.matching == "hungarian"
    assert scores.primary is SSIM
    assert scores.fraction_found.low <= scores.fraction_found.value <= scores.fraction_found.high


@pytest.mark.slow
def test_the_nearest_neighbour_is_the_nearest_known_record(digits: Data) -> None:
    parts = split(digits, private=10, fixed=0, public=100, test=200, seed=0)
    scores = evaluate(Reconstruction(x=parts.test.x[:10]), parts.private, unrelated=parts.test, known=parts.public)
    likest = SSIM.pairwise(parts.public.x, parts.private.x).argmax(0)  # of those that are near by squared error
    same = (scores.lookalike == parts.public.x[likest]).flatten(1).all(1)
    assert same.float().mean() >= 0.8
    by_error = evaluate(
        Reconstruction(x=parts.test.x[:10]), parts.private, unrelated=parts.test, known=parts.public, metrics=(MSE,)
    )
    naive = [min(range(100), key=lambda j: float((parts.public.x[j] - r).square().mean())) for r in parts.private.x]
    assert torch.equal(by_error.lookalike, parts.public.x[naive])
    assert torch.allclose(
        scores.nulls["mean_image"].values["mse"],
        (parts.public.x.mean(dim=0) - parts.private.x).square().flatten(1).mean(dim=1),
        atol=1e-6,
    )


@pytest.mark.slow
def test_fewer_candidates_than_records_leave_records_unmatched(digits: Data) -> None:
    parts = split(digits, private=10, fixed=0, public=10, test=200, seed=0)
    scores = evaluate(Reconstruction(x=parts.private.x[:6]), parts.private, unrelated=parts.test, matching=greedy_ssim)
    assert scores.unmatched == 4
    assert torch.equal(scores.matched(parts.private.x[:6])[:6], parts.private.x[:6])
    assert not scores.matched(parts.private.x[:6])[6:].any()
    assert scores.found[:6].all()
    assert not scores.found[6:].any()
    assert scores.values["mse"][6:].isnan().all()
    assert scores.means["mse"].value == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_a_few_good_candidates_for_many_records_are_found(digits: Data) -> None:
    parts = split(digits, private=300, fixed=0, public=10, test=1000, seed=0)
    scores = evaluate(Reconstruction(x=parts.private.x[:10]), parts.private, unrelated=parts.test)
    assert scores.found[:10].all()
    assert scores.found[10:].sum() <= 2  # on average one in twenty of a list


@pytest.mark.slow
def test_one_record_is_not_found_by_chance_in_a_small_pool(digits: Data) -> None:
    """An unrelated record of the class is nearer than k others once in k + 1 times, however often they are drawn."""
    threes = digits.take((digits.y == 3).nonzero()[:, 0])
    found = 0
    for seed in range(20):
        order = threes.take(torch.randperm(len(threes), generator=torch.Generator().manual_seed(seed)))
        candidate = Reconstruction(x=order.x[:1])
        pool = order.take(slice(2, 7))
        scores = evaluate(candidate, order.take([1]), unrelated=pool, matching=identity, metrics=(SSIM,))
        found += int(scores.found.sum())
    assert found == 0


def test_unusable_records_are_refused(digits: Data) -> None:
    found, truth = Reconstruction(x=digits.x[:30]), digits.take(slice(0, 30))
    with refused("too-few", "unrelated"):
        evaluate(found, truth, unrelated=digits.take(slice(30, 32)))
    with refused("empty", "truth"):
        evaluate(found, digits.take(slice(0, 0)), unrelated=digits)
    with refused("conflict"):
        evaluate(found, truth, unrelated=digits.take(slice(5, 500)))


def test_fewer_held_out_records_than_candidates_keep_the_level(digits: Data) -> None:
    shuffled = digits.take(torch.randperm(len(digits), generator=torch.Generator().manual_seed(0)))
    truth, pool, others = (shuffled.take(slice(a, b)) for a, b in ((0, 300), (300, 500), (500, 800)))
    null = evaluate(Reconstruction(x=others.x), truth, unrelated=pool, metrics=(SSIM,))
    assert null.fraction_found.value <= 0.02
    leak = torch.cat([truth.x[:150], others.x[150:]])
    found = evaluate(Reconstruction(x=leak), truth, unrelated=pool, metrics=(SSIM,)).found
    assert found[:150].double().mean() > 0.95


def test_a_diverged_candidate_is_not_found_and_spoils_nothing(digits: Data) -> None:
    parts = split(digits, private=10, fixed=0, public=10, test=200, seed=0)
    x = parts.private.x.clone()
    x[3] = torch.nan
    scores = evaluate(Reconstruction(x=x), parts.private, unrelated=parts.test, matching=identity)
    assert scores.found.tolist() == [k != 3 for k in range(10)]
    assert scores.means["ssim"].value == pytest.approx(1.0)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evaluation_goes_where_the_reconstruction_is(digits: Data, device: str, dtype: torch.dtype) -> None:
    parts = split(digits, private=40, fixed=0, public=10, test=200, seed=0)
    found = Reconstruction(x=parts.private.x.to(device, dtype))
    scores = evaluate(found, parts.private, unrelated=parts.test, known=parts.public)
    assert scores.values["ssim"].device.type == device
    assert scores.values["ssim"].dtype == dtype
    assert scores.found.all()


def test_table_rows_are_scored_by_squared_error_first() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = Data(x=torch.rand(300, 6, generator=generator), y=torch.zeros(300).long(), num_classes=1)
    truth = rows.take(slice(0, 30))
    scores = evaluate(Reconstruction(x=truth.x + 0.001), truth, unrelated=rows.take(slice(30, 300)))
    assert scores.primary is MSE
    assert NCC in scores.metrics
    assert scores.fraction_found.value == 1.0
