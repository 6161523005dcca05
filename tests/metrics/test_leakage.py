"""The leak test on digits: planted leaks are listed whatever form they take, and nothing else is."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import Tensor

from remanence import Data
from remanence.data import split
from remanence.metrics.exchangeability import discoveries
from remanence.metrics.leakage import Releases, exact_copies, leak_test, retest
from remanence.metrics.similarity import turned


@pytest.fixture(scope="module")
def parts(digits: Data):  # type: ignore[no-untyped-def]
    return split(digits, private=60, fixed=0, public=300, test=900, seed=0)


def noisy(x: Tensor, std: float) -> Tensor:
    return (x + std * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)


@pytest.mark.parametrize(
    ("change", "similarity"),
    [
        (lambda x: noisy(x, 0.1), None),
        (lambda x: x.flip(3), "aligned"),
        (lambda x: x.roll(1, 3), "aligned"),
        (lambda x: turned(x, degrees=10), None),
        (lambda x: 0.3 * x + 0.4, None),
        (lambda x: torch.cat([x[..., :4], 0 * x[..., 4:]], dim=3), "halves"),
        (lambda x: torch.cat([noisy(x, 0.1), torch.rand(200, 1, 8, 8)]), None),
    ],
    ids=["noise", "mirror", "shift", "rotation", "contrast", "half", "junk beside"],
)
def test_a_planted_leak_is_listed(parts, change, similarity: str | None) -> None:  # type: ignore[no-untyped-def]
    found = leak_test(change(parts.private.x), parts.private, parts.test)
    assert int(found.listed.sum()) >= 54
    assert found.together <= 1e-4
    assert found.false == pytest.approx(0.05 * int(found.listed.sum()))
    recognised = [found.recognised_by(int(i)) for i in found.found.nonzero()[:, 0]]
    assert similarity is None or recognised.count(similarity) >= 50
    assert found.identification.top1.value >= 0.9
    assert found.identification.chance_top1 <= 0.3
    right = found.candidate[found.found] == found.found.nonzero()[:, 0]
    assert right.float().mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unrelated", "means", "noise"])
def test_without_a_leak_nothing_is_claimed(digits: Data, kind: str) -> None:
    claims, small, ranks = 0, 0, []
    for seed in range(40):
        parts = split(digits, private=40, fixed=0, public=300, test=500, seed=seed)
        candidates = {
            "unrelated": parts.public.x[:40],
            "means": torch.stack([parts.public.x[parts.public.y == label].mean(0) for label in range(10)]),
            "noise": torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(seed)),
        }[kind]
        found = leak_test(candidates, parts.private, parts.test, seed=seed)
        claims += bool(found.listed.any())
        small += found.together <= 0.05
        ranks.append(found.p)
    assert claims <= 5  # of 40 at 5 %
    assert small <= 6  # of 40 at 5 %
    assert float((torch.cat(ranks) <= 0.01).double().mean()) <= 0.02


def test_blank_records_do_not_hide_a_leak(parts) -> None:  # type: ignore[no-untyped-def]
    private, held_out = parts.private.x.clone(), parts.test.x.clone()
    private[::8], held_out[::8] = 0.0, 0.0
    private, held_out = replace(parts.private, x=private), replace(parts.test, x=held_out)
    found = leak_test(noisy(private.x, 0.02), private, held_out)
    blank = private.x.flatten(1).amax(1) == 0
    assert found.found[~blank].all()
    assert not found.found[blank].any()


def test_one_exact_copy_is_found_and_listed_first(parts) -> None:  # type: ignore[no-untyped-def]
    candidates = torch.cat([parts.public.x[:59], parts.private.x[7:8]])
    found = leak_test(candidates, parts.private, parts.test)
    assert found.found.nonzero()[:, 0].tolist() == [7]
    assert found.copies.nonzero()[:, 0].tolist() == [7]
    assert float(found.p[7]) == float(found.p.min())
    assert int(found.candidate[7]) == 59


def test_reconstructions_are_evidence_of_their_own_release_only(parts) -> None:  # type: ignore[no-untyped-def]
    x, n = noisy(parts.private.x, 0.05), len(parts.private)
    own = Releases(candidates=torch.arange(n), records=torch.arange(n))
    assert int(leak_test(x, parts.private, parts.test, releases=own).listed.sum()) == n
    swapped = Releases(candidates=torch.arange(n).roll(1), records=torch.arange(n))
    crossed = leak_test(x, parts.private, parts.test, releases=swapped)
    assert not crossed.listed.any()
    assert crossed.together > 0.001


def test_a_class_that_nobody_held_out_is_not_tested(parts) -> None:  # type: ignore[no-untyped-def]
    others = parts.test.take((parts.test.y != 4).nonzero()[:, 0])
    found = leak_test(noisy(parts.private.x, 0.05), parts.private, others)
    assert found.untested == (4,)
    assert not found.listed[parts.private.y == 4].any()
    assert found.listed[parts.private.y != 4].all()


def test_equal_rows_of_a_table_are_no_evidence_and_others_are() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 8, (700, 13), generator=generator) / 8
    rows[::7] = rows[0]  # the commonest row
    data = Data(x=rows, y=torch.zeros(700, dtype=torch.long), num_classes=1)
    private, held_out = data.take(slice(0, 70)), data.take(slice(70, 700))
    guess = private.x.clone()
    guess[:, :2] = torch.rand(70, 2, generator=generator)  # eleven of thirteen columns are exact
    found = leak_test(guess, private, held_out)
    common = (private.x == rows[0]).all(1)
    assert found.listed[~common].all()
    assert not found.found[common].any()


def subjects(digits: Data) -> tuple[Data, Data, Tensor]:
    """Three records of each of 20 private and 100 held-out subjects: one digit, with a little noise of its own."""
    base = split(digits, private=20, fixed=0, public=0, test=100, seed=0)

    def three(data: Data, first: int) -> Data:
        x = noisy(data.x.repeat_interleave(3, dim=0), 0.1)
        groups = first + torch.arange(len(data)).repeat_interleave(3)
        return replace(data, x=x, y=data.y.repeat_interleave(3), groups=groups)

    private, held_out = three(base.private, 0), three(base.test, 1000)
    leaked = private.x[::3]  # one photograph of each
    return private, held_out, leaked


def test_records_of_one_subject_count_once(digits: Data) -> None:
    private, held_out, leaked = subjects(digits)
    found = leak_test(leaked[:15], private, held_out)
    assert (len(found.p), found.held_out) == (20, 100)
    assert found.listed[:15].all()
    assert int(found.found.sum()) == int(found.listed.sum()) <= 17
    assert found.of_records.shape == (60,)
    nothing = leak_test(noisy(held_out.x[:20], 0.3), private, held_out)
    assert not nothing.listed.any()
    with refused("conflict", "groups"):
        leak_test(leaked, private, replace(held_out, groups=held_out.groups - 1000))


def test_a_test_is_computed_again_from_its_arrays(parts) -> None:  # type: ignore[no-untyped-def]
    found = leak_test(noisy(parts.private.x, 0.3), parts.private, parts.test, seed=3)
    again = retest(found.arrays(), seed=3)
    assert torch.equal(again.records, found.p)
    assert again.together == found.together
    assert torch.equal(discoveries(again.records, found.fdr), found.listed)


def test_candidates_that_are_not_finite_and_no_candidates_find_nothing(parts) -> None:  # type: ignore[no-untyped-def]
    broken = parts.private.x.clone()
    broken[::2] = torch.nan
    found = leak_test(broken, parts.private, parts.test)
    assert found.found[1::2].all()
    assert int(found.found[::2].sum()) <= 2  # a list has one in twenty by chance
    assert found.candidate[1].item() == 1
    nothing = leak_test(broken[:0], parts.private, parts.test)
    assert (nothing.together, int(nothing.found.sum())) == (1.0, 0)


def _data(x: Tensor) -> Data:
    return Data(x=x, y=torch.zeros(len(x), dtype=torch.long), num_classes=1)


def test_no_copy_is_made_of_a_record_that_was_held_out_too_nor_by_one_value_throughout() -> None:
    x = torch.rand(20, 8, generator=torch.Generator().manual_seed(0))
    x[0] = 0.0
    private = _data(x[:5])
    assert exact_copies(x[1:5], private, _data(x[5:])).tolist() == [False, True, True, True, True]
    assert not exact_copies(x[:1], private, _data(x[5:])).any()  # blank
    assert not exact_copies(x[1:2], private, _data(x[1:])).any()
    assert not exact_copies(x[5:10], private, _data(x[10:])).any()
