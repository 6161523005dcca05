"""A bank on disk: killed and gone on with, damaged and mended, and never mistaken for another one."""

import errno
import inspect
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from banks import CHUNKS, build, public, records, small_release
from files import contents
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import remanence.caching
import remanence.engine.ensembles.chunked
from remanence import Data, Training
from remanence.engine.ensembles.chunked import train_chunk
from remanence.models import initial_params, mlp
from remanence.releases import AllButOne
from remanence.shadow import build_bank

SHARDS = [f"shadows-{8 * i:08}.safetensors" for i in range(CHUNKS)]


@dataclass
class Noting:
    """The local backend, which notes what it was asked for."""

    asked: list[int] = field(default_factory=list)

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.asked.append(item[0])
            yield fn(item)


def test_what_was_stored_is_the_bank_and_is_not_made_again(small: AllButOne, tmp_path: Path) -> None:
    plain = build_bank(small, public(), seed=7)
    first, again = Noting(), Noting()
    stored = build(tmp_path / "deep" / "bank", small, backend=first)
    assert first.asked == [8 * i for i in range(CHUNKS)]
    assert sorted(contents(tmp_path / "deep" / "bank")) == ["bank.json", *SHARDS]
    read = build(tmp_path / "deep" / "bank", small, backend=again)
    assert again.asked == []
    for bank in (stored, read):
        assert torch.equal(bank.weights, plain.weights)
        assert torch.equal(bank.targets.x, plain.targets.x)


def started(folder: Path, *, last: int) -> "subprocess.Popen[bytes]":
    arguments = [sys.executable, str(Path(__file__).with_name("banks.py")), str(folder), str(last)]
    return subprocess.Popen(arguments, env=os.environ | {"OMP_NUM_THREADS": "1"})


def killed_after_the_first_shard(folder: Path) -> None:
    running = started(folder, last=99)
    while not (folder / SHARDS[0]).exists():
        assert running.poll() is None
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.1))  # any moment will do
    running.kill()
    running.wait(60)


def killed_in_its_tenth_write(folder: Path) -> None:
    started(folder, last=10).wait(60)
    assert len(list(folder.glob(".*.tmp"))) == 1  # the file that had no name yet


@pytest.mark.slow
@pytest.mark.parametrize("kill", [killed_after_the_first_shard, killed_in_its_tenth_write])
def test_a_killed_build_goes_on_to_the_same_bytes(
    small: AllButOne, tmp_path: Path, kill: Callable[[Path], None]
) -> None:
    undisturbed = build(tmp_path / "whole", small)
    kill(tmp_path / "killed")
    left = {name for name in contents(tmp_path / "killed") if not name.startswith(".")}
    assert {"bank.json", SHARDS[0]} <= left < {"bank.json", *SHARDS}
    remaining = Noting()
    resumed = build(tmp_path / "killed", small, backend=remaining)
    assert len(remaining.asked) == CHUNKS + 1 - len(left)
    assert torch.equal(resumed.weights, undisturbed.weights)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "lost": lambda path, other: path.unlink(),
    "cut short": lambda path, other: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path, other: path.write_bytes(b""),
    "no shard": lambda path, other: path.write_bytes(b"\x80\x04N." * 50),
    "a bit": lambda path, other: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "another": lambda path, other: path.write_bytes(other.read_bytes()),
    "foreign": lambda path, other: path.write_bytes(remanence_free_file()),
    "zeros": lambda path, other: path.write_bytes(bytes(len(path.read_bytes()))),
    "longer": lambda path, other: path.write_bytes(path.read_bytes() + b"x"),
    "a tensor more": lambda path, other: with_another_tensor(path),
    "a folder": lambda path, other: (path.unlink(), path.mkdir()),
}


def remanence_free_file() -> bytes:
    from safetensors.torch import save

    return save({"mine": torch.zeros(3)})


def with_another_tensor(path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(path) | {"more": torch.zeros(2)}, path, metadata)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_made_again(
    small: AllButOne, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = build(tmp_path, small)
    before = contents(tmp_path)
    DAMAGES[damage](tmp_path / SHARDS[2], tmp_path / SHARDS[3])
    mended = Noting()
    assert torch.equal(build(tmp_path, small, backend=mended).weights, whole.weights)
    assert mended.asked == [16]
    assert {name: content for name, content in contents(tmp_path).items() if "aside" not in name} == before
    assert ("is damaged" in capsys.readouterr().err) == (damage != "lost")


class WithVariance(nn.Module):
    """A loss without a `repr` of its own: Python shows its address."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels) + logits.var()


def wide() -> dict[str, Any]:
    model = mlp((1, 8, 8), 10, hidden=(6,))
    return {"model": model, "initial": initial_params(model, seed=0)}


def in_double() -> dict[str, Any]:
    release = small_release()
    return {
        "fixed": release.fixed.to("cpu", torch.float64),
        "initial": {name: p.double() for name, p in release.initial.items()},
    }


def relabelled() -> Data:
    fixed = records(0, 20)
    return replace(fixed, y=torch.cat([fixed.y[:3], (fixed.y[3:4] + 1) % 10, fixed.y[4:]]))


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # by what is named: of the release, of the call
    "fixed": ({"fixed": records(1, 20)}, {}),
    "labels": ({"fixed": relabelled()}, {}),
    "public": ({}, {"public": records(100, 99)}),
    "model": (wide(), {}),
    "initial": ({"initial": initial_params(small_release().model, seed=1)}, {}),
    "training": ({"training": Training(epochs=50)}, {}),
    "dtype": (in_double(), {}),
    "seed": ({}, {"seed": 8}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_recipe_is_refused_by_the_name_of_what_changed(small: AllButOne, tmp_path: Path, change: str) -> None:
    build(tmp_path, small)
    before = contents(tmp_path)
    release, call = CHANGES[change]
    with refused("conflict", "store") as error:
        build(tmp_path, replace(small, **release), backend=Noting(), **call)
    assert f"`{'fixed' if change == 'labels' else change}` changed: was " in str(error.value)
    assert str(error.value).count(" changed: ") == {"model": 2, "dtype": 4}.get(change, 1)
    assert contents(tmp_path) == before


def test_another_chunk_torch_or_device_is_another_bank(
    small: AllButOne, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, small)
    for owner, name, value in (
        (remanence.engine.ensembles.chunked, "CPU_CHUNK", 16),
        (torch, "__version__", "3.0.0"),
        (remanence.caching, "kind_of", lambda device: "NVIDIA H200"),
    ):
        with monkeypatch.context() as patch, refused("conflict", "store"):
            patch.setattr(owner, name, value)
            build(tmp_path, small)


@pytest.mark.parametrize("shards", [True, False])
def test_a_changed_digit_of_the_recipe_is_damage_and_no_other_recipe(
    small: AllButOne, tmp_path: Path, shards: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = build(tmp_path, small)
    before = contents(tmp_path)
    digits = json.loads((tmp_path / "bank.json").read_text())["seed"]["digest"]
    changed = before["bank.json"].replace(digits.encode(), digits[::-1].encode())
    (tmp_path / "bank.json").write_bytes(changed)
    for shard in () if shards else SHARDS:
        (tmp_path / shard).unlink()
    assert torch.equal(build(tmp_path, small).weights, whole.weights)
    assert contents(tmp_path) == before
    assert f"note: `{tmp_path / 'bank.json'}` is damaged" in capsys.readouterr().err


def test_a_recipe_of_an_earlier_version_is_known(small: AllButOne, tmp_path: Path) -> None:
    build(tmp_path, small)
    recipe = json.loads((tmp_path / "bank.json").read_text())
    del recipe["bank"]
    (tmp_path / "bank.json").write_text(json.dumps(recipe, indent=1) + "\n")
    nothing = Noting()
    build(tmp_path, small, backend=nothing)
    assert nothing.asked == []
    with refused("conflict", "store"):
        build(tmp_path, small, seed=8)


def test_code_of_the_user_is_known_by_its_source_not_its_address(
    small: AllButOne, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, replace(small, training=Training(epochs=1, loss=WithVariance())))
    again = replace(small, training=Training(epochs=1, loss=WithVariance()))
    nothing = Noting()
    build(tmp_path, again, backend=nothing)
    assert nothing.asked == []
    monkeypatch.setattr(remanence.caching.inspect, "getsource", lambda cls: f"class {cls.__name__}: new")
    with refused("conflict", "store"):
        build(tmp_path, again)


def test_our_code_is_known_by_its_source_too() -> None:
    code = remanence.caching.our_code("training", "engine")
    for part in (Training, mlp, initial_params, train_chunk):
        assert inspect.getsource(part) in code


@pytest.mark.parametrize("text", ["", "{", "[]", "{}{}", '{"seed": 7}', '{"seed": {"is": "7"}}', "\0" * 9])
def test_a_damaged_recipe_is_made_again_where_the_shadows_are_its_own(
    small: AllButOne, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = build(tmp_path, small)
    before = contents(tmp_path)
    (tmp_path / "bank.json").write_text(text)
    with refused("damaged-file", "store"):
        build(tmp_path, small, seed=8)
    nothing = Noting()
    assert torch.equal(build(tmp_path, small, backend=nothing).weights, whole.weights)
    assert nothing.asked == []
    assert contents(tmp_path) == before
    assert f"note: `{tmp_path / 'bank.json'}` is damaged" in capsys.readouterr().err


def test_two_processes_may_build_one_bank(small: AllButOne, tmp_path: Path) -> None:
    """The second opens the folder and takes over what is there while a file of the first has no name yet."""
    whole = build(tmp_path / "whole", small)
    real, nested = os.fsync, []

    def fsync(file: int) -> None:
        real(file)
        if not nested:
            nested.append(1)
            build(tmp_path / "both", small)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        both = build(tmp_path / "both", small)
    assert nested
    assert torch.equal(both.weights, whole.weights)
    assert contents(tmp_path / "both") == contents(tmp_path / "whole")


def test_a_full_disk_names_the_file_and_leaves_whole_ones(
    small: AllButOne, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build(tmp_path / "whole", small)
    calls = iter(range(100))

    def full(_: int) -> None:
        if next(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as error:
            build(tmp_path / "full", small)
    assert error.value.filename == str(tmp_path / "full" / SHARDS[3])
    assert sorted(contents(tmp_path / "full")) == ["bank.json", *SHARDS[:3]]
    assert torch.equal(build(tmp_path / "full", small).weights, whole.weights)


def test_the_recipe_can_be_read_by_people(small: AllButOne, tmp_path: Path) -> None:
    build(tmp_path, small)
    recipe = json.loads((tmp_path / "bank.json").read_text())
    assert list(recipe) == [
        *("fixed", "public", "model", "initial", "training", "code", "dtype", "device", "chunk", "seed", "bank")
    ]
    assert recipe["training"]["is"] == repr(small.training)
    assert recipe["model"]["is"].startswith("Sequential( (0): Flatten(start_dim=1, end_dim=-1) (1): Linear(")
    assert all(len(each["digest"]) == 32 for each in recipe.values())
