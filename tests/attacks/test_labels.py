"""Labels from the last bias: how many of each class."""

import dataclasses

import pytest
import torch
from gradients import honest
from refusals import refused
from torch import Tensor, nn

from remanence import SGD, Data, Gradient, Training, Victim, train_victim
from remanence.attacks import infer_labels
from remanence.data import Split
from remanence.engine import loss_gradient
from remanence.models import initial_params, mlp
from remanence.releases import gradient_at_final, gradient_at_initial, local_update
from remanence.training import CrossEntropy, Logistic


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [0, 20, 60])
def test_the_label_of_one_record_is_exact_however_long_the_model_was_trained(parts: Split, epochs: int) -> None:
    model = mlp(parts.fixed.shape, 10, hidden=(64,))
    initial = initial_params(model, seed=0)
    for k in range(10):
        record = parts.public.take(slice(k, k + 1))
        made = train_victim(model, Training(epochs=epochs), initial, parts.fixed, record, seed=0)
        noise = torch.rand(16, *record.shape, generator=torch.Generator().manual_seed(k))
        assert infer_labels(gradient_at_final(made).release, noise).tolist() == record.y.tolist()


def test_every_class_with_a_negative_entry_is_taken(parts: Split) -> None:
    """At trained weights, where the softmax of noise is far from that of the batch."""
    model = mlp(parts.fixed.shape, 10, hidden=(64,))
    made = train_victim(model, Training(), initial_params(model, seed=0), parts.fixed, parts.private, seed=0)
    batch = dataclasses.replace(made, private=parts.public.take(slice(0, 6)))
    release = gradient_at_final(batch).release
    certain = {label for label, entry in enumerate(release.gradient["3.bias"].tolist()) if entry < 0}
    inferred = infer_labels(release, torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert certain <= set(batch.private.y.tolist())  # the rule itself
    assert certain <= set(inferred.tolist())


def test_labels_are_exact_for_any_batch_once_the_mean_softmax_is(parts: Split) -> None:
    """bias gradient = mean softmax - frequencies: with the true images in hand the counts have no error left."""
    batch = parts.public.take(slice(0, 30))  # every class several times
    assert infer_labels(honest(batch, nn.ELU), batch.x).tolist() == sorted(batch.y.tolist())


@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("count", [1, 4, 30])
def test_classes_of_one_output_are_counted(parts: Split, count: int, squeezed: bool) -> None:
    """Under a logistic loss: bias gradient = mean sigmoid - fraction of class 1, one record's label is its sign, and
    after local steps counts follow from simulated ones."""
    records = parts.public.take(slice(3, 3 + count))
    batch = dataclasses.replace(records, y=records.y % 2, num_classes=2)
    model: nn.Module = mlp(batch.shape, 1, hidden=(64,))
    model = nn.Sequential(*model, nn.Flatten(0)) if squeezed else model
    initial, training = initial_params(model, seed=0), Training(epochs=3, optimizer=SGD(lr=0.1), loss=Logistic())
    client = Victim(
        model=model, training=training, initial=initial, final=initial, fixed=batch.take(slice(0, 0)), private=batch
    )
    for reveal in (gradient_at_initial, local_update):
        assert infer_labels(reveal(client).release, batch.x).tolist() == sorted(batch.y.tolist())
    noise = torch.rand(256, *batch.shape, generator=torch.Generator().manual_seed(0))
    wrong = infer_labels(gradient_at_initial(client).release, noise).bincount(minlength=2) - batch.y.bincount(
        minlength=2
    )
    assert int(wrong.abs().max()) <= count // 10


@pytest.mark.parametrize("epochs", [0, 30])
@pytest.mark.parametrize("count", [1, 4, 30])
@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_smoothed_labels_are_counted(parts: Split, smoothing: float, count: int, epochs: int) -> None:
    """bias gradient = mean softmax - (1 - s) frequencies - s / C: an entry below -s / C is of a class in the batch,
    below zero it may be of any."""
    model, batch = mlp(parts.fixed.shape, 10, hidden=(64,)), parts.public.take(slice(0, count))
    training = Training(epochs=epochs, loss=CrossEntropy(label_smoothing=smoothing))
    made = train_victim(model, training, initial_params(model, seed=0), parts.fixed, parts.private, seed=0)
    release = gradient_at_final(dataclasses.replace(made, private=batch)).release
    below = {label for label, entry in enumerate(release.gradient["3.bias"].tolist()) if entry < -smoothing / 10 - 1e-6}
    assert below <= set(batch.y.tolist())
    assert infer_labels(release, batch.x).tolist() == sorted(batch.y.tolist())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_labels_are_inferred_in_half_precision(digits: Data, dtype: torch.dtype, scale: float) -> None:
    """By the bias of the output, not that of a hidden layer as wide, also where logits are large."""
    batch = digits.take(slice(0, 4))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 10))
    at = {name: p.to(dtype) for name, p in initial_params(model, seed=0).items()}
    at["3.weight"] *= scale
    loss = CrossEntropy()
    release = Gradient(
        model=model,
        at=at,
        gradient=loss_gradient(model, at, batch.x.to(dtype), batch.y, loss=loss),
        labels=None,
        batch_size=4,
        shape=batch.shape,
        loss=loss,
    )
    assert infer_labels(release, batch.x).tolist() == sorted(batch.y.tolist())


@pytest.mark.parametrize("labels", [[3] * 8, [3, 3, 3, 3, 3, 7, 7, 0], list(range(8)), [9]], ids=str)
def test_repeated_labels_are_counted_at_fresh_weights(digits: Data, labels: list[int]) -> None:
    places = [int((digits.y == label).nonzero()[i]) for i, label in enumerate(labels)]
    noise = torch.rand(256, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert infer_labels(honest(digits.take(places), nn.ELU), noise).tolist() == sorted(labels)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("steps", [1, 5, 10])
@pytest.mark.parametrize("labels", [[5, 5, 5, 6, 7, 7], [0, 1, 2, 3]], ids=str)
def test_labels_are_followed_along_local_steps(digits: Data, labels: list[int], steps: int, momentum: float) -> None:
    """After ten steps the shares that are read off the weights at the start are far from integers."""
    places = [int((digits.y == label).nonzero()[i]) for i, label in enumerate(labels)]
    batch = digits.take(places)
    model = mlp(batch.shape, 10, hidden=(64,))
    training, initial = Training(optimizer=SGD(lr=0.1, momentum=momentum), epochs=steps), initial_params(model, seed=0)
    made = Victim(model=model, training=training, initial=initial, final=initial, fixed=batch, private=batch)
    noise = torch.rand(256, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert infer_labels(local_update(made).release, noise).tolist() == labels


class HeadFirst(nn.Module):
    """Parameters in another order than that of their use, a hidden layer as wide as the logits, log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.hidden = nn.Linear(10, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(x.flatten(1)))).log_softmax(1)


def test_the_output_bias_is_found_wherever_the_network_holds_it(digits: Data) -> None:
    batch = digits.take(slice(0, 8))
    with torch.device("meta"):
        model = HeadFirst()
    initial = initial_params(model, seed=0)
    made = Victim(model=model, training=Training(), initial=initial, final=initial, fixed=batch, private=batch)
    noise = torch.rand(256, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert infer_labels(gradient_at_final(made).release, noise).tolist() == sorted(batch.y.tolist())


def test_says_what_it_needs(digits: Data) -> None:
    release = honest(digits.take(slice(0, 2)), nn.ELU)
    with refused("not-enough-knowledge", "batch_size"):
        infer_labels(dataclasses.replace(release, batch_size=None), digits.x[:5])
