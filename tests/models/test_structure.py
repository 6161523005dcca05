"""One parser for networks as users bring them: each comes out as the one of ours that it equals."""

import pytest
import torch
from networks import CNNS, IMAGES, MLPS, REFUSED, SHAPE, Doubled, Equal, Net, ResNet, Scaled
from refusals import refused
from torch import nn

from remanence import Data, Training, WeightsOnly
from remanence.attacks import Stationarity
from remanence.engine import engine_for
from remanence.engine.cnn import CNNEngine
from remanence.engine.mlp import MLPEngine
from remanence.models import (
    CNN,
    MLP,
    Unsupported,
    apply,
    apply_operations,
    apply_to_batch,
    first_linear,
    mlp,
    normalized,
    parse,
    replace_relu,
)
from remanence.models.operations import Activation, Normalisation

EQUAL = MLPS | CNNS


def records(shape: tuple[int, ...], count: int = 6) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
    return Data(x=x, y=torch.arange(count) % 10, num_classes=10)


@pytest.mark.parametrize("equal", EQUAL.values(), ids=EQUAL)
def test_logits_and_gradients_are_those_of_the_network_that_it_equals(equal: Equal) -> None:
    theirs, ours = equal.params()
    data = records(equal.shape)
    torch.testing.assert_close(apply(equal.theirs, theirs, data.x), apply(equal.ours, ours, data.x))
    engines = [engine_for(model, Training(), equal.shape) for model in (equal.theirs, equal.ours)]
    assert type(engines[0]) is type(engines[1])
    assert isinstance(parse(equal.theirs, equal.shape), CNN if equal in CNNS.values() else MLP)
    assert isinstance(engines[0], MLPEngine) == (equal in MLPS.values())
    found, expected = (e.gradient(p, data.x, data.y) for e, p in zip(engines, (theirs, ours), strict=True))
    torch.testing.assert_close(equal.rename(found), {name: expected[name] for name in equal.rename(found)})
    assert len(found) == len(expected)


def test_a_frozen_batchnorm_is_part_of_an_mlp_and_refused_by_name_where_it_cannot_be_treated() -> None:
    layers = nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 10)
    model = nn.Sequential(nn.Flatten(), *layers).double().eval()
    structure = parse(model, SHAPE)
    assert isinstance(structure, MLP)
    assert [norm and norm.path for norm in structure.norms] == ["2", None]
    params, data = dict(model.state_dict()), records(SHAPE)
    gradient = engine_for(model, Training(), SHAPE).gradient(params, data.x, data.y)
    assert gradient.keys() == {name for name, _ in model.named_parameters()}
    release = WeightsOnly(model=model, final=params, shape=SHAPE, num_classes=10)
    with refused("unsupported-model", "release") as refusal:
        Stationarity(candidates=2).run(release, seed=0)
    assert "BatchNorm `2`" in str(refusal.value)


@pytest.mark.parametrize("equal", CNNS.values(), ids=CNNS)
def test_the_operations_of_a_cnn_compute_what_the_model_does(equal: Equal) -> None:
    theirs, _ = equal.params()
    structure, x = parse(equal.theirs, equal.shape), records(equal.shape).x
    assert isinstance(structure, CNN)
    torch.testing.assert_close(apply_operations(structure.operations, theirs, x), apply(equal.theirs, theirs, x))


def test_a_resnet_of_classes_has_the_closed_form_with_the_same_gradient() -> None:
    equal, data = CNNS["torchvision-like ResNet"], records(IMAGES)
    gradients = []
    for model, params in zip((equal.theirs, equal.ours), equal.params(), strict=True):
        engine = engine_for(model, Training(), IMAGES, frozen=params, records=6)
        assert isinstance(engine, CNNEngine)
        gradients.append(engine.gradient(params, data.x, data.y))
    found = equal.rename(gradients[0])
    torch.testing.assert_close(found, {name: gradients[1][name] for name in found})
    assert found.keys() == gradients[1].keys()


@pytest.mark.parametrize(("model", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_recognised_comes_with_a_reason(model: nn.Module, reason: str) -> None:
    found = parse(model, SHAPE)
    assert isinstance(found, Unsupported)
    assert reason in found.reason


def test_the_first_layer_is_recognised_whatever_follows() -> None:
    for name in ("a branch on values", "softmax", "layer norm", "an activation at the end"):
        first = first_linear(REFUSED[name][0], SHAPE)
        assert not isinstance(first, Unsupported), name
        assert first.layer.in_features == 64
        assert len(first.before) == 1
    assert isinstance(first_linear(nn.Sequential(nn.LSTM(8, 4)), (8,)), Unsupported)


def test_the_answer_follows_the_mode_and_the_layers_of_the_model() -> None:
    model = ResNet()
    assert isinstance(parse(model.train(), IMAGES), Unsupported)
    assert isinstance(parse(model.eval(), IMAGES), CNN)
    assert parse(model, IMAGES) is parse(model, IMAGES)
    for slope in (0.1, 0.2, 0.3):  # memory of one that is gone may be that of the next
        model.relu = nn.LeakyReLU(slope)
        found = parse(model, IMAGES)
        assert isinstance(found, CNN)
        assert next(each.module for each in found.operations if isinstance(each, Activation)) is model.relu
    model.relu = nn.Softmax(dim=1)
    assert isinstance(parse(model, IMAGES), Unsupported)


def test_parsing_changes_nothing() -> None:
    model, before = Net(), torch.get_rng_state()
    state = {name: p.clone() for name, p in model.state_dict().items()}
    parse(model, SHAPE)
    assert torch.equal(before, torch.get_rng_state())
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(p, state[name]) for name, p in model.state_dict().items())
    assert {name for name, _ in model.named_modules()} == {"", "out", "hidden", "relu"}


@pytest.mark.parametrize("name", ["functional", "a class", "named layers"])
def test_relu_is_replaced_however_it_is_written(name: str) -> None:
    equal = MLPS[name]
    theirs, ours = equal.params()
    replaced = replace_relu(equal.theirs, nn.Softplus())
    assert {n for n, _ in replaced.named_parameters()} == {n for n, _ in equal.theirs.named_parameters()}
    found = apply(replaced, theirs, records(SHAPE).x)
    hidden = [layer.out_features for layer in equal.ours.modules() if isinstance(layer, nn.Linear)][:-1]
    expected = apply(mlp(SHAPE, 10, hidden=hidden, activation=nn.Softplus), ours, records(SHAPE).x)
    torch.testing.assert_close(found, expected)


def test_relu_is_replaced_in_what_cannot_be_traced() -> None:
    model = nn.Sequential(REFUSED["a branch on values"][0], nn.ReLU())
    assert isinstance(replace_relu(model, nn.Softplus())[1], nn.Softplus)


@pytest.mark.parametrize("written", [Scaled, Doubled])
def test_numbers_in_the_forward_pass_normalise_as_buffers_do(written: type[nn.Module]) -> None:
    model = written().double()
    equal = normalized(nn.Sequential(nn.Flatten(), model.fc), (0.5,), (0.25,))
    structure, expected = (parse(each, SHAPE) for each in (model, equal))
    assert isinstance(structure, MLP)
    assert isinstance(expected, MLP)
    params, data = dict(model.state_dict()), records(SHAPE)
    of_equal = dict(equal.double().state_dict())
    torch.testing.assert_close(structure.inputs(params, data.x), expected.inputs(of_equal, data.x))
    assert isinstance(structure.record_norm, Normalisation)
    back = structure.record_norm.inverse(params, structure.record_norm(params, data.x))
    torch.testing.assert_close(back, data.x)
    engine = engine_for(model, Training(), SHAPE)
    assert isinstance(engine, MLPEngine)
    value = nn.functional.cross_entropy(model(data.x.clone()), data.y)
    found, theirs = engine.gradient(params, data.x, data.y), torch.autograd.grad(value, list(model.parameters()))
    torch.testing.assert_close(list(found.values()), list(theirs))


class Counting(nn.Module):
    """Counts its calls, keeps what it saw, and normalises its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("mean", torch.full((4,), 0.3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        self.calls += 1
        x -= self.mean
        self.last = x
        return self.head(x)


def test_a_forward_pass_that_counts_its_calls_is_parsed_and_leaves_the_model_as_it_was() -> None:
    model = Counting().eval()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    structure = parse(model, (4,))
    assert isinstance(structure, MLP)
    assert structure.record_norm or structure.flat_norm
    assert not hasattr(model, "last")
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_records_stay_as_they_are_where_a_forward_pass_overwrites_its_input() -> None:
    model, x = Counting().eval(), torch.rand(6, 4)
    given, params = x.clone(), dict(model.state_dict())
    expected = model(x.clone()).detach()
    torch.testing.assert_close(apply(model, params, given).detach(), expected)
    torch.testing.assert_close(given, x, rtol=0, atol=0)
    leaf = x.clone().requires_grad_()
    apply(model, params, leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, model.head.weight.sum(0).expand(6, 4))
    batch = nn.Sequential(Counting(), nn.BatchNorm1d(3))
    apply_to_batch(batch, dict(batch.state_dict()), given)
    torch.testing.assert_close(given, x, rtol=0, atol=0)
