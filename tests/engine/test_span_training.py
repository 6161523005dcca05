"""Training in the span of the records against the plain loop."""

from dataclasses import replace

import pytest
import torch
from refusals import refused

from remanence import SGD, CrossEntropy, Data, Logistic, Training
from remanence.data import Split
from remanence.engine import train
from remanence.engine.span import SpanTraining
from remanence.models import centred_mlp, torch_params
from remanence.training import KnownLoss
from remanence.types import Params

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
HIDDEN = (16, 12)


def some(parts: Split, loss: KnownLoss, first: int, device: str) -> tuple[Data, Params]:
    """Twelve records, and initial weights that subtract their mean."""
    data = parts.fixed.take(slice(first, first + 12)).to(device, torch.float64)
    if isinstance(loss, Logistic):
        data = replace(data, y=data.y % 2, num_classes=2)
    params = torch_params(model_of(data, loss), seed=first)
    return data, {name: p.to(data.x) for name, p in params.items()} | {"1.mean": data.x.mean(0).flatten()}


def model_of(data: Data, loss: KnownLoss) -> torch.nn.Sequential:
    return centred_mlp(data.shape, 1 if isinstance(loss, Logistic) else data.num_classes, hidden=HIDDEN)


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic()], ids=repr)
@pytest.mark.parametrize("device", DEVICES)
def test_gives_the_weights_of_the_plain_loop(
    parts: Split, loss: KnownLoss, decay: float, models: int, device: str
) -> None:
    training = Training(optimizer=SGD(lr=0.25), epochs=67, weight_decay=decay, loss=loss)
    each = [some(parts, loss, 12 * k, device) for k in range(models)]
    model, data = model_of(each[0][0], loss), [data for data, _ in each]
    ours = SpanTraining(training, model, [initial for _, initial in each], data)
    ours.advance(41)
    resumed = SpanTraining(training, model, [initial for _, initial in each], data)
    resumed.load({name: value.clone() for name, value in ours.state.items()}, ours.done)
    resumed.advance(26)
    for (records, initial), found in zip(each, resumed.weights(), strict=True):
        expected = train(training, model, initial, records)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11)
            assert name == "1.mean" or not torch.equal(value, initial[name])


def test_refuses_other_trainings(parts: Split) -> None:
    data, initial = some(parts, CrossEntropy(), 0, "cpu")
    with refused("unsupported-training", "training"):
        SpanTraining(Training(optimizer=SGD(lr=0.1, momentum=0.9)), model_of(data, CrossEntropy()), [initial], [data])
