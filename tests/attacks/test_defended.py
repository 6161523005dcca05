"""What the attacks on gradients make of a client's defenses, which the release states."""

from dataclasses import replace

import pytest
import torch
from gradients import error, matched, planted, sent_to, some_digits, unit_vectors
from torch import nn

from remanence import Data, Gradient, Reconstruction
from remanence.attacks import L2, Cosine, GradientMatching, Stein, with_search
from remanence.engine import loss_gradient
from remanence.models import initial_params, mlp
from remanence.releases.defenses import Clipping, Defense, GaussianNoise, Quantization, Sign, TopK, defended
from remanence.training.losses import CrossEntropy
from remanence_recipes.wang2023.setting import SquareAndCube

QUICK = with_search(GradientMatching(), steps=150, restarts=1)


def under(release: Gradient, *defenses: Defense, seed: int = 0) -> Gradient:
    return replace(release, gradient=defended(release.gradient, defenses, seed=seed), defenses=defenses)


def honest(batch: Data) -> Gradient:
    model, loss = mlp(batch.shape, 10, hidden=(50,), activation=nn.Tanh), CrossEntropy()
    at = initial_params(model, seed=0)
    gradient = loss_gradient(model, at, batch.x, batch.y, loss=loss)
    return Gradient(
        model=model, at=at, gradient=gradient, labels=None, batch_size=len(batch), shape=batch.shape, loss=loss
    )


def mse(found: Reconstruction, batch: Data) -> float:
    return float((torch.cdist(batch.x.flatten(1), found.x.flatten(1)) ** 2 / 64).min(dim=1).values.mean())


# ---- gradient matching


@pytest.mark.slow
@pytest.mark.parametrize("distance", [Cosine(), L2()], ids=repr)
def test_clipping_hides_neither_images_nor_repeated_labels(digits: Data, distance: Cosine | L2) -> None:
    batch = digits.take(torch.tensor([0, 10, 1, 2]))  # the digits 0, 0, 1, 2
    assert batch.y.tolist() == [0, 0, 1, 2]
    release = honest(batch)
    attack = replace(QUICK, distance=distance, prior=None)
    clipped = under(release, Clipping(norm=0.05 * float(sum(g.norm() ** 2 for g in release.gradient.values()) ** 0.5)))
    found = attack.run(clipped, seed=0)
    assert found.y.tolist() == [0, 0, 1, 2]
    assert mse(found, batch) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("defense", [TopK(fraction=0.05), Sign()], ids=repr)
def test_what_the_server_knows_of_a_defence_helps(digits: Data, defense: Defense) -> None:
    batch = some_digits(digits, 3, 1)
    told = under(honest(batch), defense)
    unaware = replace(told, defenses=())
    assert mse(QUICK.run(told, seed=0), batch) < 0.8 * mse(QUICK.run(unaware, seed=0), batch)


def test_labels_are_guessed_where_nothing_of_them_was_sent(digits: Data) -> None:
    batch = some_digits(digits, 0, 2)
    found = with_search(QUICK, steps=5).run(under(honest(batch), TopK(fraction=1e-4)), seed=0)
    assert bool(found.x.isfinite().all())
    assert len(set(found.y.tolist())) == 2  # of two records two classes are likelier than one


def test_of_entries_that_were_not_sent_only_what_is_beyond_the_least_sent_counts() -> None:
    sent = {"a": torch.tensor([0.0, -3.0, 0.0]), "b": torch.tensor([[2.0], [0.0]])}
    ours = {"a": torch.tensor([-5.0, -1.0, 1.9]), "b": torch.tensor([[0.5], [2.5]])}
    made = TopK(fraction=0.4).imitate(ours, sent)
    assert made["a"].tolist() == pytest.approx([-3.0, -1.0, 0.0])
    assert made["b"].flatten().tolist() == pytest.approx([0.5, 0.5])


# ---- Stein


def test_clipping_changes_nothing_for_stein() -> None:
    release = planted(nn.Tanh)
    found = Stein().run(under(release, Clipping(norm=1e-3)), seed=0)
    assert error(found, unit_vectors()) < 1e-6
    assert found.objective < 1e-6


@pytest.mark.parametrize(
    "attack", [Stein(clamp=False), Stein(refine=False, norm=1.0, clamp=False)], ids=["ours", "span"]
)
def test_noise_makes_the_error_larger_and_the_objective_says_how_much_is_unexplained(attack: Stein) -> None:
    release, truth = planted(SquareAndCube), unit_vectors()
    found = [attack.run(under(release, GaussianNoise(relative_std=share)), seed=0) for share in (0.01, 0.3, 3.0)]
    errors = [error(each, truth) for each in found]
    objectives = [each.objective or 0.0 for each in found]
    assert errors == sorted(errors)
    assert objectives == sorted(objectives)
    assert errors[0] < 0.05
    assert errors[2] < 0.5
    assert objectives[0] < 0.1 < objectives[2] < 1


@pytest.mark.slow
def test_the_refinement_uses_all_rows_of_a_noisy_gradient() -> None:
    """By the number of unknowns and of equations the error goes with the noise over the root of the rows."""
    truth = unit_vectors()
    few, many = (
        sum(
            error(
                Stein(clamp=False).run(
                    under(planted(nn.Tanh, rows=rows, seed=k), GaussianNoise(relative_std=0.3)), seed=0
                ),
                truth,
            )
            for k in range(4)
        )
        for rows in (1000, 16_000)
    )
    assert few / many == pytest.approx(4, rel=0.5)


def test_a_span_under_much_noise_is_that_of_the_largest_singular_values() -> None:
    """Where singular values have no gap, a few rounds of a power method do not find it."""
    release = under(planted(SquareAndCube, rows=20_000), GaussianNoise(relative_std=3.0))
    found = Stein(refine=False, norm=1.0, clamp=False).run(release, seed=0)
    span = torch.linalg.svd(release.gradient["1.weight"], full_matrices=False).Vh[:2]
    assert float((found.x - found.x @ span.T @ span).norm()) < 1e-9


@pytest.mark.parametrize("defense", [Quantization(bits=4), TopK(fraction=0.5)], ids=repr)
def test_stein_answers_under_other_defences(digits: Data, defense: Defense) -> None:
    batch = some_digits(digits, 0, 2, classes=2)
    found = Stein(restarts=1, reseeds=0).run(under(sent_to(batch, nn.Tanh), defense), seed=0)
    assert float((matched(found, batch)[0] - batch.x).square().mean()) < 0.01
    assert 1e-6 < found.objective < 1
