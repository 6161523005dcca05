"""The decomposition of symmetric tensors: planted factors come back, and what has none is refused."""

import pytest
import torch
from refusals import refused
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from remanence.attacks.gradients.tensor.decomposition import decompose, lstsq_qr
from remanence.attacks.gradients.tensor.moments import symmetric

RANKS = [1, 2, 4, 8]


def planted(rank: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A tensor, its unit factors (rank, rank), not orthogonal, and its weights, of both signs."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.eye(rank).double() + 0.4 * torch.randn(rank, rank, generator=generator).double()
    factors = factors / factors.norm(dim=1, keepdim=True)
    weights = 0.5 + torch.rand(rank, generator=generator).double()
    weights[::2] *= -1
    return tensor_of(factors, weights), factors, weights


def tensor_of(factors: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("i,ia,ib,ic->abc", weights, factors, factors, factors)


def noise(rank: int, seed: int) -> Tensor:
    return symmetric(torch.randn(rank, rank, rank, generator=torch.Generator().manual_seed(seed)).double())


def aligned(found: Tensor, weights: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """In the order and with the signs of the truth; a factor that turns around turns its weight."""
    cosines = truth @ found.T
    order = torch.from_numpy(linear_sum_assignment(-cosines.abs().numpy())[1])
    signs = cosines.gather(1, order[:, None])[:, 0].sign()
    return found[order] * signs[:, None], weights[order] * signs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rank", RANKS)
def test_planted_factors_and_weights_of_both_signs_come_back_exactly(rank: int, seed: int) -> None:
    tensor, factors, weights = planted(rank, seed)
    found, found_weights = decompose(tensor, seed=0)
    assert found.shape == (rank, rank)
    assert found_weights.shape == (rank,)
    assert torch.allclose(found.norm(dim=1), torch.ones(rank).double(), atol=1e-12)
    moved, moved_weights = aligned(found, found_weights, factors)
    assert (moved - factors).abs().max() < 1e-8
    assert (moved_weights - weights).abs().max() < 1e-8


@pytest.mark.parametrize("rank", RANKS)
def test_the_scale_of_the_tensor_goes_into_the_weights(rank: int) -> None:
    tensor, factors, weights = planted(rank, seed=0)
    for scale in (1e-9, 1e9):
        moved, moved_weights = aligned(*decompose(scale * tensor, seed=0), factors)
        assert (moved - factors).abs().max() < 1e-8
        assert (moved_weights / scale - weights).abs().max() < 1e-8


def test_noise_is_passed_on_in_proportion() -> None:
    tensor, factors, _ = planted(4, seed=1)
    errors = []
    for size in (1e-6, 1e-4):
        moved, _ = aligned(*decompose(tensor + size * noise(4, 5), seed=0), factors)
        errors.append(float((moved - factors).norm()))
    assert errors[1] / errors[0] == pytest.approx(100, rel=0.1)


def test_many_projections_do_better_than_one_on_noise() -> None:
    one: list[float] = []
    many: list[float] = []
    for seed in range(10):
        noisy = planted(6, seed)[0] + 1e-3 * noise(6, seed)
        for projections, errors in ((1, one), (100, many)):
            errors.append(float((noisy - tensor_of(*decompose(noisy, seed=0, projections=projections))).norm()))
    assert all(many[k] < 1.01 * one[k] for k in range(10))
    assert sum(many) < 0.5 * sum(one)


def test_complex_pairs_still_give_real_unit_factors() -> None:
    """x^3 - 3 x y^2, the real part of a cube of a complex number: over the reals it has rank three."""
    tensor = torch.zeros(2, 2, 2).double()
    tensor[0, 0, 0] = 1
    tensor[0, 1, 1] = tensor[1, 0, 1] = tensor[1, 1, 0] = -1
    found, weights = decompose(tensor, seed=0)
    assert found.shape == (2, 2)
    assert bool(found.isfinite().all())
    assert bool(weights.isfinite().all())
    assert torch.allclose(found.norm(dim=1), torch.ones(2).double())


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        *((torch.ones(shape), "shape-mismatch") for shape in ((2, 2, 3), (3, 2, 2), (3, 3), (4,), (2, 2, 2, 2))),
        *((torch.full((3, 3, 3), bad), "not-finite") for bad in (float("nan"), float("inf"))),
        *((torch.zeros(rank, rank, rank), "not-identifiable") for rank in (1, 2, 4)),
    ],
    ids=str,
)
def test_what_has_no_factors_is_refused(tensor: Tensor, code: str) -> None:
    with refused(code, "tensor"):
        decompose(tensor.double(), seed=0)


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("sides", [3, 4, 8])
def test_factors_that_a_tensor_lacks_get_no_weight_and_the_others_come_back(sides: int, missing: int) -> None:
    _, factors, weights = planted(sides, seed=0)
    factors, weights = factors[:-missing], weights[:-missing]
    found, found_weights = decompose(tensor_of(factors, weights), seed=0)
    largest = found_weights.abs().argsort(descending=True)
    assert found_weights[largest[-missing:]].abs().max() < 1e-9
    kept = largest[:-missing]
    moved, moved_weights = aligned(found[kept], found_weights[kept], factors)
    assert torch.allclose(moved, factors, atol=1e-8)
    assert torch.allclose(moved_weights, weights, atol=1e-8)


def test_least_squares_is_that_of_lapack() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 20, 5, generator=generator).double()
    values = torch.randn(3, 20, 2, generator=generator).double()
    expected = torch.linalg.lstsq(matrix, values).solution
    assert torch.allclose(lstsq_qr(matrix, values), expected, atol=1e-12)
