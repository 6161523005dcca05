"""The box of records in a .npz file, and audits' sources of which some have one."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch.utils.data import TensorDataset

from remanence.auditing.inputs.sources import load_records, raw_units
from remanence.data import from_dataset, from_npz, split

ROWS = np.random.default_rng(0).normal(size=(40, 3))
LABELS = np.arange(40) % 2


def save(path: Path, x: Any = ROWS, **arrays: Any) -> str:
    np.savez(path, x=x, y=LABELS[: len(x)], **arrays)
    return str(path)


def test_values_outside_of_the_unit_box_need_bounds(tmp_path: Path) -> None:
    with refused("out-of-range", "x") as refusal:
        from_npz(save(tmp_path / "a.npz"))
    assert "`bounds`" in str(refusal.value)
    assert ".npz" in str(refusal.value)
    data = from_npz(save(tmp_path / "b.npz", bounds=[-inf, inf]))
    assert data.bounds == (-inf, inf)
    assert torch.equal(data.x, torch.from_numpy(ROWS).float())
    assert from_npz(save(tmp_path / "c.npz", np.abs(ROWS), bounds=np.array([0.0, inf]))).bounds == (0.0, inf)
    assert from_npz(save(tmp_path / "d.npz", ROWS.clip(0, 1))).bounds == (0.0, 1.0)
    parts = split(data, private=3, fixed=10, public=5, test=4, seed=0)
    assert {part.bounds for part in (parts.private, parts.fixed, parts.public, parts.test)} == {(-inf, inf)}


def test_whole_numbers_in_a_box_are_what_they_say(tmp_path: Path) -> None:
    counts = np.arange(120).reshape(40, 3)
    for dtype in (np.uint8, np.int64):
        data = from_npz(save(tmp_path / "a.npz", counts.astype(dtype), bounds=[0, 255]))
        assert torch.equal(data.x, torch.from_numpy(counts).float())
        assert data.bounds == (0.0, 255.0)


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        ([0.0], "shape-mismatch"),
        ([[0.0, 1.0]], "shape-mismatch"),
        (["0", "1"], "shape-mismatch"),
        ([1.0, 0.0], "out-of-range"),
        ([np.nan, 1.0], "out-of-range"),
        ([0.0, 1.0], "out-of-range"),
    ],
    ids=str,
)
def test_bounds_that_are_none_or_do_not_hold_are_refused(tmp_path: Path, bounds: Any, code: str) -> None:
    with refused(code):
        from_npz(save(tmp_path / "a.npz", bounds=bounds))


def test_a_dataset_of_embeddings() -> None:
    x, y = torch.from_numpy(ROWS).float(), torch.from_numpy(LABELS)
    pairs = [(row, int(label)) for row, label in TensorDataset(x, y)]
    data = from_dataset(pairs, bounds=(-inf, inf))  # type: ignore[arg-type]
    assert data.bounds == (-inf, inf)
    assert torch.equal(data.x, x)
    with refused("out-of-range", "x"):
        from_dataset(pairs)  # type: ignore[arg-type]


def test_the_box_of_one_source_is_that_of_all(tmp_path: Path) -> None:
    """Without one, a table is scaled to [0, 1] by its extremes; with one, no source is."""
    private, others = save(tmp_path / "a.npz", bounds=[-inf, inf]), save(tmp_path / "b.npz", ROWS + 1)
    small = save(tmp_path / "c.npz", ROWS.clip(0, 1))
    found = load_records([private, others, small], None)
    assert [each.bounds for each in found] == [(-inf, inf)] * 3
    assert torch.equal(found[0].x, torch.from_numpy(ROWS).float())
    assert torch.equal(found[1].x, torch.from_numpy(ROWS + 1).float())
    assert torch.equal(found[2].x, torch.from_numpy(ROWS.clip(0, 1)).float())
    assert raw_units(found[0]) is None
    scaled = load_records([others, small], None)
    assert all(each.is_unit for each in scaled)
    assert raw_units(scaled[0]) is not None
    with refused("out-of-range", "x"):
        load_records([save(tmp_path / "d.npz", np.abs(ROWS), bounds=[0.0, inf]), others], None)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_several_labels_of_a_record_are_said_not_to_be_supported(dtype: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "several.npz", x=np.zeros((4, 3), np.float32), y=np.eye(4, 5, dtype=dtype))
    with refused("shape-mismatch", "y") as refusal:
        from_npz(tmp_path / "several.npz")
    assert "several labels" in str(refusal.value)
