"""The attack on MNIST: table III, figures 10, 12 and 15, the authors' notebook, and convex models."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy

from remanence.attacks import GLM, RecoNN
from remanence.data import Split, load, split
from remanence.engine import train
from remanence.experiments import (
    Budget,
    Claim,
    Experiment,
    Figure,
    Measure,
    Outcome,
    Point,
    Reconstructed,
    Scale,
    Series,
    Trial,
    Victims,
    sweep,
)
from remanence.experiments.evaluations import Accuracy
from remanence.metrics import MAE, MAE_MSE, MSE, PSNR, SSIM, identity
from remanence.metrics.statistics import auc, bootstrap_mean
from remanence.models import apply, initial_params, initial_stack, mlp
from remanence.releases import all_but_one, all_but_one_unknown_init, train_victims
from remanence.seeds import derive_seed
from remanence.training import DPGD, SGD, RMSProp, Training
from remanence.training.dp import noise_for
from remanence.types import Data, Params
from remanence_recipes.curves import proportion

# The setting on MNIST (table IV): 784-10-10, ELU, full batch, 100 epochs. The paper has 59,000 shadow models.
MNIST: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {"private": 20, "fixed": 100, "public": 100, "test": 500},
    "small": {"private": 200, "fixed": 1000, "public": 2000, "test": 2000},
    "full": {"private": 1000, "fixed": 10_000, "public": 58_000, "test": 1000},
}
OURS, PAPERS = RecoNN(), RecoNN.paper()
SCORES = Reconstructed(matching=identity, metrics=(MSE, MAE, MAE_MSE, PSNR, SSIM))


def informed(
    scale: Scale, label: str, *, attack: RecoNN = OURS, claims: tuple[Claim, ...] = (), **victims: Any
) -> Experiment:
    """RecoNN against 784-10-10 on MNIST, one victim for each private record; `victims` are fields of `Victims`."""
    usual = Victims(
        split=mnist_split(scale),
        model=mlp_with(nn.ELU),
        training=mnist_training(scale),
        reveal=all_but_one,
        per_victim=1,
    )
    return Experiment(
        label=label,
        victims=replace(usual, **victims),
        attack=reduced(attack, scale),
        evaluations=(SCORES,),
        claims=claims,
        budget=Budget(shadows=(58_000, 59_000)) if scale == "full" else None,
        tuned_on_truth=True,  # gates, clipping, cosine schedule and AdamW were chosen by the error on MNIST targets
    )


def mnist_split(scale: Scale, **sizes: int) -> Callable[[int], Split]:
    """The split of MNIST, or of the digits, by a seed; `sizes` replace those of the scale."""
    counts = {**MNIST[scale], **sizes}
    return lambda seed: split(load("digits" if scale == "smoke" else "mnist"), **counts, seed=seed)


def mlp_with(activation: Callable[[], nn.Module]) -> Callable[[Data], nn.Module]:
    return lambda data: mlp(data.shape, data.num_classes, activation=activation)


def mnist_training(scale: Scale, **changes: Any) -> Training:
    return replace(Training(epochs=20 if scale == "smoke" else 100, tf32=scale == "full"), **changes)


def reduced(attack: RecoNN, scale: Scale) -> RecoNN:
    """A smaller reconstructor for digits; for a laptop's 2,000 shadow models ours is narrower."""
    if scale == "smoke":
        return replace(attack, hidden=(100, 100), fitting=replace(attack.fitting, epochs=60, batch_size=16))
    return replace(attack, hidden=(300, 300)) if scale == "small" and attack.head == "gated" else attack


def equal_steps(attack: RecoNN, shadows: int, *, reference: int) -> RecoNN:
    """As many steps on `shadows` models as `attack` takes on `reference` models, up to twenty times its epochs."""
    epochs = attack.fitting.epochs
    scaled = min(20 * epochs, round(epochs * reference / shadows))
    return replace(attack, fitting=replace(attack.fitting, epochs=scaled))


# Convex models


def glm(scale: Scale) -> Sequence[Experiment]:
    """Convex models: one unknown record of a linear classifier, reconstructed in closed form."""
    private = {"smoke": 20, "small": 100, "full": 1000}[scale]
    usual = informed(
        scale,
        "linear classifier",
        split=mnist_split(scale, private=private, public=0),
        model=lambda data: mlp(data.shape, data.num_classes, hidden=()),
        training=Training(
            optimizer=SGD(lr=0.5, momentum=0.95), epochs=600 if scale == "smoke" else 2000, weight_decay=0.01
        ),
    )
    return [replace(usual, attack=GLM(), budget=None, tuned_on_truth=False)]


# Table III

TABLE_3: Mapping[str, tuple[Callable[[], nn.Module], float]] = {  # the activation and the printed mean MSE
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


def table_3(activation: str, *, target: float | None = None) -> tuple[Claim]:
    printed = TABLE_3[activation][1]
    return (Claim.mean(MSE, printed=printed, target=target, where=f"table III, {activation}"),)


def mnist(scale: Scale) -> Sequence[Experiment]:
    """Table III, ELU: one unknown MNIST image reconstructed from the weights, by our reconstructor and the paper's."""
    ours = informed(scale, "our reconstructor", claims=table_3("ELU", target=0.0065))
    papers = reduced(PAPERS, scale)
    return [ours, replace(ours, label="the paper's reconstructor", attack=papers, claims=table_3("ELU"))]


OPTAX = replace(PAPERS, fitting=replace(PAPERS.fitting, optimizer=RMSProp(lr=1e-3, eps_in_root=True)))
PUBLISHED = {"the paper's reconstructor": PAPERS, "the paper's, epsilon in the root": OPTAX}  # torch's RMSProp, optax's


def table3(scale: Scale) -> Sequence[Experiment]:
    """Table III: twelve activations of the released model, by our reconstructor and the paper's with both RMSProps."""
    experiments = []
    for name in ("ReLU", "ELU") if scale == "smoke" else TABLE_3:
        activation, printed = TABLE_3[name]
        ours = informed(scale, name, claims=table_3(name, target=printed), model=mlp_with(activation))
        experiments.append(replace(ours, point=Point(axis="activation", value=name, series="ours")))
        for series, attack in PUBLISHED.items():
            papers = replace(ours, label=f"{name}, {series}", attack=reduced(attack, scale), tuned_on_truth=False)
            point = Point(axis="activation", value=name, series=series)
            experiments.append(replace(papers, claims=table_3(name), point=point))
    return experiments


def notebook(scale: Scale) -> Sequence[Experiment]:
    """The authors' released MNIST notebook: 1,000 fixed images, 10,000 shadow models, learning rate 0.1."""
    fitting = replace(PAPERS.fitting, optimizer=RMSProp(lr=3e-4), batch_size=32, epochs=200, tf32=False)
    fixed = {"fixed": 1000} if scale == "full" else {}
    papers = informed(
        scale,
        "the notebook's reconstructor",
        attack=replace(PAPERS, fitting=fitting),
        claims=(Claim.mean(MAE_MSE, printed=0.0583, target=0.0583, where="the notebook, expected test loss"),),
        split=mnist_split(scale, **fixed, **({"public": 10_000} if scale == "full" else {})),
        training=mnist_training(scale, optimizer=SGD(lr=0.1, momentum=0.9), tf32=False),
    )
    papers = replace(papers, budget=None, tuned_on_truth=False)
    claim = Claim(quantity="test accuracy", higher_is_better=None, printed=0.85, where="the notebook, cell 9")
    accuracy = Experiment(
        label="accuracy",
        about="How good a model is that is trained on the notebook's fixed images and one other.",
        victims=papers.with_victims(split=mnist_split(scale, private=1, public=0, **fixed)).victims,
        evaluations=(Accuracy(),),
        claims=(claim,) if scale == "full" else (),
    )
    ours = replace(papers, label="our reconstructor", attack=reduced(OURS, scale), tuned_on_truth=True)
    return [papers, ours, accuracy]


# Figure 10: without the initial weights the attack fails

COMMON, DIFFERENT = "AUC, common start", "AUC, each its own start"


def figure10_membership(scale: Scale) -> Sequence[Experiment]:
    """Figure 10: with known initial weights the loss reveals membership of a record, with unknown ones hardly."""
    claims = (
        Claim(quantity=COMMON, higher_is_better=True, target=0.99, where="figure 10, separable"),
        Claim(quantity=DIFFERENT, higher_is_better=False, target=0.6, where="figure 10, overlapping"),
    )
    records, models = {"smoke": (10, 2), "small": (50, 4), "full": (100, 10)}[scale]
    unknown = informed(
        scale, "reconstruction, first weights unknown", reveal=all_but_one_unknown_init, init_per_victim=True
    )
    known = informed(
        scale,
        "",
        training=mnist_training(scale, tf32=False),  # one easy record changes its own loss little
        initial=lambda model, seed: initial_params(model, seed=derive_seed(seed, "start")),
    )
    membership = Experiment(
        label="membership",
        about="How well the loss on a record separates models trained with it from models trained with another.",
        victims=known.victims,
        evaluations=(partial(_membership, records, models),),
        claims=claims if scale == "full" else (),
    )
    return [membership, unknown]


def _membership(records: int, models: int, trial: Trial) -> Outcome:
    """Evaluation: AUC of the loss on a record as a test of membership, with common and different initial weights."""
    victims, parts, seed = trial.victims, trial.victims.split, trial.seed
    targets, others = parts.private.take(slice(0, records)), parts.public.take(slice(0, records * models))

    def losses(trained_on: Data, *, common: bool, purpose: str) -> Tensor:
        """(models, records): of models trained on the fixed records and one of `trained_on` each."""
        initial = victims.initial
        if not common:
            stack = initial_stack(victims.model, len(trained_on), seed=derive_seed(seed, purpose, 0))
            initial = {name: p.to(parts.fixed.x) for name, p in stack.items()}
        training = victims.victims.training
        trained = train_victims(victims.model, training, initial, parts.fixed, trained_on, seed=seed)
        final = {name: torch.stack([victim.final[name] for victim in trained]) for name in initial}
        logits: Tensor = vmap(partial(apply, victims.model), in_dims=(0, None))(final, targets.x)
        labels = targets.y.expand(len(trained_on), -1)
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)

    measures, figures = [], []
    for name, each in ((COMMON, 1), (DIFFERENT, models)):  # equal records from equal initial weights: equal models
        members = targets.take(torch.arange(records, device=trial.device).repeat_interleave(each))
        by_member = losses(members, common=name == COMMON, purpose="with").view(records, each, records)
        inside = by_member[range(records), :, range(records)]  # (records, models)
        outside = losses(others, common=name == COMMON, purpose="without").T  # (records, models)
        aucs = torch.tensor([auc(-a, -b) for a, b in zip(inside, outside, strict=True)], dtype=torch.float64)
        mean = bootstrap_mean(aucs, seed=derive_seed(seed, name))
        meaning = "chance that a model trained with the record has a lower loss on it than one trained with another"
        measures.append(Measure.from_interval(name, mean, meaning=meaning, chance=0.5))
        if name == COMMON:
            meaning = "fraction of the records with an AUC of at least 0.99; chance: one rank among the other models"
            chance = (outside.shape[1] // 100 + 1) / (outside.shape[1] + 1)
            measures.append(proportion("distinguished, common start", aucs >= 0.99, meaning=meaning, chance=chance))
        figures.append(_loss_histograms(name.removeprefix("AUC, "), inside[0], outside[0]))
    return Outcome(measures=tuple(measures), figures=tuple(figures))


def _loss_histograms(title: str, inside: Tensor, outside: Tensor) -> Figure:
    both = torch.cat([inside, outside])
    low, high = float(both.min()), float(both.max()) + 1e-6
    x = tuple((torch.linspace(low, high, 41)[:-1] + (high - low) / 80).tolist())

    def y(losses: Tensor) -> tuple[float, ...]:
        return tuple((torch.histc(losses.cpu(), bins=40, min=low, max=high) / len(losses)).tolist())

    return Figure(
        title=f"Losses on one record, {title}",
        x_label="loss on the record",
        y_label="fraction of the models",
        series=(
            Series(name="trained with it", x=x, y=y(inside)),
            Series(name="trained with another", x=x, y=y(outside), role="chance"),
        ),
    )


# Figure 12: training goes on from a checkpoint


def figure12_pretrained(scale: Scale) -> Sequence[Experiment]:
    """Figure 12: who knows only a checkpoint near convergence reconstructs less than who knows the initial weights."""
    public = {"smoke": 200, "small": 3000, "full": 58_000}[scale]
    divided = mnist_split(scale, public=public)
    shadows = public - MNIST[scale]["fixed"]  # the other public records, as many as fixed ones, pre-train the model

    def parts(seed: int) -> Split:
        all_parts = divided(seed)
        return replace(all_parts, public=all_parts.public.take(slice(0, shadows)))

    def checkpoint(model: nn.Module, seed: int) -> Params:
        data = divided(seed).public.take(slice(shadows, None))
        # weight decay: without it the model overfits and classifies less than 92 % of the test records
        training = Training(epochs=100 if scale == "smoke" else 1000, weight_decay=1e-3)
        return train(training, model, initial_params(model, seed=seed), data, seed=seed)

    fresh = informed(scale, "from the first weights", split=parts)
    if scale == "full":
        fresh = replace(fresh, budget=Budget(shadows=(48_000, 49_000)))
    pretrained = replace(fresh.with_victims(initial=checkpoint), label="near convergence")
    claim = Claim(quantity="test accuracy", higher_is_better=True, target=0.92, where="figure 12, over 92 %")
    accuracy = Experiment(
        label="the checkpoint",
        about="How good the model is from which training goes on.",
        victims=pretrained.victims,
        evaluations=(Accuracy(weights="initial"),),
        claims=(claim,) if scale == "full" else (),
    )
    return [
        accuracy,
        replace(fresh, point=Point(axis="start", value="first weights")),
        replace(pretrained, point=Point(axis="start", value="near convergence")),
    ]


# Figure 15, and DP-GD as in figure 14


def dp_mnist(scale: Scale) -> Sequence[Experiment]:
    """DP-GD on MNIST: what is still reconstructed at each epsilon, with the limit that epsilon sets to any attack."""
    epsilons = {"smoke": (1e3, 1e5), "small": (1e2, 1e3, 1e4, 1e6), "full": (1.0, 10.0, 100.0, 1e3, 1e4)}[scale]
    return with_dp(informed(scale, "no privacy"), epsilons, clip=1.0)


def with_dp(usual: Experiment, epsilons: Iterable[float], *, clip: float) -> Sequence[Experiment]:
    """An experiment without privacy, one that clips only, and one for each epsilon at delta = 1e-5, with the accuracy
    of the first victim: the price of the noise."""
    usual = replace(usual, evaluations=(*usual.evaluations, Accuracy()))
    assert usual.victims
    training = usual.victims.training

    def noisy(usual: Experiment, noise: float) -> Experiment:
        return usual.with_victims(training=replace(training, privacy=DPGD(clip=clip, noise=noise)))

    def at(usual: Experiment, epsilon: float) -> Experiment:
        return noisy(usual, noise_for(epsilon, steps=training.epochs))

    clipped = replace(noisy(usual, 0.0), label="clipped, without noise")
    swept = sweep(usual, "epsilon", sorted(epsilons, reverse=True), at, label="epsilon {value:g}", log=True)
    return [usual, clipped, *swept]


def figure15_epochs(scale: Scale) -> Sequence[Experiment]:
    """Figure 15, here on MNIST: the longer the released model was trained, the less is reconstructed."""
    epochs = {"smoke": (5, 20), "small": (1, 50, 100, 200), "full": (1, 50, 100, 150, 200, 260)}[scale]

    def vary(usual: Experiment, count: int) -> Experiment:
        return usual.with_victims(training=mnist_training(scale, epochs=count))

    usual = replace(informed(scale, ""), budget=None)  # the paper's figure is of CIFAR-10
    return sweep(usual, "epochs of the released model", epochs, vary, label="{value} epochs")
