"""What may take long says so on a terminal."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gradients import planted, unit_vectors
from PIL import Image
from tiny_cells import tiny_cell
from torch import nn

from remanence import SGD, Reconstruction, Stein, UntilRest, evaluate
from remanence.data import from_image_folder
from remanence.experiment import prepare
from remanence.training.in_full import train_in_full
from remanence.types import Data


def score_images(_: Path) -> None:
    x = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    data = Data(x=x, y=torch.arange(60) % 2, num_classes=2)
    evaluate(Reconstruction(x=x[:4]), data.take(slice(0, 4)), unrelated=data.take(slice(4, 60)))


def search_a_batch(_: Path) -> None:
    assert len(Stein().run(planted(nn.Tanh), seed=0).x) == len(unit_vectors())


def train_victims(_: Path) -> None:
    prepare(tiny_cell("one", per_victim=2))


def train_for_long(_: Path) -> None:
    train_in_full(lambda params: params, {"w": torch.ones(1)}, SGD(lr=0.1), epochs=1001, stages=())


def train_until_rest(_: Path) -> None:
    rule = UntilRest(look=2)
    train_in_full(lambda params: params, {"w": torch.ones(1)}, SGD(lr=0.1), epochs=20, stages=rule)


def read_images(folder: Path) -> None:
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
        Image.new("L", (4, 4)).save(folder / name / "1.png")
    assert len(from_image_folder(folder)) == 2


LONG: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "scores": (score_images, ["levels of chance", "ssim of all pairs"]),
    "Stein": (search_a_batch, ["tries", "refinements"]),
    "victims": (train_victims, ["victims", "do the victims fit?"]),
    "a training": (train_for_long, ["training"]),
    "a training until rest": (train_until_rest, ["training"]),
    "images": (read_images, ["sizes of images", "images"]),
}


@pytest.mark.parametrize("case", LONG)
def test_what_may_take_long_shows_how_far_it_is(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, labels = LONG[case]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    work(tmp_path)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [label for label in labels if label not in shown.err] == []
