"""The written gradient of convolutional nets, and its change along a direction, are those of autograd."""

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from remanence import CrossEntropy, Logistic, SquaredError
from remanence.engine import cnn as plain_cnn
from remanence.engine import loss_gradient
from remanence.engine.cnn import PlainCnn
from remanence.engine.cnn_pieces import Maximum
from remanence.engine.cnn_tape import Tape, Weights
from remanence.models import Residual, Standardise, cnn, mlp, resnet, vgg
from remanence.training import Loss
from remanence.types import Params

SHAPE = (3, 12, 10)
FORMS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


def standardised(outputs: int) -> nn.Module:
    return nn.Sequential(Standardise(3), *resnet(SHAPE, outputs, blocks=(1,), width=4)).eval()


def odd(outputs: int) -> nn.Module:
    """Strides that leave a rest, a dilation, a bias beside norms, linear layers behind images, and one ReLU for all."""
    cut = nn.ReLU()
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=1, bias=False), nn.BatchNorm2d(4, eps=0.1), cut),
            *(nn.Conv2d(4, 5, 3, dilation=2, bias=True), cut, nn.Flatten(), nn.Linear(70, 6), cut),
            nn.Linear(6, outputs, bias=False),
        ).eval()


def overlapping(outputs: int) -> nn.Module:
    """The stem of a torchvision ResNet: its poolings overlap."""
    with torch.device("meta"):
        stem = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
        return nn.Sequential(*stem, nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(30, outputs)).eval()


NETS: dict[str, Callable[[int], nn.Module]] = {
    "overlapping": overlapping,
    "resnet": lambda outputs: resnet(SHAPE, outputs, blocks=(1, 2), width=4),
    "vgg": lambda outputs: vgg(SHAPE, outputs, blocks=(1, 2), width=4),
    "cnn": lambda outputs: cnn(SHAPE, outputs, activation=nn.ReLU),
    "standardised": standardised,
    "odd": odd,
}


def made(model: nn.Module, seed: int = 0) -> Params:
    """Weights in float64 whose norms are far from the identity."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: t.shape for name, t in (*model.named_parameters(), *model.named_buffers()) if t.is_floating_point()}
    drawn = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    kept = {name: 0.1 + p.abs() for name, p in drawn.items() if name.endswith(("running_var", "spread"))}
    return {name: 0.3 * p for name, p in drawn.items()} | kept


def records(outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(5, *SHAPE, generator=generator, dtype=torch.float64)
    return x, torch.arange(5) % max(outputs, 2)


def read(
    model: nn.Module, params: Params, loss: Loss, form: torch.memory_format = torch.contiguous_format, count: int = 5
) -> PlainCnn:
    net = plain_cnn.of(model, params, loss, shape=SHAPE, records=count, form=form)
    assert net is not None
    return net


@pytest.mark.parametrize("count", [10**6, 0, 5], ids=["folded", "not folded", "by size"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_gradient_and_its_change_are_those_of_autograd(
    net: Callable[[int], nn.Module], form: torch.memory_format, count: int
) -> None:
    assert_that_of_autograd(net, CrossEntropy(), form, count)


@pytest.mark.parametrize("loss", [Logistic(), SquaredError()], ids=repr)
def test_so_they_are_for_losses_of_one_output(loss: Loss) -> None:
    assert_that_of_autograd(NETS["resnet"], loss, torch.contiguous_format, 5)


def assert_that_of_autograd(net: Callable[[int], nn.Module], loss: Loss, form: torch.memory_format, count: int) -> None:
    outputs = 10 if isinstance(loss, CrossEntropy) else 1
    model, (x, y) = net(outputs), records(outputs)
    params, way = made(model), made(model, 2)
    trained = {name: params[name].clone().requires_grad_() for name, _ in model.named_parameters()}
    x.requires_grad_()
    gradient = loss_gradient(model, params | trained, x, y, loss=loss)
    along = torch.stack([(gradient[name] * way[name]).sum() for name in trained]).sum()
    *by_weights, by_records = torch.autograd.grad(along, [*trained.values(), x])

    ours, seen = read(model, params, loss, form, count), x.detach().clone().requires_grad_()
    first, weights = ours.read(params, seen), ours.order.packed(params)
    with torch.no_grad():
        tape = ours.tape(weights, first, y, records=5, pulls=True)
        found = ours.order.named(ours.gradient(weights, tape))
        changed, by_first, _ = ours.along(weights, ours.order.packed(way), tape, y, records=5)
    changes = ours.order.named(changed)
    for name, expected in zip(trained, by_weights, strict=True):
        torch.testing.assert_close(found[name], gradient[name].detach(), rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(changes[name], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(first, seen, by_first)[0], by_records, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_one_vector_holds_every_weight(form: torch.memory_format) -> None:
    model = NETS["resnet"](10)
    params = made(model)
    net = read(model, params, CrossEntropy(), form)
    named = net.order.named(net.order.packed(params))
    assert set(named) == {name for name, _ in model.named_parameters()}
    assert all(torch.equal(p, params[name]) for name, p in named.items())
    kernels = [p for p in named.values() if p.ndim == 4]
    assert all(p.is_contiguous(memory_format=form) for p in kernels)


def test_what_a_tape_holds_is_counted_before() -> None:
    model, (x, y) = NETS["vgg"](10), records(10)
    params = made(model)
    net = read(model, params, CrossEntropy())
    for count in (5, 2):
        tape = net.tape(net.order.packed(params), x[:count], y[:count], records=5, pulls=False)
        kernels = sum(tape.at.kernels[name].numel() for name in net.norms.channels if name in net.order.layers)
        assert net.held(SHAPE, count) == tape.held() + kernels
    assert net.held(SHAPE, 5) > 2 * 5 * 4 * 12 * 10  # what the first convolution puts out, and its slope


def shared() -> nn.Module:
    with torch.device("meta"):
        one = nn.Conv2d(3, 3, 3, padding=1)
        return nn.Sequential(one, nn.ReLU(), one, nn.ReLU(), nn.Flatten(), nn.Linear(360, 10))


def one_bias() -> nn.Module:
    with torch.device("meta"):
        first, second = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        second.bias = first.bias
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(360, 10))


@pytest.mark.parametrize(
    "model",
    [
        cnn(SHAPE, 10),
        mlp(SHAPE, 10, activation=nn.ReLU),
        NETS["resnet"](10).train(),
        resnet(SHAPE, 10, blocks=(1,), width=4, activation=nn.ELU),
        nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.ReLU(), nn.Flatten(), nn.Linear(240, 10)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(320, 10)).eval(),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, ceil_mode=True), nn.Flatten(), nn.Linear(48, 10)),
        nn.Sequential(Residual(3, 3, stride=1, activation=nn.ReLU), nn.Flatten(), nn.Linear(360, 10)).eval(),
        shared(),
        one_bias(),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(8, 6), nn.Flatten(), nn.Linear(240, 10)),
    ],
    ids=[
        "ELU",
        "mlp",
        "training",
        "block of ELU",
        "groups",
        "bias and norm",
        "sides rounded up",
        "block first",
        "shared",
        "one bias",
        "rows",
    ],
)
def test_what_is_not_written_out_is_left_to_autograd(model: nn.Module) -> None:
    params = {name: torch.ones(t.shape) for name, t in (*model.named_parameters(), *model.named_buffers())}
    assert plain_cnn.of(model, params, CrossEntropy(), shape=SHAPE, records=5) is None


def test_statistics_that_are_not_shown_are_left_to_autograd() -> None:
    model = NETS["vgg"](10)
    shown = {name: p for name, p in made(model).items() if "running" not in name}
    assert plain_cnn.of(model, shown, CrossEntropy(), shape=SHAPE, records=5) is None


def test_a_layer_may_be_named_as_it_likes() -> None:
    def net(outputs: int) -> nn.Module:
        layers = [("features", nn.Conv2d(3, 4, 3)), ("cut", nn.ReLU()), ("flat", nn.Flatten())]
        return nn.Sequential(OrderedDict([*layers, ("logits", nn.Linear(320, outputs))]))

    assert_that_of_autograd(net, CrossEntropy(), torch.contiguous_format, 5)


def test_a_loss_of_others_is_left_to_autograd() -> None:
    model = NETS["cnn"](10)
    assert plain_cnn.of(model, made(model), nn.functional.cross_entropy, shape=SHAPE, records=5) is None


def test_a_norm_is_folded_where_the_kernel_is_smaller_than_what_it_makes() -> None:
    model = NETS["vgg"](10)  # kernels of 108, 288 and 576 numbers; 480, 240 and 240 to a record
    params = made(model)
    for count, folded in ((0, set()), (1, {"0"}), (2, {"0", "4"}), (3, {"0", "4", "7"})):
        net = read(model, params, CrossEntropy(), count=count)
        assert set(net.norms.channels) & set(net.order.layers) == folded


def test_channels_stay_last() -> None:
    model, (x, y) = NETS["resnet"](10), records(10)
    params = made(model)
    for count in (0, 10**6):
        net = read(model, params, CrossEntropy(), torch.channels_last, count)
        tape = net.tape(net.order.packed(params), x, y, records=5, pulls=False)
        images = [t for kept in (tape.inputs, tape.signs, tape.slopes) for t in kept.values() if t.ndim == 4]
        assert images
        assert all(t.is_contiguous(memory_format=torch.channels_last) for t in images)


def test_channels_stay_last_through_maxima() -> None:
    x, change = records(10)[0].contiguous(memory_format=torch.channels_last), records(10)[0]
    pool, tape = (
        Maximum(name="", kernel_size=(2, 2), stride=(2, 2), padding=(0, 0)),
        Tape(at=Weights(kernels={}, shifts={})),
    )
    assert pool.forward(tape, x).is_contiguous(memory_format=torch.channels_last)
    assert pool.moved(tape, change).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(pool.moved(tape, x), nn.functional.max_pool2d(x, 2))
