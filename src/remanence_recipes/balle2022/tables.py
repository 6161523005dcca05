"""The tables and figures of the paper on MNIST that are one attack after the other."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import nn

from remanence.attacks import GLM, Fitting
from remanence.data import Split
from remanence.engine import train
from remanence.experiments import Claim, Experiment, Measure, Measurement, Outcome, Point, Scale
from remanence.metrics import MAE_MSE, MSE
from remanence.metrics.statistics import binomial_proportion
from remanence.models import apply, initial_params, mlp
from remanence.training import DPGD, SGD, RMSProp, Training
from remanence.training.dp import noise_for
from remanence.types import Data, Params
from remanence_recipes.balle2022.informed import OURS, PAPERS, SIZES, cell, cut, for_shadows, net, reduced, training

TABLE_3: dict[str, tuple[Callable[[], nn.Module], float]] = {  # the activation and the printed mean MSE
    "ReLU": (nn.ReLU, 0.0182),
    "max(-0.5, x)": (partial(nn.Threshold, -0.5, -0.5), 0.0096),
    "ELU": (nn.ELU, 0.0089),
    "Sigmoid": (nn.Sigmoid, 0.0085),
    "Softplus": (nn.Softplus, 0.0083),
    "Swish": (nn.SiLU, 0.0091),
    "LeakyReLU": (nn.LeakyReLU, 0.0092),
    "Tanh": (nn.Tanh, 0.0086),
    "CELU": (nn.CELU, 0.0077),
    "SELU": (nn.SELU, 0.0083),
    "GELU": (partial(nn.GELU, approximate="tanh"), 0.0088),
    "Identity": (nn.Identity, 0.0085),
}
NOTEBOOK = replace(
    PAPERS,
    fitting=replace(PAPERS.fitting, optimizer=RMSProp(lr=3e-4), batch_size=32, epochs=200, tf32=False),
)


def mnist(scale: Scale) -> Sequence[Experiment]:
    """Table III, ELU: one unknown MNIST image, read off the weights; our reconstructor and the paper's own."""
    ours = cell("our reconstructor", scale, claims=(_table_3("ELU", target=0.0065),))
    papers = reduced(PAPERS, scale)
    return [ours, replace(ours, label="the paper's reconstructor", attack=papers, claims=(_table_3("ELU"),))]


def table3(scale: Scale) -> Sequence[Experiment]:
    """Table III: the twelve activations."""
    names = ("ReLU", "ELU") if scale == "smoke" else TABLE_3
    return [
        cell(
            name,
            scale,
            model=net(TABLE_3[name][0]),
            point=Point(axis="activation", value=name),
            claims=(_table_3(name, target=TABLE_3[name][1]),),
        )
        for name in names
    ]


def _table_3(activation: str, *, target: float | None = None) -> Claim:
    return Claim.mean(MSE, printed=TABLE_3[activation][1], target=target, where=f"table III, {activation}")


def settings(scale: Scale) -> Sequence[Experiment]:
    """What the paper leaves open about its reconstructor: schedule, clipping, stopping, width; and our gates."""
    ours = Fitting(epochs=100)
    three = replace(PAPERS, features=OURS.features, fitting=replace(ours, optimizer=PAPERS.fitting.optimizer))
    tried = {
        "the paper's": PAPERS,
        "its rate lowered to zero": replace(PAPERS, fitting=replace(PAPERS.fitting, cosine=True)),
        "its inputs clipped": replace(PAPERS, features=OURS.features),
        "stopped by held-out shadows": replace(PAPERS, fitting=replace(PAPERS.fitting, validation_fraction=0.05)),
        "all three": three,
        "all three, wider, AdamW": replace(three, hidden=(2000, 2000), fitting=ours),
        "all three, AdamW, gated": replace(OURS, hidden=(1000, 1000)),
    }
    first = cell("", scale)
    axis = "reconstructor"
    return [
        replace(first, label=name, attack=reduced(attack, scale), point=Point(axis=axis, value=name))
        for name, attack in tried.items()
    ]


def notebook(scale: Scale) -> Sequence[Experiment]:
    """The authors' released MNIST notebook: 1,000 fixed images, 10,000 shadows, rate 0.1."""
    sizes = {"small": SIZES["small"], "smoke": SIZES["smoke"], "full": (1000, 1000, 10_000, 1000)}[scale]
    claim = Claim.mean(MAE_MSE, printed=0.0583, target=0.0583, where="the notebook, expected test loss")
    first = cell(
        "the notebook's reconstructor",
        scale,
        split=partial(cut, scale, sizes=sizes),
        training=training(scale, optimizer=SGD(lr=0.1, momentum=0.9), tf32=False),
        attack=reduced(NOTEBOOK, scale),
        claims=(claim,),
        tuned_on_truth=False,
    )
    ours = reduced(OURS, scale)
    return [first, replace(first, label="our reconstructor", attack=ours, tuned_on_truth=True)]


def shadows(scale: Scale) -> Sequence[Experiment]:
    """How many shadow models the attack needs."""
    private, fixed, public, test = SIZES[scale]
    counts = {"smoke": (50, 100), "small": (250, 500, 1000, 2000), "full": (1000, 3000, 10_000, 30_000, 58_000)}[scale]
    return [
        cell(
            f"{count:,} shadow models",
            scale,
            split=partial(cut, scale, sizes=(private, fixed, count, test)),
            attack=for_shadows(reduced(OURS, scale), count, of=public),
            point=Point(axis="shadow models", value=count, log=True),
        )
        for count in counts
    ]


def figure13_gallery(scale: Scale) -> Sequence[Experiment]:
    """Figure 13: the best and the worst reconstructions of MNIST; the page's gallery."""
    return [cell("best and worst", scale)]


def figure15_epochs(scale: Scale) -> Sequence[Experiment]:
    """Figure 15: the longer the released model was trained, the less can be read."""
    epochs = {"smoke": (5, 20), "small": (1, 50, 100, 200), "full": (1, 50, 100, 150, 200, 260)}[scale]
    return [
        cell(
            f"{count} epochs",
            scale,
            training=training(scale, epochs=count),
            point=Point(axis="epochs of the released model", value=count),
        )
        for count in epochs
    ]


def dp_mnist(scale: Scale) -> Sequence[Experiment]:
    """DP-GD on MNIST: what can still be read at each epsilon, under the limit that it sets."""
    epsilons = {
        "smoke": (1e3, 1e5),
        "small": (1e2, 1e3, 1e4, 1e6),
        "full": (1.0, 10.0, 100.0, 1e3, 1e4),
    }[scale]
    return private_cells(cell("no privacy", scale), epsilons, clip=1.0)


def private_cells(usual: Experiment, epsilons: Sequence[float], *, clip: float) -> Sequence[Experiment]:
    """A cell without privacy, one that clips only, and one for each epsilon at delta = 1e-5."""

    assert usual.victims
    ordinary = usual.victims.training

    def private(noise: float) -> Training:
        return replace(ordinary, privacy=DPGD(clip=clip, noise=noise))

    def noisy(epsilon: float) -> Experiment:
        noise = noise_for(epsilon, steps=ordinary.epochs)
        point = Point(axis="epsilon", value=epsilon, log=True)
        return replace(usual.with_victims(training=private(noise)), label=f"epsilon {epsilon:g}", point=point)

    clipped = replace(usual.with_victims(training=private(0.0)), label="clipped, without noise")
    return [usual, clipped, *(noisy(epsilon) for epsilon in sorted(epsilons, reverse=True))]


def figure12_pretrained(scale: Scale) -> Sequence[Experiment]:
    """Figure 12: who first sees a model near convergence reads less than who knows its first weights."""
    sizes = {"smoke": (20, 100, 200, 500), "small": (200, 1000, 3000, 2000), "full": (1000, 10_000, 58_000, 1000)}[
        scale
    ]

    def parts(seed: int) -> tuple[Split, Data]:
        """As ever, and as many public records as fixed ones for the first training."""
        whole = cut(scale, seed, sizes=sizes)
        kept = len(whole.public) - len(whole.fixed)
        return replace(whole, public=whole.public.take(slice(0, kept))), whole.public.take(slice(kept, None))

    @cache
    def trained(seed: int) -> Params:
        data = parts(seed)[1]
        model = net(nn.ELU)(data)
        before = Training(epochs=100 if scale == "smoke" else 1000, weight_decay=1e-3)  # without: overfits, below 92 %
        return train(before, model, initial_params(model, seed=seed), data, seed=seed)

    def checkpoint(_: nn.Module, seed: int) -> Params:
        return trained(seed)

    def accuracy(seed: int, _: torch.device) -> Outcome:
        test = parts(seed)[0].test
        right = apply(net(nn.ELU)(test), trained(seed), test.x).argmax(1) == test.y
        share, chance = binomial_proportion(int(right.sum()), len(test)), float(test.y.bincount().max()) / len(test)
        meaning = "share of held-out records that the checkpoint classifies rightly"
        return Outcome(measures=(Measure.from_interval("test accuracy", share, meaning=meaning, chance=chance),))

    claim = Claim(quantity="test accuracy", higher_is_better=True, target=0.92, where="figure 12, over 92 %")
    fresh = cell("from the first weights", scale, split=lambda seed: parts(seed)[0])
    about = "How good the model is from which training goes on."
    return [
        Experiment(
            label="the checkpoint",
            about=about,
            evaluations=(Measurement(measure=accuracy),),
            claims=(claim,) if scale == "full" else (),
        ),
        replace(fresh, point=Point(axis="start", value="first weights")),
        replace(
            fresh.with_victims(initial=checkpoint),
            label="near convergence",
            point=Point(axis="start", value="near convergence"),
        ),
    ]


def glm(scale: Scale) -> Sequence[Experiment]:
    """Convex models: one unknown record of a linear classifier, in closed form."""
    sizes = {"smoke": (20, 100, 0, 500), "small": (100, 1000, 0, 2000), "full": (1000, 10_000, 0, 1000)}[scale]
    converged = Training(
        optimizer=SGD(lr=0.5, momentum=0.95), epochs=600 if scale == "smoke" else 2000, weight_decay=0.01
    )
    return [
        cell(
            "linear classifier",
            scale,
            split=partial(cut, scale, sizes=sizes),
            model=lambda data: mlp(data.shape, data.num_classes, hidden=()),
            training=converged,
            attack=GLM(),
            tuned_on_truth=False,
        )
    ]
