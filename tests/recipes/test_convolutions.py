"""Convolutional nets at smoke scale: what must show even there, and the parts that the recipe is made of."""

import numpy as np
import pytest
import torch
from smoke import measures, results

from remanence.models import apply, torch_params
from remanence.releases import WeightsOnly
from remanence.training import CrossEntropy
from remanence_recipes import RECIPES
from remanence_recipes.ablations.convolutions import build, settings
from remanence_recipes.weights_alone.kernels import ExplainedKernels, layer_names, outside_span, unexplained_by_layer

NAME = "ablations.convolutions"


@pytest.mark.slow
def test_the_recipe_runs_from_its_experiments_to_the_page() -> None:
    assert list(results(NAME)) == [experiment.label for experiment in RECIPES[NAME]("smoke")]


@pytest.mark.slow
@pytest.mark.parametrize("label", ["10 images", "10 images, mini-batches"])
def test_images_are_found_in_the_weights_of_a_cnn(label: str) -> None:
    found = {measure.name: measure for measure in results(NAME)[label].measures}
    assert found["share of images found"].low > found["share of images found"].chance
    assert found["mean SSIM"].low > found["mean SSIM"].chance


@pytest.mark.slow
def test_records_explain_kernels_and_other_images_do_as_well() -> None:
    found = {measure.name: measure for measure in results(NAME)["10 images"].measures}
    for position in (1, 2):
        layer = found[f"unexplained of layer {position}, convolution, at the truth"]
        assert layer.value < 0.02 < 0.5 < layer.chance
    searched = found["unexplained of the convolutions, by a search over images"].value
    assert searched < found["unexplained of layer 2, convolution, at the truth"].value
    assert found["share of images found, from the convolutions alone"].value == 0
    alike = found["mean SSIM, from the convolutions alone"]
    assert alike.high < alike.chance


@pytest.mark.slow
def test_one_linear_layer_has_no_more_combinations_than_classes() -> None:
    pooled = results(NAME)["20 images, global average pooling"]
    assert measures(pooled)["rank of the linear layer"] <= 10
    assert "fewer-weights-than-values" in {caveat.code for caveat in pooled.caveats}


@pytest.mark.parametrize("scale", ["smoke", "small", "full"])
def test_the_networks_take_images_of_their_scale(scale: str) -> None:
    for setting in settings(scale).values():  # type: ignore[arg-type]
        side = setting.side or (8 if scale == "smoke" else 32)
        shape = (1 if scale == "smoke" else 3, side, side)
        model = build(shape, 10, setting.channels, setting.stride, setting.hidden)
        x = torch.zeros(2, *shape)
        assert apply(model, torch_params(model, seed=0), x).shape == (2, 10)
        assert len(layer_names(model, shape)) == 3 + len(setting.hidden)


def test_what_is_unexplained_is_that_of_numpy() -> None:
    model = build((1, 8, 8), 3, (2, 3), 2, (5,))
    final = {name: p.double() for name, p in torch_params(model, seed=0).items()}
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, layers = torch.tensor([0, 1, 2, 0]), layer_names(model, (1, 8, 8))
    found = {path: p.item() for path, p in unexplained_by_layer(model, final, layers, CrossEntropy(), x, y).items()}
    leaves = {name: p.clone().requires_grad_() for name, p in final.items()}
    torch.nn.functional.cross_entropy(apply(model, leaves, x), y).backward()
    for path, names in layers.items():
        assert names == [f"{path}.weight", f"{path}.bias"]
        w = np.concatenate([final[name].numpy().ravel() for name in names])
        g = np.concatenate([-leaves[name].grad.numpy().ravel() for name in names])  # type: ignore[union-attr]
        factor = (w @ g) / (g @ g)
        left = ((w - factor * g) ** 2).sum() / (w @ w)  # by the best factor, of any sign
        np.testing.assert_allclose(found[path], left if factor > 0 else 2 - left)
    release = WeightsOnly(model=model, final=final, shape=(1, 8, 8), num_classes=3)
    some = {path: layers[path] for path in list(layers)[:2]}
    problem = ExplainedKernels(release=release, layers=some, loss=CrossEntropy(), labels=y, initial=x[None])
    value, grads = problem.value_and_grad({"x": x[None]})
    np.testing.assert_allclose(float(value), np.mean([found[path] for path in some]))
    step = 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    difference = (problem.value(x + step) - problem.value(x - step)).item() / 2
    np.testing.assert_allclose((grads["x"][0] * step).sum().item(), difference, rtol=1e-4)


def test_weights_are_inside_the_span_of_the_features_they_are_made_of() -> None:
    generator = torch.Generator().manual_seed(0)
    features, factors = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((4, 20), (6, 4)))
    weight = factors @ features
    assert outside_span(weight, features) == pytest.approx(0, abs=1e-12)
    orthogonal = torch.linalg.qr(features.T, mode="complete")[0][:, 4]  # to all features
    outer = torch.outer(torch.ones(6, dtype=torch.float64), orthogonal)
    expected = 6 / (float(weight.square().sum()) + 6)
    assert outside_span(weight + outer, features) == pytest.approx(expected)
