"""Figure 11: a reconstructor that was trained for one fixed set, on models of another one.

Another fixed set moves the mean of the weights by far more than one record moves a model. Who knows that set can train
one model on it alone, without any shadow model: standardised about that one, the reconstructor transfers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from remanence.attacks import FittedRecoNN, RecoNN
from remanence.engine import precision, train
from remanence.experiments import Budget, Experiment, Measure, Outcome, Scale, Trial
from remanence.metrics import MSE, Interval
from remanence.metrics.nulls import nearest_neighbour
from remanence.metrics.statistics import bootstrap_mean
from remanence.shadow import build_bank, stack_weights
from remanence.types import concat
from remanence_recipes.balle2022.on_cifar10 import cifar10, cifar10_victims
from remanence_recipes.balle2022.on_mnist import equal_steps, informed, mnist_split
from remanence_recipes.curves import figure_along, measures_along

ABOUT = (
    "The error of a reconstructor that was trained for another fixed set: as it is, re-centred on one model that was "
    "trained on the new set alone, and fine-tuned on a few shadow models of it."
)


def figure11_transfer(scale: Scale) -> Sequence[Experiment]:
    """Figure 11: a reconstructor trained for one fixed set, applied to another as it is, re-centred, fine-tuned."""
    counts = {"smoke": (10, 20), "small": (10, 100, 300), "full": (10, 100, 1000, 2000, 4000)}[scale]
    public = {"smoke": 240, "small": 3000, "full": 58_000}[scale]
    usual = informed(scale, "transfer", split=mnist_split(scale, public=public))
    budget = Budget(shadows=(44_000, 49_000)) if scale == "full" else None
    return [replace(usual, about=ABOUT, evaluations=(partial(_transfer, counts),), budget=budget)]


def figure11_cifar10(scale: Scale) -> Sequence[Experiment]:
    """Figure 11 on CIFAR-10: the same for a convolutional network, with fewer fixed records and shadow models."""
    counts = {"smoke": (10, 20), "small": (10, 100), "full": (10, 100)}[scale]
    sizes: Mapping[str, int] = {
        "smoke": {"public": 200},
        "small": {"public": 1000},
        "full": {"private": 140, "fixed": 1000, "public": 1660},  # 560 shadow models of the old fixed set
    }[scale]
    budget = Budget(shadows=(560, 49_000), victims=(140, 1000), records=(1000, 5000))
    return [
        replace(
            cifar10(scale)[0],
            label="transfer",
            about=ABOUT,
            victims=cifar10_victims(scale, activation=nn.ELU, **sizes),
            evaluations=(partial(_transfer, counts),),
            claims=(),
            budget=budget if scale == "full" else None,
        )
    ]


def _transfer(counts: Sequence[int], trial: Trial) -> Outcome:
    """Evaluation: mean MSE of a transferred reconstructor over the number of shadow models it is fine-tuned on."""
    attack, parts, seed = trial.attack, trial.victims.split, trial.seed
    assert isinstance(attack, RecoNN)
    releases, size = [case.release for case in trial.victims.cases], len(parts.fixed)
    source, public = parts.public.take(slice(0, size)), parts.public.take(slice(size, None))
    few, many = public.take(slice(0, max(counts))), public.take(slice(max(counts), None))
    trained = attack.fit(build_bank(replace(releases[0], fixed=source), many, seed=seed), seed=seed)
    bank = build_bank(releases[0], few, seed=seed)

    def error(fitted: FittedRecoNN) -> Interval:
        found = torch.cat([fitted.run(release, seed=seed).x for release in releases])
        return bootstrap_mean(MSE.paired(found, parts.private.x), seed=seed)

    features = trained.features.recentred(_without_target(trial), clip=attack.features.clip)
    unrefined = {"as it is": error(trained), "re-centred, 0 shadows": error(replace(trained, features=features))}
    lines: dict[str, list[Interval]] = {"refined": [], "from nothing": []}
    for count in counts:
        part = replace(bank, weights=bank.weights[:count], targets=bank.targets.take(slice(0, count)))
        same = equal_steps(attack, count, reference=len(many))
        lines["refined"].append(error(same.refine(trained, part, seed=seed)))
        lines["from nothing"].append(error(same.fit(part, seed=seed)))
    _, null = nearest_neighbour(parts.private, concat([public, source, parts.fixed]), (MSE,))
    chance = float(null.values[MSE.name].mean())
    meaning = "mean MSE over the targets; chance is the nearest record that the attacker owns"
    points = [f"{count:,} shadows" for count in counts]
    labels, levels = ("shadow models of that set", "mean MSE"), {"nearest neighbour": [chance] * len(counts)}
    figure = figure_along("Error on another fixed set", labels, lines, counts, levels, log_x=True)
    return Outcome(
        measures=(
            *(Measure.from_interval(name, e, meaning=meaning, chance=chance) for name, e in unrefined.items()),
            *measures_along(lines, points, meaning=meaning, chance=[chance] * len(counts)),
        ),
        figures=(figure,),
    )


def _without_target(trial: Trial) -> Tensor:
    """(parameters,): the weights of one model that was trained on the fixed records alone.

    In float32: TF32 rounds off more of a convolutional network than one record changes (decision 0009).
    """
    victims = trial.victims
    with precision(tf32=False):
        final = train(victims.victims.training, victims.model, victims.initial, victims.split.fixed, seed=trial.seed)
    return stack_weights({name: p[None] for name, p in final.items()})[0]
