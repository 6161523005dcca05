"""Every engine computes the gradient and the Hessian-vector product of plain autograd."""

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from remanence import CrossEntropy, Logistic, SquaredError, Training
from remanence.engine import Engine, GenericEngine, engine_for
from remanence.engine.cnn import CNNEngine, cnn_engine
from remanence.engine.mlp import MLPEngine
from remanence.models import Residual, Standardise, apply, centred_mlp, cnn, mlp, resnet, vgg
from remanence.training import DPGD, Loss
from remanence.types import Params

SHAPE = (3, 12, 10)
FORMATS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
Net = Callable[[int], nn.Module]


def odd(outputs: int) -> nn.Module:
    """Strides with a remainder, a dilation, a bias next to norms, linear layers after images, and one ReLU for all."""
    relu = nn.ReLU()
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=1, bias=False), nn.BatchNorm2d(4, eps=0.1), relu),
            *(nn.Conv2d(4, 5, 3, dilation=2, bias=True), relu, nn.Flatten(), nn.Linear(70, 6), relu),
            nn.Linear(6, outputs, bias=False),
        ).eval()


def overlapping(outputs: int) -> nn.Module:
    """The stem of a torchvision ResNet: its pooling windows overlap."""
    with torch.device("meta"):
        stem = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
        return nn.Sequential(*stem, nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(30, outputs)).eval()


def named(outputs: int) -> nn.Module:
    layers = [("features", nn.Conv2d(3, 4, 3)), ("relu", nn.ReLU()), ("flat", nn.Flatten())]
    return nn.Sequential(OrderedDict([*layers, ("logits", nn.Linear(320, outputs))]))


CNNS: dict[str, Net] = {
    "resnet": lambda outputs: resnet(SHAPE, outputs, blocks=(1, 2), width=4),
    "vgg": lambda outputs: vgg(SHAPE, outputs, blocks=(1, 2), width=4),
    "cnn": lambda outputs: cnn(SHAPE, outputs, activation=nn.ReLU),
    "standardised": lambda k: nn.Sequential(Standardise(3), *resnet(SHAPE, k, blocks=(1,), width=4)).eval(),
    "overlapping": overlapping,
    "named": named,
    "odd": odd,
}
MLPS: dict[str, Net] = {
    "mlp": lambda outputs: mlp(SHAPE, outputs, hidden=(7, 5), activation=nn.ReLU),
    "centred": lambda outputs: centred_mlp(SHAPE, outputs, hidden=(7,)),
    "standardised": lambda k: nn.Sequential(Standardise(3), *mlp(SHAPE, k, hidden=(7,), activation=nn.ReLU)),
    "linear": lambda outputs: mlp(SHAPE, outputs, hidden=()),
}


def random_params(model: nn.Module, seed: int = 0) -> Params:
    """Weights in float64 whose norms are far from the identity."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: t.shape for name, t in (*model.named_parameters(), *model.named_buffers()) if t.is_floating_point()}
    values = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    positive = ("running_var", "std")
    return {n: 0.1 + p.abs() if n.endswith(positive) else 0.3 * p for n, p in values.items()}


def records(outputs: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, torch.arange(5) % max(outputs, 2)


def assert_agrees_with_autograd(engine: Engine, model: nn.Module, params: Params, loss: Loss, y: Tensor) -> None:
    x, direction = records(10)[0].requires_grad_(), random_params(model, 2)
    trained = {name: params[name].clone().requires_grad_() for name, _ in model.named_parameters()}
    y = y.clone().requires_grad_() if y.is_floating_point() else y
    value = loss(apply(model, params | trained, x), y)
    grads = dict(zip(trained, torch.autograd.grad(value, list(trained.values()), create_graph=True), strict=True))
    product = torch.stack([(grads[name] * direction[name]).sum() for name in trained]).sum()
    wanted = [*trained.values(), x, *([y] if y.is_floating_point() else [])]
    expected = torch.autograd.grad(product, wanted, allow_unused=True, materialize_grads=True)
    inputs = params, x.detach(), y.detach()

    found = engine.gradient(*inputs)
    assert found.keys() == trained.keys()
    for name, g in grads.items():
        torch.testing.assert_close(found[name], g.detach(), rtol=1e-9, atol=1e-12)
    by_params, by_x, by_y = engine.hvp(*inputs, {name: direction[name] for name in trained})
    for name, derivative in zip(trained, expected, strict=False):
        torch.testing.assert_close(by_params[name], derivative, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(by_x, expected[len(trained)], rtol=1e-9, atol=1e-12)
    if y.is_floating_point():
        within = [d - d.mean(-1, keepdim=True) for d in (by_y, expected[-1])]  # probabilities sum to one
        torch.testing.assert_close(*within, rtol=1e-9, atol=1e-12)
    else:
        assert by_y is None


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
@pytest.mark.parametrize("net", MLPS.values(), ids=MLPS)
def test_mlps(net: Net, soft: bool) -> None:
    model, (_, y) = net(10), records(10)
    params, training = random_params(model), Training()
    y = nn.functional.one_hot(y, 10).double() * 0.8 + 0.02 if soft else y
    engine = engine_for(model, training, SHAPE)
    assert isinstance(engine, MLPEngine)
    assert_agrees_with_autograd(engine, model, params, training.loss, y)
    assert_agrees_with_autograd(GenericEngine(model=model, loss=training.loss), model, params, training.loss, y)


@pytest.mark.parametrize("count", [10**6, 0, 5], ids=["folded", "not folded", "by size"])
@pytest.mark.parametrize("memory_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("net", CNNS.values(), ids=CNNS)
def test_cnns(net: Net, memory_format: torch.memory_format, count: int) -> None:
    model, loss = net(10), CrossEntropy()
    params = random_params(model)
    engine = cnn_engine(model, loss, params, shape=SHAPE, records=count, memory_format=memory_format)
    assert_agrees_with_autograd(engine, model, params, loss, records(10)[1])


@pytest.mark.parametrize("net", [MLPS["mlp"], CNNS["resnet"]], ids=["mlp", "resnet"])
@pytest.mark.parametrize("loss", [Logistic(), SquaredError()], ids=repr)
def test_losses_of_one_output(loss: Loss, net: Net) -> None:
    model = net(1)
    params = random_params(model)
    engine = engine_for(model, Training(loss=loss), SHAPE, frozen=params, records=5)
    assert isinstance(engine, MLPEngine | CNNEngine)
    assert_agrees_with_autograd(engine, model, params, loss, records(1)[1])


def test_the_closed_form_of_a_cnn_needs_its_frozen_statistics() -> None:
    model = CNNS["vgg"](10)
    params = random_params(model)
    weights = {name: p for name, p in params.items() if "running" not in name}
    assert isinstance(engine_for(model, Training(), SHAPE, frozen=params), CNNEngine)
    assert isinstance(engine_for(model, Training(), SHAPE, frozen=weights), GenericEngine)
    assert isinstance(engine_for(model, Training(), SHAPE), GenericEngine)


def shared_layer() -> nn.Module:
    one = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(one, nn.ReLU(), one, nn.ReLU(), nn.Flatten(), nn.Linear(360, 10))


def shared_bias() -> nn.Module:
    first, second = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
    second.bias = first.bias
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(360, 10))


GENERIC: dict[str, Callable[[], nn.Module]] = {
    "ELU": lambda: cnn(SHAPE, 10),
    "MLP of ELU": lambda: mlp(SHAPE, 10),
    "BatchNorm in training": lambda: CNNS["resnet"](10).train(),
    "block of ELU": lambda: resnet(SHAPE, 10, blocks=(1,), width=4, activation=nn.ELU),
    "groups": lambda: nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.ReLU(), nn.Flatten(), nn.Linear(240, 10)),
    "bias and norm": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(320, 10)
    ).eval(),
    "sides rounded up": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, ceil_mode=True), nn.Flatten(), nn.Linear(48, 10)
    ),
    "block first": lambda: nn.Sequential(
        Residual(3, 3, stride=1, activation=nn.ReLU), nn.Flatten(), nn.Linear(360, 10)
    ).eval(),
    "shared layer": shared_layer,
    "shared bias": shared_bias,
    "rows": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(8, 6), nn.Flatten(), nn.Linear(240, 10)),
}


@pytest.mark.parametrize("net", GENERIC.values(), ids=GENERIC)
def test_other_networks_are_generic(net: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        model = net()
    params = {name: torch.ones(t.shape) for name, t in (*model.named_parameters(), *model.named_buffers())}
    assert isinstance(engine_for(model, Training(), SHAPE, frozen=params), GenericEngine)


def test_other_losses_and_private_trainings_are_generic() -> None:
    model = MLPS["mlp"](10)
    for training in (Training(loss=nn.functional.cross_entropy), Training(privacy=DPGD(clip=1.0))):
        assert isinstance(engine_for(model, training, SHAPE, frozen=random_params(model)), GenericEngine)


def test_per_example_clipping_agrees_with_a_naive_loop() -> None:
    model, (x, y) = mlp(SHAPE, 10, hidden=(4,)), records(10)
    params, grads = random_params(model), list[Params]()
    for i in range(5):
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        loss = nn.functional.cross_entropy(apply(model, leaves, x[i : i + 1]), y[i : i + 1])
        grads.append(dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)))
    norms = [float(torch.cat([g.flatten() for g in each.values()]).norm()) for each in grads]
    clip = sorted(norms)[2]
    expected = {
        name: torch.stack([each[name] * min(1.0, clip / norm) for each, norm in zip(grads, norms, strict=True)]).mean(0)
        for name in params
    }
    found = engine_for(model, Training(privacy=DPGD(clip=clip)), SHAPE).gradient(params, x, y)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_records_of_large_gradients_are_clipped_in_half_precision(dtype: torch.dtype) -> None:
    """Norms of 400 and more have squares that float16 has not, and factors below 1e-5 that it rounds coarsely."""
    model, x, y = nn.Linear(3, 1, bias=False), torch.tensor([[300.0, 400.0, 0.0], [0.0, 0.0, 800.0]]), torch.zeros(2)
    params = {"weight": torch.ones(1, 3, dtype=dtype)}
    engine = GenericEngine(model=model, loss=lambda logits, _: logits.sum(), privacy=DPGD(clip=1e-3))
    found = engine.gradient(params, x.to(dtype), y)
    expected = {"weight": torch.tensor([[3e-4, 4e-4, 5e-4]]).to(dtype)}  # the mean of vectors of length 0.001
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=0.0)
