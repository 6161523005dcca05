"""What clients of Flower and NVFlare dump with numpy is read as the state dict that it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

from remanence.auditing.inputs.weights import ReleaseWeights, load_release_weights
from remanence.types import Params

with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    NET = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
STATE = NET.state_dict()
LIST = [value.numpy() for value in STATE.values()]
DICT = {name: value.numpy() for name, value in STATE.items()}


def read(folder: Path, *arrays: Any, before: Params | None = None, **named: Any) -> ReleaseWeights:
    np.savez(folder / "sent.npz", *arrays, **named)
    return load_release_weights(folder / "sent.npz", NET, before=before)


def assert_same(params: Params, wanted: Params = STATE) -> None:
    assert list(params) == list(wanted)
    assert all(torch.equal(params[name], wanted[name]) for name in wanted)


def test_a_list_in_the_order_of_the_state_dict(tmp_path: Path) -> None:
    found = read(tmp_path, *LIST)
    assert_same(found.params)
    assert any("order of the state dict" in note for note in found.notes)
    without_counter = [value for name, value in DICT.items() if not name.endswith("num_batches_tracked")]
    assert_same(read(tmp_path, *without_counter).params)


def test_a_dict_by_name_and_counters_that_became_arrays(tmp_path: Path) -> None:
    assert_same(read(tmp_path, **DICT).params)
    assert_same(read(tmp_path, data_kind="WEIGHTS", **DICT).params)
    assert_same(read(tmp_path, **{name: value.astype(">f4") for name, value in DICT.items() if value.ndim}).params)


def test_differences_are_added_to_the_weights_before(tmp_path: Path) -> None:
    difference = {name: np.ones_like(value) for name, value in DICT.items() if value.ndim}
    found = read(tmp_path, before=STATE, data_kind="WEIGHT_DIFF", **difference)
    wanted = {name: value + 1 if value.ndim else value for name, value in STATE.items()}
    assert_same(found.params, wanted)
    assert any("differences" in note for note in found.notes)
    with refused("conflict", "path"):
        read(tmp_path, data_kind="WEIGHT_DIFF", **difference)


@pytest.mark.parametrize("suffix", ["npz", "pt"])
def test_a_client_may_send_its_head_alone(suffix: str, tmp_path: Path) -> None:
    head, path = {"3.weight": torch.ones(2, 4), "3.bias": torch.zeros(2)}, tmp_path / f"head.{suffix}"
    if suffix == "npz":
        np.savez(path, **{name: value.numpy() for name, value in head.items()})
    else:
        torch.save(head, path)
    found = load_release_weights(path, NET, before=STATE)
    assert_same(found.params, STATE | head)
    assert any("lacks" in note and "0.weight" in note for note in found.notes)
    if suffix == "pt":
        torch.save({f"module.{name}": value for name, value in head.items()}, tmp_path / "wrapped.pt")
        assert_same(load_release_weights(tmp_path / "wrapped.pt", NET, before=STATE).params, STATE | head)
    with refused("shape-mismatch", "path"):  # these are no weights of a whole model
        load_release_weights(path, NET)
    other = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with refused("shape-mismatch", "path"):
        load_release_weights(path, other, before=other.state_dict())


def test_notes_on_a_gradient_say_what_was_not_sent(tmp_path: Path) -> None:
    torch.save({"3.weight": torch.ones(2, 4).half()}, tmp_path / "gradient.pt")
    zeros = {name: torch.zeros_like(p) for name, p in STATE.items()}
    notes = load_release_weights(tmp_path / "gradient.pt", NET, before=zeros, gradient=True).notes
    assert any("tensors, whose gradient was not sent" in note for note in notes)
    assert any("a gradient in float16" in note for note in notes)
    assert not any("weights" in note for note in notes)


def test_what_is_not_of_the_model_is_refused_by_name(tmp_path: Path) -> None:
    with refused("shape-mismatch", "path") as caught:
        read(tmp_path, *LIST[:-2])
    assert "`3.bias`" in str(caught.value)
    with refused("shape-mismatch", "path") as caught:
        read(tmp_path, LIST[0].T, *LIST[1:])
    assert "'0.weight'" in str(caught.value)
    with refused("shape-mismatch", "path") as caught:
        read(tmp_path, **{**DICT, "more": np.ones(2)})
    assert "'more'" in str(caught.value)
    with refused("unsupported-format", "path"):
        read(tmp_path, data_kind="METRICS", **DICT)
    with refused("not-finite", "path"):
        read(tmp_path, **{**DICT, "0.bias": np.full(4, np.nan, np.float32)})


@pytest.mark.parametrize("odd", [np.array(["text"] * 4), np.ones(4, np.complex64), np.ones(4, np.longdouble)])
def test_arrays_that_are_no_weights_are_refused(odd: Any, tmp_path: Path) -> None:
    with refused("wrong-type", "path"):
        read(tmp_path, **{**DICT, "0.bias": odd})


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "sent.npz", **{**DICT, "0.bias": np.array([{}] * 4, dtype=object)})
    with refused("damaged-file", "path"):
        load_release_weights(tmp_path / "sent.npz", NET)
