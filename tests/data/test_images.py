"""Folders of images, written by Pillow here and read back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused

from remanence.data import from_image_folder


def put(folder: Path, name: str, pixels: Any, mode: str | None = None) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    (image.convert(mode) if mode else image).save(path)
    return path


def test_image_folder_sorts_classes_and_keeps_grey(tmp_path: Path) -> None:
    put(tmp_path, "zebra/1.png", [[0, 51], [102, 255]])
    put(tmp_path, "ant/2.PNG", [[1, 1], [1, 1]])
    put(tmp_path, "ant/10.bmp", [[2, 2], [2, 2]])
    (tmp_path / "ant" / "Thumbs.db").write_bytes(b"junk")
    (tmp_path / ".hidden").mkdir()
    data = from_image_folder(tmp_path)
    assert data.x.shape == (3, 1, 2, 2)
    assert data.x.dtype == torch.float32
    assert (data.x[:, 0, 0, 0] * 255).round().tolist() == [2, 1, 0]  # ant/10, ant/2, zebra/1
    torch.testing.assert_close(data.x[2, 0], torch.tensor([[0.0, 0.2], [0.4, 1.0]]))
    assert data.y.tolist() == [0, 0, 1]
    assert (data.num_classes, data.name) == (2, tmp_path.name)


def test_one_colour_image_makes_all_colour(tmp_path: Path) -> None:
    put(tmp_path, "a/grey.png", [[51, 51]])
    put(tmp_path, "b/colour.png", [[[255, 0, 51], [0, 255, 0]]])
    x = from_image_folder(tmp_path).x
    assert x.shape == (2, 3, 1, 2)
    torch.testing.assert_close(x[0], torch.full((3, 1, 2), 0.2))
    torch.testing.assert_close(x[1, :, 0, 0], torch.tensor([1.0, 0.0, 0.2]))


def test_palette_alpha_jpeg_and_webp(tmp_path: Path) -> None:
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    (tmp_path / "a").mkdir()
    palette.save(tmp_path / "a" / "1.png", transparency=b"\x80\xff")
    put(tmp_path, "a/2.png", np.full((8, 8, 4), (255, 0, 0, 7)))
    put(tmp_path, "a/3.jpeg", np.full((8, 8, 3), (255, 0, 0)))
    put(tmp_path, "a/4.webp", np.full((8, 8, 3), (255, 0, 0)))
    grey = Image.new("L", (8, 8), 255)
    grey.save(tmp_path / "a" / "5.png", transparency=3)
    x = from_image_folder(tmp_path).x
    expected = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1).expand(4, 3, 8, 8)
    torch.testing.assert_close(x[:4], expected, atol=0.03, rtol=0)  # the lossy two are near, not equal
    assert x[4].min() == 1.0


def test_image_folder_refuses_two_sizes(tmp_path: Path) -> None:
    for name, shape in {"a/1.png": (2, 3), "a/2.png": (2, 3), "b/3.png": (4, 5), "b/4.png": (6, 7)}.items():
        put(tmp_path, name, np.zeros(shape))
    with refused("shape-mismatch"):
        from_image_folder(tmp_path)


def test_image_folder_refuses_emptiness(tmp_path: Path) -> None:
    with refused("empty", "path"):
        from_image_folder(tmp_path)
    put(tmp_path, "full/1.png", [[1]])
    (tmp_path / "hollow").mkdir()
    with refused("empty", "path"):
        from_image_folder(tmp_path)
    with refused("missing-file", "path"):
        from_image_folder(tmp_path / "nowhere")


def test_image_folder_names_unreadable_files(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3))
    path = put(tmp_path, "a/1.png", noise)
    whole = path.read_bytes()
    Image.new("L", (64, 64)).save(tmp_path / "disguised.gif")  # whole, but not of the formats that are allowed
    disguised = (tmp_path / "disguised.gif").read_bytes()
    for content in (b"", b"junk", whole[:40], whole[: len(whole) // 2], disguised):
        path.write_bytes(content)
        with refused("damaged-file", "path"):
            from_image_folder(tmp_path)


def test_image_folder_refuses_sixteen_bits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(tmp_path / "a" / "1.png")
    with refused("wrong-type", "path"):
        from_image_folder(tmp_path)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("factor", [0.6, 0.2])  # Pillow only warns up to twice its limit, then raises
def test_image_folder_refuses_decompression_bombs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    put(tmp_path, "a/1.png", np.zeros((10, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(100 * factor))
    with refused("too-large", "path"):
        from_image_folder(tmp_path)
