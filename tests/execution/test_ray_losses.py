"""A worker, the raylet or the head of a cluster is killed in the middle of a bank: the command says it in one sentence
or nothing at all, and ends, at once or when it is repeated, with the bytes of an undisturbed run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from secrets import token_hex

import pytest
from files import contents
from processes import below, find_below, kill_all

import remanence
from remanence.experiments.results import parse_results

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]

TESTS = Path(__file__).parents[1]
PROGRAM = """
from functools import partial
from tiny_experiments import cut, made_data, tiny_experiment
from remanence import SGD, Training
from remanence.attacks import Fitting, RecoNN
from remanence.cli import main
from remanence.releases import all_but_one
from remanence_recipes import RECIPES

bank = tiny_experiment(
    "bank",
    reveal=all_but_one,
    per_victim=1,
    split=partial(cut, partial(made_data, 1200), public=1100),
    attack=RecoNN(hidden=(8,), fitting=Fitting(epochs=1)),
    training=Training(optimizer=SGD(lr=0.1), epochs=EPOCHS),
)
RECIPES["bank"] = lambda scale: [bank]
main()
"""


def started(folder: Path, store: str, *options: str, epochs: int = 400) -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(Path(remanence.__file__).parents[1]), str(TESTS)])
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    own |= {"RAY_AUTH_TOKEN": token_hex(32), "RAY_worker_niceness": "0"}  # or a busy machine starts no worker
    command = ["run", "bank", "--json", "--store", store, "--out", f"{store}-out", *options]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("EPOCHS", str(epochs)), *command],
        cwd=folder,
        env=os.environ | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_shard(folder: Path) -> None:
    end = time.monotonic() + 90
    while not list(folder.rglob("shadows-*.safetensors")):
        assert time.monotonic() < end, "no shadow model was stored"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    out, err = (run := started(folder, "local")).communicate(timeout=120)
    assert (run.returncode, err) == (0, "")
    return parse_results(out, where="stdout")[0].attack.scores, contents(folder / "local")


@pytest.mark.parametrize("part", ["ray::_call", "raylet", "gcs_server"])
def test_a_bank_survives(part: str, tmp_path: Path, undisturbed: tuple[object, dict[str, bytes]]) -> None:
    scores, stored = undisturbed
    run = started(tmp_path, "ray", "--backend", "ray")
    wait_for_shard(tmp_path)
    others = list(below(run.pid))
    kill_all(find_below(run.pid, part)[:1])
    out, err = run.communicate(timeout=120)
    kill_all([each for each in others if Path(f"/proc/{each}").exists()])  # what a killed head leaves behind
    if run.returncode:
        assert (run.returncode, out) == (1, "")
        lost = "the Ray cluster was lost: repeat the command; with `--store` it goes on where it stopped"
        assert err == f"error: {lost}\n"
        again = started(tmp_path, "ray", "--backend", "ray")
        out, err = again.communicate(timeout=120)
        assert again.returncode == 0
    assert err == ""
    assert parse_results(out, where="stdout")[0].attack.scores == scores
    assert contents(tmp_path / "ray") == stored


def test_sigterm_ends_a_run_over_ray_with_its_code(tmp_path: Path) -> None:
    run = started(tmp_path, "ray", "--backend", "ray")
    wait_for_shard(tmp_path)
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out, err) == (143, "", "interrupted after 0 of 1 experiments\n")


def test_a_wrong_address_is_one_sentence_before_any_work(tmp_path: Path) -> None:
    start = time.monotonic()
    run = started(tmp_path, "ray", "--backend", "ray", "--ray-address", "127.0.0.1:1")
    out, err = run.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert (run.returncode, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("error: no Ray cluster answers at `127.0.0.1:1` (Connection refused)")
    assert contents(tmp_path) == {}
