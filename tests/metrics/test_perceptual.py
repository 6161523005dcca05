"""LPIPS against its definition written out with plain calls, on random weights and, where they are, the published."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from refusals import refused
from safetensors.torch import load_file, save_file
from torch import Tensor

from remanence.data import data_folders
from remanence.metrics.lpips import LPIPS
from remanence.models.lpips import FILE, SHAPES, Lpips, load_lpips

PUBLISHED = next((folder / FILE for folder in data_folders() if (folder / FILE).is_file()), None)


def random_weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    heads = {name: p.abs() for name, p in drawn.items() if name.startswith("head")}
    return {name: p / p[0].numel() ** 0.5 for name, p in drawn.items()} | heads


@pytest.fixture(params=["random", "published"])
def weights(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The tensors of the file that LPIPS now finds."""
    if request.param == "published":
        if PUBLISHED is None:
            pytest.skip(f"{FILE} is in no data folder")
        return load_file(PUBLISHED)
    made = random_weights()
    save_file(made, tmp_path / FILE)
    monkeypatch.setenv("REMANENCE_DATA", str(tmp_path))
    return made


def images(n: int, *shape: int, seed: int = 0) -> Tensor:
    """Smooth random images: photographs have no white noise."""
    coarse = torch.rand(n, shape[0], 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.interpolate(coarse, size=shape[1:], mode="bilinear")


def reference(weights: dict[str, Tensor], a: Tensor, b: Tensor) -> float:
    """The distance of two single images (channels, height, width), layer by layer as the paper has it."""
    w = {name: p.double() for name, p in weights.items()}
    shift = torch.tensor([-0.030, -0.088, -0.188], dtype=torch.float64).view(3, 1, 1)
    scale = torch.tensor([0.458, 0.448, 0.450], dtype=torch.float64).view(3, 1, 1)
    layers = []
    for image in (a, b):
        x = image[None] if len(image) == 3 else torch.cat([image] * 3)[None]
        if min(x.shape[2:]) < 64:
            x = F.interpolate(x, scale_factor=64 / min(x.shape[2:]), mode="bilinear")
        x = ((x * 2 - 1) - shift) / scale
        one = F.relu(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], stride=4, padding=2))
        two = F.relu(F.conv2d(F.max_pool2d(one, 3, 2), w["conv2.weight"], w["conv2.bias"], padding=2))
        three = F.relu(F.conv2d(F.max_pool2d(two, 3, 2), w["conv3.weight"], w["conv3.bias"], padding=1))
        four = F.relu(F.conv2d(three, w["conv4.weight"], w["conv4.bias"], padding=1))
        five = F.relu(F.conv2d(four, w["conv5.weight"], w["conv5.bias"], padding=1))
        layers.append([F.normalize(f, dim=1) for f in (one, two, three, four, five)])
    heads = [w[f"head{i}.weight"] for i in range(1, 6)]
    return sum(float(F.conv2d((p - q) ** 2, h).mean()) for p, q, h in zip(*layers, heads, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 72, 80), (1, 16, 32)], ids=str)
def test_is_the_definition_on_every_pair(weights: dict[str, Tensor], shape: tuple[int, ...]) -> None:
    a, b = images(2, *shape), images(3, *shape, seed=1)
    expected = torch.tensor([[reference(weights, x, y) for y in b] for x in a], dtype=torch.float64)
    assert expected.min() > 1e-3
    torch.testing.assert_close(LPIPS.pairwise(a, b), expected, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(LPIPS.paired(a, b[:2]), expected.diagonal(), rtol=1e-4, atol=1e-7)


def test_is_a_symmetric_distance_that_grows_with_distortion(weights: dict[str, Tensor]) -> None:
    x = images(4, 3, 32, 32)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    worse = [LPIPS.paired((x + level * noise).clamp(0, 1), x).mean() for level in (0.0, 0.02, 0.1, 0.3)]
    assert worse[0] == 0.0
    assert worse == sorted(worse)
    assert worse[3] > 2 * worse[1]
    other = images(4, 3, 32, 32, seed=1)
    torch.testing.assert_close(LPIPS.pairwise(x, other), LPIPS.pairwise(other, x).T)


def test_blocks_do_not_matter_and_the_dtype_stays(weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = images(5, 1, 8, 8).float(), images(5, 1, 8, 8, seed=1).float()
    whole = LPIPS.pairwise(a, b)
    monkeypatch.setattr("remanence.metrics.lpips._BLOCK", 2)
    torch.testing.assert_close(LPIPS.pairwise(a, b), whole)
    torch.testing.assert_close(LPIPS.paired(a, b), whole.diagonal())
    assert whole.dtype == torch.float32


def test_the_slope_is_finite_also_on_black(weights: dict[str, Tensor]) -> None:
    x = images(2, 3, 32, 32)
    x[0] = 0.0
    found = x.clone().requires_grad_()
    load_lpips(x)(found, x.flip(0)).sum().backward()
    assert found.grad.isfinite().all()
    assert found.grad.any()


def test_no_feature_at_all_is_no_nan() -> None:
    """Where every feature is zero there is no direction to compare, and the root has no slope."""
    silent = Lpips(weights={name: torch.zeros(shape) for name, shape in SHAPES.items()})
    found = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    distance = silent(found, torch.zeros(1, 3, 32, 32))
    distance.sum().backward()
    assert not distance.any()
    assert not found.grad.any()


def test_a_missing_or_wrong_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMANENCE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x = images(1, 3, 32, 32)
    with refused("missing-file"):
        LPIPS.paired(x, x)
    save_file({name: p for name, p in random_weights().items() if name != "conv3.bias"}, tmp_path / FILE)
    with refused("damaged-file"):
        LPIPS.paired(x, x)
    (tmp_path / FILE).write_bytes(b"no weights")
    with refused("damaged-file"):
        LPIPS.paired(x, x)


@pytest.mark.parametrize("shape", [(20,), (2, 32, 32)], ids=str)
def test_what_is_no_picture_is_refused(shape: tuple[int, ...], weights: dict[str, Tensor]) -> None:
    x = torch.zeros(2, *shape)
    with refused("shape-mismatch"):
        LPIPS.paired(x, x)
