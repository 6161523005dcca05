"""Figure 16: parameters to which a record gives no gradient at all cannot store it."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vmap

from remanence.engine import loss_gradient
from remanence.experiments import Claim, Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import cnn, initial_params
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.types import Params, concat
from remanence_recipes.balle2022.cifar import cut, victims_training


def figure16_zero_gradients(scale: Scale) -> Sequence[Experiment]:
    """Figure 16: the share of each layer's weights to which a record gives exactly no gradient, epoch by epoch."""
    about = "The share of a layer's weights whose gradient for a record is exactly zero: they cannot store it."
    claim = Claim(
        quantity="convolutions, last epoch", higher_is_better=True, printed=0.8, where="figure 16, ReLU: over 80 %"
    )
    return [
        Experiment(
            label="ReLU",
            about=about,
            evaluations=(Measurement(measure=partial(_zeros, scale, nn.ReLU)),),
            claims=(claim,),
        ),
        Experiment(label="ELU", about=about, evaluations=(Measurement(measure=partial(_zeros, scale, nn.ELU)),)),
    ]


def _zeros(scale: Scale, activation: Callable[[], nn.Module], seed: int, device: torch.device) -> Outcome:
    """One model on all records, and the gradients that each of some records gives it before every step."""
    parts, training = cut(scale, seed), victims_training(scale)
    fixed, targets = parts.fixed.to(device), parts.private.take(slice(0, 20)).to(device)
    model = cnn(fixed.shape, fixed.num_classes, activation=activation)
    data, epochs = concat([fixed, targets]), []
    single = vmap(partial(loss_gradient, model, loss=training.loss), in_dims=(None, 0, 0))

    def gradient(params: Params, _: Tensor | None) -> Params:
        each = single(params, targets.x[:, None], targets.y[:, None])
        epochs.append({name: (g == 0).flatten(1).double().mean(1).cpu() for name, g in each.items()})
        return loss_gradient(model, params, data.x, data.y, loss=training.loss)

    initial = {name: p.to(fixed.x) for name, p in initial_params(model, seed=seed).items()}
    steps = track(training.batches(len(data), seed), total=training.epochs, label="epochs")
    training.descend(gradient, initial, steps, records=len(data), noise_seed=0)
    return _outcome(epochs, [name for name in initial if name.endswith("weight")], seed)


def _outcome(epochs: list[dict[str, Tensor]], layers: list[str], seed: int) -> Outcome:
    last = bootstrap_mean(
        torch.stack([epochs[-1][name] for name in layers[:2]]).mean(0), seed=derive_seed(seed, "zeros")
    )
    titles = dict(zip(layers, ("first convolution", "second convolution", "linear", "logits"), strict=True))
    measure = Measure.from_interval(
        "convolutions, last epoch",
        last,
        meaning="mean over the records of the share of exact zeros in the gradients of both convolutions",
    )
    series = tuple(
        Series(
            name=titles[name],
            x=tuple(float(i + 1) for i in range(len(epochs))),
            y=tuple(float(epoch[name].mean()) for epoch in epochs),
        )
        for name in layers
    )
    figure = Figure(title="Weights without a gradient", x_label="epoch", y_label="share of exact zeros", series=series)
    return Outcome(measures=(measure,), figures=(figure,))
