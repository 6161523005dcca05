"""The similarities of the leak test against scikit-image's and numpy's, and what each of them sees."""

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio
from skimage.transform import rotate
from torch import Tensor

from remanence import Data
from remanence.metrics.similarity import ALIGNED, COLUMNS, HALVES, PIXELS, similarities, turned


@pytest.fixture
def images() -> Tensor:
    grid = torch.rand(12, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(grid, size=(20, 20), mode="bilinear")


def test_pixels_are_psnr(images: Tensor) -> None:
    noisy = (images + 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    found = PIXELS.pairwise(noisy, images)
    for i in range(0, 12, 5):
        for j in range(12):
            expected = peak_signal_noise_ratio(images[j].numpy(), noisy[i].numpy(), data_range=1)
            assert float(found[i, j]) == pytest.approx(expected, abs=1e-3)
    assert float(PIXELS.pairwise(images[:1], images[:1])) == pytest.approx(70, abs=0.1)  # the floor


def test_a_turned_image_is_that_of_scikit_image(images: Tensor) -> None:
    ours = turned(images, degrees=10)[:, 0, 4:-4, 4:-4].numpy()
    theirs = np.stack([rotate(x[0].numpy(), 10, mode="edge")[4:-4, 4:-4] for x in images])
    other = np.stack([rotate(x[0].numpy(), -10, mode="edge")[4:-4, 4:-4] for x in images])
    assert min(np.abs(ours - theirs).max(), np.abs(ours - other).max()) < 0.02
    assert torch.equal(turned(images, mirrored=True), images.flip(3))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.roll((2, -1), (2, 3)),
        lambda x: x.flip(3),
        lambda x: turned(x, degrees=-10),
        lambda x: 0.3 * x + 0.5,
    ],
    ids=["shift", "mirror", "rotation", "contrast"],
)
def test_an_aligned_image_is_recognised(images: Tensor, change) -> None:
    found = ALIGNED.pairwise(change(images), images)
    assert torch.equal(found.argmax(1), torch.arange(12))
    others = found[~torch.eye(12, dtype=torch.bool)]
    assert float(found.diagonal().min()) > float(others.quantile(0.99))


def test_the_correlation_of_an_image_with_itself_is_the_largest_and_of_a_blank_one_none(images: Tensor) -> None:
    correlation = ALIGNED.pairwise(images[:3], images).tanh()
    plain = np.corrcoef(images.flatten(1).numpy())[:3]
    assert (correlation.numpy() >= plain - 1e-5).all()  # the identity is one of the transformations
    assert (ALIGNED.pairwise(torch.full_like(images[:1], 0.5), images) == 0).all()


def test_half_an_image_is_recognised(images: Tensor) -> None:
    half = images.clone()
    half[:, :, :, 10:] = 0.0
    found = HALVES.pairwise(half, images)
    assert torch.equal(found.argmax(1), torch.arange(12))
    right = np.corrcoef(images[0, 0, :, 10:].flatten().numpy(), images[3, 0, :, 10:].flatten().numpy())[0, 1]
    assert float(HALVES.pairwise(images[:1], images)[0, 3].tanh()) >= right - 1e-5


def test_equal_columns_are_counted() -> None:
    rows = torch.rand(6, 13, generator=torch.Generator().manual_seed(0))
    guess = rows.clone()
    guess[:, :2] = 1.0
    found = COLUMNS.pairwise(guess, rows)
    assert found.diagonal().tolist() == pytest.approx([11 / 13] * 6)
    assert COLUMNS.pairwise(guess[:0], rows).shape == (0, 6)


def test_which_similarities_serve_which_records(images: Tensor) -> None:
    def names(x: Tensor) -> list[str]:
        data = Data(x=x, y=torch.zeros(len(x), dtype=torch.long), num_classes=1)
        return [each.name for each in similarities(data)]

    assert names(images) == ["pixels", "ssim", "aligned", "halves"]
    assert names(images[:, :, :4, :4]) == ["pixels", "aligned", "halves"]
    assert names(images.flatten(1)) == ["pixels", "columns"]
