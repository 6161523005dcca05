"""Gradient matching on three architectures, and on updates of several local steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import nn
from torch.nn.functional import interpolate

from remanence.attacks import L2, LBFGS, GradientMatching, Search, with_search
from remanence.data import Split, load, split
from remanence.experiments import Experiment, Point, Reconstructed, Scale, Victims
from remanence.metrics import MSE, PSNR, SSIM
from remanence.models import cnn, mlp, resnet, resnet18
from remanence.releases import Case, Gradient, Victim, gradient_at_initial, local_update
from remanence.training import SGD, Training
from remanence.types import Data

RECORDS = 4  # of a batch
NEWTON = GradientMatching(distance=L2(), prior=None, search=Search(optimizer=LBFGS(), steps=1000))


def architectures(scale: Scale) -> Sequence[Experiment]:
    """Gradient matching on an MLP, a CNN and a ResNet with frozen BatchNorm, by Adam and by L-BFGS."""
    steps = {"smoke": 8, "small": 300, "full": 2000}[scale]
    ways = {"L-BFGS": with_search(NEWTON, steps=steps)}
    if scale != "smoke":
        ways["Adam"] = with_search(GradientMatching(), steps=steps, restarts=1)
    victims = {
        name: Victims(
            split=partial(_cut, scale),
            model=net,
            training=Training(epochs=0),
            reveal=gradient_at_initial,
            per_victim=RECORDS,
        )
        for name, net in _nets(scale).items()
    }
    return [
        Experiment(
            label=f"{name}, {way}",
            victims=victims[name],
            attack=attack,
            tuned_on_truth=way == "Adam",  # its rate and prior: on digits
            point=Point(axis="architecture", value=name, series=way),
            evaluations=(Reconstructed(metrics=(SSIM, MSE, PSNR)),),
        )
        for name in victims
        for way, attack in ways.items()
    ]


def _nets(scale: Scale) -> dict[str, Callable[[Data], nn.Module]]:
    """At paper scale ResNet-18, below it one of three blocks."""
    hidden, width = (64, 2) if scale == "smoke" else (256, 16)

    def residual(data: Data) -> nn.Module:
        if scale == "full":
            return resnet18(data.shape, data.num_classes)
        return resnet(data.shape, data.num_classes, blocks=(1, 1, 1), width=width)

    return {
        "MLP": lambda data: mlp(data.shape, data.num_classes, hidden=(hidden,)),
        "CNN": lambda data: cnn(data.shape, data.num_classes),
        "ResNet": residual,
    }


def local_steps(scale: Scale) -> Sequence[Experiment]:
    """Federated averaging: updates of several local steps, simulated by the attack, or taken for one gradient."""
    counts = {"smoke": (3,), "small": (1, 2, 5, 10), "full": (1, 2, 5, 10, 20, 50)}[scale]
    attack = with_search(
        NEWTON, steps={"smoke": 50, "small": 150, "full": 400}[scale], restarts=1 if scale == "smoke" else 2
    )
    ways = {"simulated": local_update, "taken for one gradient": _taken_for_a_gradient}
    cut = partial(_cut, scale)
    return [
        Experiment(
            label=f"{steps} local steps, {way}",
            victims=Victims(
                split=cut,
                model=_nets(scale)["MLP"],
                training=Training(optimizer=SGD(lr=0.1), epochs=steps),
                reveal=reveal,
                per_victim=RECORDS,
            ),
            attack=attack,
            tuned_on_truth=True,  # the two restarts, and the exchange of labels: after a look at batches of seed 0
            point=Point(axis="local steps", value=steps, series=way, log=True),
            evaluations=(Reconstructed(metrics=(SSIM, MSE, PSNR)),),
        )
        for steps in counts
        for way, reveal in ways.items()
    ]


def _taken_for_a_gradient(victim: Victim) -> Case[Gradient]:
    """The same update, shown to a server that does not know of the local steps."""
    case = local_update(victim)
    sent = case.release
    release = Gradient(
        model=sent.model,
        at=sent.at,
        gradient=sent.sent,
        labels=None,
        batch_size=sent.batch_size,
        shape=sent.shape,
        loss=sent.loss,
    )
    return Case(release=release, truth=case.truth)


def _cut(scale: Scale, seed: int) -> Split:
    batches = {"smoke": 1, "small": 2, "full": 25}[scale]
    if scale == "full":
        data = load("cifar10", part="test")
    else:
        digits = load("digits")
        data = replace(digits, x=interpolate(digits.x, size=(12, 12)))  # large enough for two convolutions
    return split(data, private=batches * RECORDS, fixed=0, public=0, test=1000, seed=seed)
