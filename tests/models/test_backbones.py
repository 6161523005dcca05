"""Backbones against their definition written out with plain calls, and against the networks they are part of."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from refusals import refused
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from remanence.data import data_folders, load
from remanence.models import Backbone, alexnet, apply, embedded, initial_params, resnet, transposed_cnn, without_head
from remanence.models.lpips import FILE, SHAPES

PUBLISHED = next((folder / FILE for folder in data_folders() if (folder / FILE).is_file()), None)


@pytest.fixture(params=["random", "published"])
def weights(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The tensors of the file that holds AlexNet."""
    if request.param == "published":
        if PUBLISHED is None:
            pytest.skip(f"{FILE} is in no data folder")
        return load_file(PUBLISHED)
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(shape, generator=generator) / shape[-1] ** 2 for name, shape in SHAPES.items()}
    save_file(made, tmp_path / FILE)
    monkeypatch.setenv("REMANENCE_DATA", str(tmp_path))
    return made


def reference(weights: dict[str, Tensor], image: Tensor) -> Tensor:
    """The features of one image (3, 32, 32): every convolution as a product of patches and filters."""
    w = {name: p.double() for name, p in weights.items()}
    x = F.interpolate(image[None], size=(64, 64), mode="bilinear")[0]
    # ImageNet's means and standard deviations after [-1, 1], as LPIPS 0.1 rounds them
    shift, scale = (
        torch.tensor([[[a]], [[b]], [[c]]], dtype=torch.float64)
        for a, b, c in ((-0.030, -0.088, -0.188), (0.458, 0.448, 0.450))
    )
    x = (2 * x - 1 - shift) / scale
    features = []
    for i, (stride, padding) in enumerate(((4, 2), (1, 2), (1, 1), (1, 1), (1, 1)), start=1):
        if i in (2, 3):
            last = x.shape[1] - 2
            x = torch.stack([x[:, a : a + last : 2, b : b + last : 2] for a in range(3) for b in range(3)]).amax(0)
        filters = w[f"conv{i}.weight"]
        patches = F.unfold(x[None], filters.shape[-1], padding=padding, stride=stride)[0]
        side = round(patches.shape[1] ** 0.5)
        x = (filters.flatten(1) @ patches + w[f"conv{i}.bias"][:, None]).clamp_min(0).unflatten(1, (side, side))
        if i < 5:
            features.append(x.sum((1, 2)) / side**2)
    assert side == 3
    quarters = [x[:, a : a + 2, b : b + 2].sum((1, 2)) / 4 for a in (0, 1) for b in (0, 1)]
    return torch.cat([*features, torch.stack(quarters, dim=1).flatten()])


def test_alexnet_gives_the_means_of_its_stages(weights: dict[str, Tensor]) -> None:
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    backbone = alexnet((3, 32, 32), like=x)
    found = backbone(x)
    assert found.shape == (3, 1920)
    assert backbone.width == 1920
    assert bool((found >= 0).all())
    expected = torch.stack([reference(weights, image) for image in x])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_network_is_its_backbone_and_its_last_layer() -> None:
    digits = load("digits").take(slice(0, 40))
    model = resnet(digits.shape, 10, blocks=(1, 1), width=8)
    params = initial_params(model, seed=0)
    backbone = without_head(model, params, digits.shape, name="ResNet")
    last = max(int(name.split(".")[0]) for name in params)
    logits = backbone(digits.x) @ params[f"{last}.weight"].T + params[f"{last}.bias"]
    torch.testing.assert_close(logits, apply(model, params, digits.x))
    assert not [name for name in backbone.params if name.startswith(f"{last}.")]


def small(*, scale: float = 1.0) -> Backbone:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return Backbone(name="small", model=model, params=initial_params(model, seed=3), shape=(1, 8, 8), scale=scale)


def test_embeddings_are_rows_with_the_labels_of_their_images() -> None:
    digits = load("digits").take(slice(0, 1100))  # more than are embedded at once
    rows = embedded(small(scale=2.0), digits)
    assert rows.x.shape == (1100, 24)
    assert torch.equal(rows.y, digits.y)
    assert not rows.x.requires_grad
    torch.testing.assert_close(2 * rows.x, small()(digits.x), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(embedded(small(scale=8.0), digits).x, rows.x / 4)


def test_images_are_embedded_where_the_weights_are_and_come_back_as_they_were() -> None:
    x = load("digits").x[:5].double()
    assert small().embed(x).dtype == torch.float64  # by float32 weights


def test_gradients_go_through_a_backbone() -> None:
    x = load("digits").x[:2].clone().requires_grad_()
    small()(x).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.any())


def test_what_is_no_backbone_is_refused() -> None:
    with refused("out-of-range", "scale"):
        small(scale=0.0)
    with refused("shape-mismatch", "x"):
        small()(torch.zeros(1, 1, 9, 9))
    with refused("shape-mismatch", "shape"):
        Backbone(name="rows", model=nn.Identity(), params={}, shape=(4,))
    with refused("unsupported-model", "model"):
        without_head(nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU()), {}, (1, 8, 8), name="ends with ReLU")
    with refused("unsupported-model", "model"):
        without_head(nn.Sequential(nn.Linear(64, 5)), {}, (1, 8, 8), name="nothing before")


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (2, 12, 20), (1, 5, 7)])
def test_a_transposed_cnn_makes_images_of_any_size(shape: tuple[int, ...]) -> None:
    net = transposed_cnn(10, shape, width=2)
    params = initial_params(net, seed=0)
    assert apply(net, params, torch.randn(4, 10)).shape == (4, *shape)


def test_a_transposed_cnn_refuses_rows_of_a_table() -> None:
    with refused("shape-mismatch", "shape"):
        transposed_cnn(10, (64,))
