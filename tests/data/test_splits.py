"""The parts share no record, nothing is invented, and the global generator stays where it was."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from refusals import refused

from remanence.data.splits import Split, distinct, split
from remanence.types import Data

PARTS = ("private", "fixed", "public", "test")


def numbered(n: int, *, features: int = 3, copies: int = 0) -> Data:
    """`n` different records whose label says which one it is, the first `copies` of them once more at the end."""
    x = torch.arange(n, dtype=torch.float32).div(n).repeat(features, 1).T.contiguous()
    y = torch.arange(n)
    return Data(x=torch.cat([x, x[:copies]]), y=torch.cat([y, y[:copies]]), num_classes=n, name="numbers")


def test_sizes_and_disjointness() -> None:
    cut = split(numbered(100, copies=30), private=10, fixed=20, public=30, test=40, seed=0)
    assert [len(getattr(cut, part)) for part in PARTS] == [10, 20, 30, 40]
    seen = Counter(int(label) for part in PARTS for label in getattr(cut, part).y)
    assert seen == Counter(range(100))  # every record once, although thirty came twice


def test_records_keep_their_labels() -> None:
    data = numbered(50)
    cut = split(data, private=10, fixed=10, public=10, test=10, seed=3)
    for part in PARTS:
        piece = getattr(cut, part)
        assert torch.equal(piece.x, data.x[piece.y])


def test_the_seed_decides_and_the_global_generator_does_not() -> None:
    data = numbered(60)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = split(data, private=5, fixed=5, public=5, test=5, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = split(data, private=5, fixed=5, public=5, test=5, seed=0)
    other = split(data, private=5, fixed=5, public=5, test=5, seed=1)
    assert all(torch.equal(getattr(first, part).y, getattr(again, part).y) for part in PARTS)
    assert not torch.equal(first.private.y, other.private.y)
    assert first.private.y.tolist() != sorted(first.private.y.tolist())


def test_a_larger_public_set_leaves_the_other_parts_alone() -> None:
    small, large = (split(numbered(60), private=5, fixed=5, public=n, test=5, seed=0) for n in (0, 40))
    assert all(torch.equal(getattr(small, p).y, getattr(large, p).y) for p in ("private", "fixed", "test"))


def test_too_few_records() -> None:
    with refused("out-of-range", "data"):
        split(numbered(12, copies=4), private=10, fixed=1, public=1, test=1, seed=0)
    with refused("out-of-range", "fixed"):
        split(numbered(12), private=1, fixed=-1, public=1, test=1, seed=0)


@pytest.mark.parametrize("empty", PARTS)
def test_only_fixed_and_public_may_be_empty(empty: str) -> None:
    counts = dict.fromkeys(PARTS, 2) | {empty: 0}
    if empty in ("fixed", "public"):
        assert len(getattr(split(numbered(9), **counts, seed=0), empty)) == 0
        return
    with refused("empty"):
        split(numbered(9), **counts, seed=0)


def test_a_shared_record_is_refused_and_named() -> None:
    data = numbered(10)
    with refused("conflict", "private"):
        Split(private=data.take([0, 1, 2]), fixed=data.take([3]), public=data.take([5, 1, 0]), test=data.take([8]))
    with refused("conflict", "fixed"):
        Split(private=data.take([0]), fixed=data.take([3]), public=data.take([]), test=data.take([8, 3]))


def test_a_copy_hides_neither_behind_a_label_nor_a_sign_nor_a_dtype() -> None:
    def one(value: float, label: int, dtype: torch.dtype = torch.float32) -> Data:
        return Data(x=torch.tensor([[value, 0.5]], dtype=dtype), y=torch.tensor([label]), num_classes=2)

    fixed, test = one(0.25, 0), one(0.75, 0)
    for twin in (one(0.0, 1), one(-0.0, 0), one(0.0, 0, torch.float64)):
        with refused("conflict", "private"):
            Split(private=one(0.0, 0), fixed=fixed, public=twin, test=test)
    near = one(0.25 + 1e-12, 0, torch.float64)  # close to `fixed` is not equal to it
    assert Split(private=one(0.0, 0), fixed=fixed, public=near, test=test).public is near


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_records_of_zeros_and_ones_are_told_apart(dtype: torch.dtype) -> None:
    bits = torch.tensor(list(product((0.0, 1.0), repeat=13)), dtype=dtype)  # their words have few bits that differ
    x = torch.cat([bits, bits[::2]])
    found = distinct(Data(x=x, y=torch.arange(len(x)), num_classes=len(x)))
    assert torch.equal(found.y, torch.arange(len(bits)))


def test_parts_of_another_kind_are_refused() -> None:
    data, wide = numbered(10), numbered(10, features=4)
    with refused("shape-mismatch", "public"):
        Split(private=data.take([0]), fixed=data.take([1]), public=wide.take([2]), test=data.take([3]))


def test_duplicates_agree_with_a_set_of_bytes() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8_000, 784), np.uint8)
    pixels[2_000:4_000] = pixels[:2_000]
    pixels[5_001, 1:] = pixels[5_000, 1:]  # all but one pixel the same: not a copy
    x = torch.from_numpy(pixels).float().div(255)
    count = len({row.tobytes() for row in pixels})
    data = Data(x=x, y=torch.zeros(len(x), dtype=torch.int64), num_classes=1)
    cut = split(data, private=count - 1, fixed=0, public=0, test=1, seed=0)
    assert len({row.tobytes() for part in (cut.private, cut.test) for row in part.x.numpy()}) == count
    with refused("out-of-range", "data"):
        split(data, private=count, fixed=0, public=0, test=1, seed=0)
