from itertools import pairwise

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

from remanence import Data, Training
from remanence.engine import train
from remanence.models import (
    Doubling,
    Image,
    apply,
    cnn,
    deconv,
    initial_params,
    initial_stack,
    mlp,
    patchgan,
    resnet,
    resnet18,
    server_params,
    torch_params,
    vgg,
)
from remanence.types import Params


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts_of_balle_table_iv() -> None:
    assert count(mlp((1, 28, 28), 10)) == 7_960
    assert count(cnn((3, 32, 32), 10)) == 55_208
    assert count(mlp((7960,), 784, hidden=(1000, 1000), activation=nn.ReLU)) == 9_746_784


def test_parameter_counts_of_balle_tables_vi_and_vii() -> None:
    assert count(deconv(55_208, (3, 32, 32))) == 226_189_699
    layers = [(3, 64), (64, 128), (128, 256), (256, 512), (512, 1)]
    assert count(patchgan((3, 32, 32))) == sum(16 * a * b + b for a, b in layers)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 12)], ids=str)
def test_transposed_convolutions_make_images(shape: tuple[int, ...]) -> None:
    for model in (deconv(20, shape), deconv(20, shape, hidden=(7, 5))):
        assert apply(model, initial_params(model, seed=0), torch.zeros(2, 20)).shape == (2, *shape)


def test_doubling_is_a_transposed_convolution() -> None:
    ours, plain = Doubling(3, 2).double(), nn.ConvTranspose2d(3, 2, 5, stride=2, padding=2, output_padding=1).double()
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(4, 3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(ours(x), plain(x), atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(net(x).sin().sum(), net.weight) for net in (ours, plain)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_a_vector_becomes_an_image_without_a_copy() -> None:
    vector = torch.arange(2 * 24.0).view(2, 24)
    image = Image(4, 2, 3)(vector)
    assert image.shape == (2, 4, 2, 3)
    assert image.data_ptr() == vector.data_ptr()
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_the_fan_in_of_a_transposed_convolution_is_that_of_its_inputs() -> None:
    weight = initial_params(deconv(20, (3, 32, 32)), seed=0)["4.weight"]
    assert weight.shape == (64, 32, 5, 5)
    assert weight.std() == pytest.approx(0.8796 / (64 * 25) ** 0.5, rel=0.01)


def test_initial_weights_are_truncated_normals_of_the_fan_in() -> None:
    model = mlp((400,), 10, hidden=(300,))
    before = torch.get_rng_state()
    params = initial_params(model, seed=0)
    assert torch.equal(before, torch.get_rng_state())
    weight = params["1.weight"]
    assert list(params) == [name for name, _ in model.named_parameters()]
    assert weight.abs().max() <= 2 / 400**0.5
    # the standard deviation of a normal cut at two sigma is 0.8796 sigma
    assert weight.std() == pytest.approx(0.8796 / 400**0.5, rel=0.01)
    assert not params["1.bias"].any()
    assert torch.equal(weight, initial_params(model, seed=0)["1.weight"])
    assert not torch.equal(weight, initial_params(model, seed=1)["1.weight"])


def test_apply_is_the_plain_forward_pass() -> None:
    model, x = mlp((1, 2, 2), 3, hidden=(5,), activation=nn.Tanh), torch.rand(4, 1, 2, 2)
    p = initial_params(model, seed=0)
    by_hand = (x.flatten(1) @ p["1.weight"].T + p["1.bias"]).tanh() @ p["3.weight"].T + p["3.bias"]
    assert torch.allclose(apply(model, p, x), by_hand, atol=1e-6)


def test_the_parameters_of_resnet_18() -> None:
    model = resnet18((3, 32, 32), 10)
    assert count(model) == 11_173_962
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 20
    assert not model.training


@pytest.mark.parametrize(
    ("blocks", "channels", "parameters"),
    [
        ((1, 1, 2, 2, 2), (64, 128, *[256] * 2, *[512] * 4), 9_228_362),
        ((2, 2, 3, 3, 3), (*[64] * 2, *[128] * 2, *[256] * 3, *[512] * 6), 14_724_042),
    ],
    ids=["VGG-11", "VGG-16"],
)
def test_the_parameters_of_vgg(blocks: tuple[int, ...], channels: tuple[int, ...], parameters: int) -> None:
    model = vgg((3, 32, 32), 10, blocks=blocks)
    convolutions = [
        (layer.in_channels, layer.out_channels) for layer in model.modules() if isinstance(layer, nn.Conv2d)
    ]
    assert convolutions == list(pairwise((3, *channels)))
    assert count(model) == parameters == 9 * sum(a * b for a, b in convolutions) + 2 * sum(channels) + 5130
    assert not model.training


def test_a_vgg_is_the_plain_forward_pass() -> None:
    model, x = vgg((2, 9, 8), 3, blocks=(1, 2), width=4), torch.rand(3, 2, 9, 8)
    generator = torch.Generator().manual_seed(0)
    p = {name: torch.rand(w.shape, generator=generator) - 0.4 for name, w in initial_params(model, seed=0).items()}
    p |= {name: w.abs() + 0.1 for name, w in p.items() if name.endswith("running_var")}
    x1 = max_pool2d(norm(p, "1", conv(p, "0", x)).relu(), 2)
    x2 = norm(p, "8", conv(p, "7", norm(p, "5", conv(p, "4", x1)).relu())).relu()
    by_hand = max_pool2d(x2, 2).mean(dim=(2, 3)) @ p["13.weight"].T + p["13.bias"]
    assert torch.allclose(apply(model, p, x), by_hand, rtol=1e-4)


def conv(p: Params, name: str, x: Tensor, stride: int = 1) -> Tensor:
    return conv2d(x, p[f"{name}.weight"], stride=stride, padding=p[f"{name}.weight"].shape[-1] // 2)


def norm(p: Params, name: str, x: Tensor) -> Tensor:
    mean, var, scale, shift = (
        p[f"{name}.{k}"][:, None, None] for k in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * scale + shift


def test_a_residual_net_is_the_plain_forward_pass() -> None:
    model, x = resnet((2, 6, 6), 3, blocks=(1, 1), width=4), torch.rand(3, 2, 6, 6)
    generator = torch.Generator().manual_seed(0)
    p = {name: torch.rand(w.shape, generator=generator) - 0.2 for name, w in initial_params(model, seed=0).items()}
    p |= {name: w.abs() + 0.1 for name, w in p.items() if name.endswith("running_var")}
    x1 = norm(p, "1", conv(p, "0", x)).relu()
    inner = norm(p, "3.inner.4", conv(p, "3.inner.3", norm(p, "3.inner.1", conv(p, "3.inner.0", x1)).relu()))
    x2 = (inner + x1).relu()
    inner = norm(p, "4.inner.4", conv(p, "4.inner.3", norm(p, "4.inner.1", conv(p, "4.inner.0", x2, 2)).relu()))
    x3 = (inner + norm(p, "4.shortcut.1", conv(p, "4.shortcut.0", x2, 2))).relu()
    by_hand = x3.mean(dim=(2, 3)) @ p["7.weight"].T + p["7.bias"]
    assert torch.allclose(apply(model, p, x), by_hand, rtol=1e-4)


def test_a_batchnorm_starts_as_the_identity_and_its_statistics_stay() -> None:
    model, x = resnet((1, 6, 6), 3, blocks=(1,), width=4), torch.rand(5, 1, 6, 6)
    starts = initial_stack(model, 2, seed=0)
    assert starts["1.running_var"].shape == (2, 4)
    initial = {name: p[0] for name, p in starts.items()}
    assert torch.allclose(norm(initial, "1", x.expand(-1, 4, -1, -1)), x.expand(-1, 4, -1, -1), atol=1e-4)
    data = Data(x=x, y=torch.tensor([0, 1, 2, 0, 1]), num_classes=3)
    final = train(Training(epochs=3, weight_decay=0.1), model, initial, data)
    assert set(final) == set(initial)
    frozen = {name for name, p in initial.items() if torch.equal(p, final[name])}
    assert frozen == {name for name, _ in model.named_buffers()}


def test_a_batchnorm_in_training_mode_is_refused() -> None:
    model = resnet((1, 6, 6), 3, blocks=(1,), width=4)
    params = initial_params(model, seed=0)
    with refused("unsupported-model", "model"):
        apply(model.train(), params, torch.rand(2, 1, 6, 6))


def test_unknown_layers_and_small_images_are_refused() -> None:
    for initialise in (initial_params, torch_params):
        with refused("unsupported-model", "model"):
            initialise(nn.Sequential(nn.LayerNorm(3)), seed=0)
    for make in (lambda: cnn((1, 8, 8), 10), lambda: patchgan((3, 16, 16)), lambda: vgg((3, 32, 28), 10)):
        with refused("out-of-range", "shape"):
            make()
    for make in (lambda: deconv(5, (1, 30, 28)), lambda: resnet18((64,), 10)):
        with refused("shape-mismatch", "shape"):
            make()


def test_the_servers_weights_follow_the_forward_pass_not_the_order_of_attributes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.rows = nn.Linear(7, 1), nn.Linear(4, 7)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.rows(x).tanh())
            return logits

    found, expected = (server_params(net, seed=3) for net in (Net(), mlp((4,), 1, hidden=(7,))))
    names = {"rows": "1", "head": "3"}
    renamed = {f"{names[path]}.{leaf}": p for name, p in found.items() for path, _, leaf in [name.partition(".")]}
    torch.testing.assert_close(renamed, expected)
    for other in (mlp((4,), 2), mlp((4,), 1, hidden=()), mlp((4,), 1, hidden=(7, 9)), cnn((1, 12, 12), 1)):
        with refused("unsupported-model", "model"):
            server_params(other, seed=0)
