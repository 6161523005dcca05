"""A checkpoint that is damaged, however that is, is noticed and made again, with one line: the result is the same."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from simulating import EASY, NETS, some, victim

from remanence import Adam, Reconstruction
from remanence.attacks import Search, SimuDy, with_search
from remanence.caching import write_tensors
from remanence.releases import fine_tuned
from remanence.types import Params

RELEASE = fine_tuned(victim(NETS["mlp with elu"], some(4), EASY)).release
ATTACK = SimuDy(candidates=4, search=Search(optimizer=Adam(lr=0.03), steps=4), whitening=None, surrogate=None)


def flipped(at: Callable[[bytes], int]) -> Callable[[Path], object]:
    """One bit of the byte that `at` chooses."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at(bytes(content))] ^= 1
        path.write_bytes(content)

    return damage


def rewritten(change: Callable[[Params], object]) -> Callable[[Path], object]:
    """The tensors changed, under the digest that was there."""

    def damage(path: Path) -> None:
        content = path.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        state = load(content)
        change(state)
        path.write_bytes(save(state, header["__metadata__"]))

    return damage


def signed(change: Callable[[Params], object]) -> Callable[[Path], object]:
    """The tensors changed, under a digest that is right: a state that does not belong to this search."""

    def damage(path: Path) -> None:
        state = load(path.read_bytes())
        change(state)
        write_tensors(path, state, belongs_to=path.name)

    return damage


def into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


def planted_nan(state: Params) -> None:
    state["0.value"].view(-1)[0] = torch.nan


def without_digest(path: Path) -> None:
    """As an earlier version wrote it."""
    path.write_bytes(save(load(path.read_bytes())))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit of the values": flipped(lambda content: len(content) - 1),
    "a bit of the header": flipped(lambda content: content.index(b"done")),
    "a bit of the digest": flipped(lambda content: content.index(b'"digest":"') + 12),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(9)),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(len(path.read_bytes()))),
    "another file": lambda path: write_tensors(path, load(path.read_bytes()), belongs_to="search-of-another"),
    "far along": rewritten(lambda state: state.update(done=torch.tensor(10**9))),
    "before the start": rewritten(lambda state: state.update(done=torch.tensor(-1))),
    "a tensor missing": rewritten(lambda state: state.pop("0.value")),
    "a tensor more": rewritten(lambda state: state.update(more=torch.zeros(2))),
    "another dtype": rewritten(lambda state: state.update({"0.value": state["0.value"].half()})),
    "another shape": rewritten(lambda state: state.update({"0.value": state["0.value"][..., :1].contiguous()})),
    "a NaN": rewritten(planted_nan),
    "an earlier version": without_digest,
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"done": 3})),
    "a folder": into_folder,
    "far along, signed": signed(lambda state: state.update(done=torch.tensor(10**9))),
    "no step, signed": signed(lambda state: state.update(done=torch.tensor(-1))),
    "no restart, signed": signed(lambda state: state.update(restarts=torch.tensor([], dtype=torch.long))),
    "a restart that is not there, signed": signed(lambda state: state.update(restarts=torch.tensor([7]))),
    "a tensor missing, signed": signed(lambda state: state.pop("0.value")),
    "another dtype, signed": signed(lambda state: state.update({"0.value": state["0.value"].half()})),
    "another shape, signed": signed(lambda state: state.update({"0.exp_avg": torch.zeros(3)})),
}


def result(folder: Path) -> Reconstruction:
    return with_search(ATTACK, checkpoints=folder).run(RELEASE, seed=0)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_said_and_made_again(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = result(tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    assert capsys.readouterr().err == ""
    DAMAGES[damage](path)
    found = result(tmp_path)
    assert torch.equal(found.x, expected.x)
    assert found.objective == expected.objective
    assert path.read_bytes() == whole
    assert capsys.readouterr().err == f"note: `{path}` is damaged, so what it held is made again from the start\n"
