"""A GPT-2 under its published names is the same function, with the same gradient, as one written by hand."""

import pytest
import torch
from own_gpt2 import GPT2, next_token_loss
from refusals import refused
from torch.func import functional_call, grad

from remanence.models import Transformer
from remanence.models.gpt2 import OFFSET, from_gpt2, gpt2, is_gpt2

LENGTHS = torch.tensor([7, 4, 1, 6])


@pytest.fixture(scope="module")
def net() -> GPT2:
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    made = GPT2(50, length=9, width=24, blocks=3, heads=4).double()
    for p in made.parameters():
        p.data += 0.1 * torch.randn_like(p)  # norms and biases that are not ones and zeros
    torch.random.set_rng_state(state)
    return made


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(50, (4, 7), generator=torch.Generator().manual_seed(1))


def ours(net: GPT2) -> tuple[Transformer, dict[str, torch.Tensor]]:
    return gpt2(net.state_dict(), heads=4), from_gpt2(net.state_dict())


def padded(ids: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(7) < LENGTHS[:, None], ids + OFFSET, 0)


def test_logits_are_those_of_a_gpt2_by_hand(net: GPT2, ids: torch.Tensor) -> None:
    model, at = ours(net)
    assert set(at) == {name for name, _ in model.named_parameters()}
    logits = functional_call(model, at, (ids + OFFSET,))
    torch.testing.assert_close(logits[..., OFFSET:], net(ids).logits, rtol=1e-12, atol=1e-12)
    assert bool((logits[..., 0] == -torch.inf).all())


def test_gradients_of_padded_sequences_are_those_of_a_loss_by_hand(net: GPT2, ids: torch.Tensor) -> None:
    model, at = ours(net)
    computed = grad(lambda params: functional_call(model, params, (padded(ids), torch.zeros(4).long())))(at)
    names, values = zip(*net.named_parameters(), strict=True)
    expected = from_gpt2(dict(zip(names, torch.autograd.grad(next_token_loss(net, ids, LENGTHS), values), strict=True)))
    for name, value in expected.items():
        torch.testing.assert_close(computed[name], value, rtol=1e-9, atol=1e-12)
    assert not computed["tokens.weight"][0].any()


def test_matrices_of_linear_layers_are_not_transposed(net: GPT2) -> None:
    """As some re-implementations have them."""
    turned = {name: p.T if ".c_" in name and p.ndim == 2 else p for name, p in net.state_dict().items()}
    for name, value in from_gpt2(turned).items():
        assert torch.equal(value, from_gpt2(net.state_dict())[name])


def test_what_is_no_gpt2_is_refused(net: GPT2) -> None:
    params = net.state_dict()
    assert is_gpt2(params)
    assert not is_gpt2({"tokens.weight": 0})
    with refused("unsupported-model", "model") as caught:
        gpt2({name: p for name, p in params.items() if "wpe" not in name}, heads=4)
    assert "wpe.weight" in str(caught.value)
    with refused("unsupported-model", "model"):
        gpt2(params, heads=5)
