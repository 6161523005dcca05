"""RecoNN on MNIST: which settings of the reconstructor matter, and how many shadow models it needs."""

from collections.abc import Sequence
from dataclasses import replace

from remanence.attacks import Fitting
from remanence.experiments import Experiment, Scale, sweep
from remanence_recipes.balle2022.on_mnist import MNIST, OURS, PAPERS, equal_steps, informed, mnist_split, reduced


def reconn_settings(scale: Scale) -> Sequence[Experiment]:
    """What the paper leaves open about RecoNN: schedule, clipping, early stopping, width; and our gated head."""
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

    def vary(usual: Experiment, name: str) -> Experiment:
        return replace(usual, attack=reduced(tried[name], scale))

    return sweep(informed(scale, ""), "reconstructor", tried, vary, label="{value}")


def reconn_shadows(scale: Scale) -> Sequence[Experiment]:
    """How many shadow models RecoNN needs on MNIST."""
    counts = {"smoke": (50, 100), "small": (250, 500, 1000, 2000), "full": (1000, 3000, 10_000, 30_000, 58_000)}[scale]
    attack = reduced(OURS, scale)

    def vary(usual: Experiment, count: int) -> Experiment:
        fitted = equal_steps(attack, count, reference=MNIST[scale]["public"])
        return replace(usual.with_victims(split=mnist_split(scale, public=count)), attack=fitted, budget=None)

    return sweep(informed(scale, ""), "shadow models", counts, vary, label="{value:,} shadow models", log=True)
