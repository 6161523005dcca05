"""What may take long says so on a terminal."""

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from gradients import planted, unit_vectors
from PIL import Image
from tiny_experiments import cut, made_data, tiny_victims
from torch import nn

import remanence.progress
from remanence import SGD, Reconstruction, Training, evaluate
from remanence.attacks import Stein
from remanence.data import from_image_folder
from remanence.diagnostics.linearity import gradient_linearity
from remanence.engine import train
from remanence.engine.driver import train_full_batch
from remanence.experiments import prepare
from remanence.models import initial_params, mlp
from remanence.progress import SOON, OutOfTime, heard_by, say, time_limit, track
from remanence.releases import train_victim
from remanence.training import UntilStationary
from remanence.types import Data


def score_images(_: Path) -> None:
    x = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    data = Data(x=x, y=torch.arange(60) % 2, num_classes=2)
    evaluate(Reconstruction(x=x[:4]), data.take(slice(0, 4)), unrelated=data.take(slice(4, 60)))


def search_a_batch(_: Path) -> None:
    assert len(Stein().run(planted(nn.Tanh), seed=0).x) == len(unit_vectors())


def train_victims(_: Path) -> None:
    assert not prepare(tiny_victims(per_victim=2)).caveats


def train_for_long(_: Path) -> None:
    train_full_batch(lambda params: params, {"w": torch.ones(1)}, SGD(lr=0.1), epochs=1001, schedule=())


def train_by_batches(_: Path) -> None:
    train(
        Training(epochs=2, batch_size=4),
        mlp((16,), 2),
        initial_params(mlp((16,), 2), seed=0),
        made_data(8, shape=(16,)),
    )


def ask_how_linear(_: Path) -> None:
    parts, model = cut(made_data, 0), mlp((1, 4, 4), 2)
    start = initial_params(model, seed=0)
    victim = train_victim(model, Training(epochs=2), start, parts.fixed, parts.private, seed=0)
    assert len(gradient_linearity(victim)) == len(parts.private)


def train_until_rest(_: Path) -> None:
    rule = UntilStationary(check_every=2)
    train_full_batch(lambda params: params, {"w": torch.ones(1)}, SGD(lr=0.1), epochs=20, schedule=rule)


def read_images(folder: Path) -> None:
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
        Image.new("L", (4, 4)).save(folder / name / "1.png")
    assert len(from_image_folder(folder)) == 2


LONG: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "scores": (score_images, ["levels of chance", "ssim of all pairs"]),
    "Stein": (search_a_batch, ["restarts", "refinements"]),
    "victims": (train_victims, ["victims", "do the victims fit?"]),
    "a training": (train_for_long, ["training"]),
    "a training by mini-batches": (train_by_batches, ["training"]),
    "linearity": (ask_how_linear, ["training", "how linear"]),
    "a training until rest": (train_until_rest, ["training"]),
    "images": (read_images, ["sizes of images", "images"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG)
def test_what_may_take_long_shows_how_far_it_is(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, labels = LONG[case]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ticks = count()
    monkeypatch.setattr(remanence.progress, "monotonic", lambda: next(ticks) * SOON)  # every step takes as long
    work(tmp_path)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [label for label in labels if label not in shown.err] == []


def test_many_short_steps_show_nothing_until_they_take_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    seconds = iter([0.0, 0.5, 0.9, 1.1, 0.0, 0.5])
    monkeypatch.setattr(remanence.progress, "monotonic", lambda: next(seconds))
    seen = track(range(4), total=4, label="steps", after=1.0)
    assert [next(seen) for _ in range(3)] == [0, 1, 2]
    assert capsys.readouterr().err == ""
    assert list(seen) == [3]
    assert "steps" in capsys.readouterr().err
    assert list(track(range(1), total=1, label="one", after=1.0)) == [0]
    assert capsys.readouterr().err == ""


def test_a_limit_of_time_ends_loops_that_may_stop_and_interrupts_others() -> None:
    with time_limit(0.0) as limit:
        assert list(track(range(5), total=5, label="search", may_stop=True)) == [0]
        assert limit.reached
        with pytest.raises(OutOfTime):
            list(track(range(5), total=5, label="training"))
    with time_limit(60.0) as limit:
        assert list(track(range(5), total=5, label="search", may_stop=True)) == list(range(5))
    assert not limit.reached


def test_an_inner_limit_does_not_outlast_the_outer_one() -> None:
    with time_limit(0.0) as outer, time_limit(60.0):
        assert len(list(track(range(5), total=5, label="search", may_stop=True))) == 1
    assert outer.reached


def test_lines_can_be_heard_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    with heard_by(heard.append):
        say("to \x1b another process")
    say("to stderr")
    assert heard == ["to \\x1b another process"]
    assert capsys.readouterr().err == "to stderr\n"
