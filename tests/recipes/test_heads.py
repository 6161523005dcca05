"""Heads on frozen backbones at smoke scale: what must show even there, and the parts the recipe is made of."""

import numpy as np
import pytest
import torch
from refusals import refused
from smoke import measures, results

from remanence.attacks import Stationarity
from remanence.data import load
from remanence.data.splits import check_disjoint
from remanence.experiments.checks import fewer_weights_than_values
from remanence.models import Standardise, apply, initial_params, mlp, resnet
from remanence.releases import WeightsOnly
from remanence_recipes import RECIPES
from remanence_recipes.weights_alone.backbones import PADDING, Images, augmented_images, pretrain, setting
from remanence_recipes.weights_alone.heads import COSINE
from remanence_recipes.weights_alone.linear_heads import class_candidates

NAME = "ablations.heads"
CPU = torch.device("cpu")


@pytest.mark.slow
def test_the_recipe_runs_from_its_experiments_to_the_page() -> None:
    assert list(results(NAME)) == [experiment.label for experiment in RECIPES[NAME]("smoke")]


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["random convolutions", "small ResNet"])
def test_a_linear_head_gives_its_one_unknown_record_and_otherwise_directions_of_classes(backbone: str) -> None:
    unknown = measures(results(NAME)[f"{backbone}, linear head, one unknown"])
    assert unknown["mean cosine of embeddings"] > 1 - 1e-6
    assert unknown["share of embeddings found"] == 1
    assert unknown["mean SSIM, from GLM"] == pytest.approx(unknown["mean SSIM, from the true embeddings"], abs=1e-3)
    alone = results(NAME)[f"{backbone}, linear head, weights alone"]
    assert measures(alone)["rank of the weights"] == 9  # ten classes, whose rows sum to zero
    assert measures(alone)["weights for each unknown value"] < 1
    assert "fewer-weights-than-values" in {caveat.code for caveat in alone.caveats}


def test_stationarity_refuses_a_linear_head() -> None:
    model = mlp((6,), 3, hidden=())
    release = WeightsOnly(model=model, final=initial_params(model, seed=0), shape=(6,), num_classes=3)
    with refused("unsupported-model", "release"):
        Stationarity(candidates=5).run(release, seed=0)


def test_fewer_combinations_than_records_are_a_caveat() -> None:
    found = fewer_weights_than_values(9, 200)
    assert found is not None
    assert found.code == "fewer-weights-than-values"
    assert "9 combinations of its 200 records" in found.text
    assert fewer_weights_than_values(9, 9) is None


@pytest.mark.slow
def test_embeddings_of_an_mlp_are_found_and_true_ones_give_images_closer_than_public_ones() -> None:
    found = {measure.name: measure for measure in results(NAME)["random convolutions, MLP, 20 images"].measures}
    embeddings = found["share of embeddings found"]
    assert embeddings.value >= 0.2
    assert embeddings.low > embeddings.chance
    for metric in ("SSIM", "embedding cosine"):
        ceiling = found[f"closer than the nearest public image by {metric}, from the true embeddings"]
        assert ceiling.low > 0.5 > ceiling.chance
    assert found["mean SSIM, from the head"].value > found["mean SSIM, from the head"].chance


def test_the_parts_of_the_images_are_disjoint_and_follow_the_seed() -> None:
    one, again, other = (Images.sample("smoke", seed) for seed in (0, 0, 1))
    parts = {"private": one.private, "held_out": one.held_out, "pretraining": one.pretraining, "public": one.public}
    check_disjoint(parts)
    assert [len(part) for part in parts.values()] == [20, 400, 500, len(one.public)]
    assert one.private.y.bincount().tolist() == [2] * 10
    assert torch.equal(one.public.x, again.public.x)
    assert not torch.equal(one.private.x, other.private.x)


def test_augmented_images_are_shifted_and_half_of_them_mirrored() -> None:
    x = torch.rand(200, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (PADDING,) * 2, (PADDING,) * 2), mode="reflect")
    mirrored = 0
    for image, found in zip(padded, augmented_images(x, torch.Generator().manual_seed(1)).numpy(), strict=True):
        windows = [image[:, a : a + 9, b : b + 9] for a in range(9) for b in range(9)]
        straight = any(np.array_equal(window, found) for window in windows)
        assert straight or any(np.array_equal(window[:, :, ::-1], found) for window in windows)
        mirrored += not straight
    assert 60 < mirrored < 140


@pytest.mark.slow
def test_pretraining_learns_digits_and_gathers_the_statistics_of_batch_norm() -> None:
    data = load("digits")
    with torch.device("meta"):
        model = torch.nn.Sequential(Standardise(1), *resnet(data.shape, 10, blocks=(1, 1), width=16)).eval()
    initial = initial_params(model, seed=0)
    some, others = data.take(slice(0, 600)), data.take(slice(600, 900))
    params = pretrain(model, initial, some, epochs=3, batch_size=32, augmented=False, seed=0)
    with torch.no_grad():
        right = apply(model, params, others.x).argmax(1) == others.y
    assert float(right.double().mean()) > 0.7
    assert not torch.equal(params["2.running_mean"], initial["2.running_mean"])
    assert params.keys() == initial.keys()


def test_the_cosine_of_embeddings_is_that_of_numpy() -> None:
    a, b = (torch.rand(n, 5, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (3, 4))
    expected = np.array([[p @ q / np.linalg.norm(p) / np.linalg.norm(q) for q in b.numpy()] for p in a.numpy()])
    np.testing.assert_allclose(COSINE.pairwise(a, b).numpy(), expected)
    np.testing.assert_allclose(COSINE.paired(a, b[:3]).numpy(), expected.diagonal())


@pytest.mark.slow
def test_candidates_of_classes_lie_along_their_rows_as_far_out_as_public_embeddings() -> None:
    made = setting("smoke", "published", 0, CPU)
    known, labels = made.known.x.double().numpy(), made.known.y.numpy()
    weight = torch.randn(10, known.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, mean = class_candidates(weight, made).numpy(), known.mean(0)
    for label, row in enumerate((weight - weight.mean(0)).numpy()):
        distance = np.linalg.norm(known[labels == label] - mean, axis=1).mean()
        np.testing.assert_allclose(found[label], np.maximum(mean + distance * row / np.linalg.norm(row), 0))
