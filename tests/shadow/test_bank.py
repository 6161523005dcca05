import pytest
import torch
from refusals import refused

from remanence import Training, train_victim
from remanence.data import Split
from remanence.engine import train
from remanence.models import initial_params, mlp
from remanence.releases import AllButOne, all_but_one
from remanence.shadow import build_bank
from remanence.types import concat


@pytest.fixture(scope="module")
def release(parts: Split) -> AllButOne:
    model = mlp(parts.fixed.shape, 10)
    private = parts.private.take(slice(0, 1))
    made = train_victim(model, Training(epochs=10), initial_params(model, seed=0), parts.fixed, private, seed=0)
    return all_but_one(made).release


def test_row_k_is_the_model_trained_on_the_fixed_set_and_target_k(release: AllButOne, parts: Split) -> None:
    bank = build_bank(release, parts.public, seed=0)
    assert bank.weights.shape == (len(parts.public), sum(p.numel() for p in release.final.values()))
    for k in (0, 127, 128, len(parts.public) - 1):  # both sides of the first chunk's end, and the last, padded chunk
        target = parts.public.take(slice(k, k + 1))
        alone = train(release.training, release.model, release.initial, concat([release.fixed, target]))
        flat = torch.cat([alone[name].flatten() for name in sorted(alone)])
        assert torch.allclose(bank.weights[k], flat, atol=1e-5)
        assert torch.equal(bank.targets.x[k], target.x[0])


def test_the_released_model_lies_where_its_own_shadow_would(release: AllButOne, parts: Split) -> None:
    bank = build_bank(release, parts.private.take(slice(0, 3)), seed=0)
    flat = torch.cat([release.final[name].flatten() for name in sorted(release.final)])
    distance = (bank.weights - flat).norm(dim=1)
    assert distance[0] < 1e-4 < distance[1:].min()


def test_an_empty_public_set_is_refused(release: AllButOne, parts: Split) -> None:
    with refused("empty", "public"):
        build_bank(release, parts.public.take(slice(0, 0)), seed=0)
