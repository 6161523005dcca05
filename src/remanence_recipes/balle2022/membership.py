"""Figure 10: the first weights are what makes the attack. Whoever knows them sees whether a record was trained on."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy

from remanence.engine.ensembles.chunked import chunks, train_chunk
from remanence.experiments import Claim, Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean
from remanence.models import apply, initial_params, initial_stack
from remanence.progress import track
from remanence.releases import all_but_one_unknown_init
from remanence.seeds import derive_seed
from remanence.types import Data
from remanence_recipes.balle2022.informed import cell, cut, net, training

COMMON, OWN = "AUC, common start", "AUC, each its own start"
APART = "told apart, common start"


def figure10_membership(scale: Scale) -> Sequence[Experiment]:
    """Figure 10: with known first weights the loss tells whether a record was trained on, with unknown ones hardly."""
    claims = (
        Claim(quantity=COMMON, higher_is_better=True, target=0.99, where="figure 10, separable"),
        Claim(quantity=OWN, higher_is_better=False, target=0.6, where="figure 10, overlapping"),
    )
    study = Experiment(
        label="membership",
        about="How well the loss on a record tells models trained with it from models trained with another instead.",
        evaluations=(Measurement(measure=partial(_membership, scale)),),
        claims=claims if scale == "full" else (),
    )
    blind = cell("reconstruction, first weights unknown", scale, reveal=all_but_one_unknown_init, init_per_victim=True)
    return [study, blind]


def _membership(scale: Scale, seed: int, device: torch.device) -> Outcome:
    parts = cut(scale, seed)
    count, again = {"smoke": (10, 2), "small": (50, 4), "full": (100, 10)}[scale]
    fixed, targets = parts.fixed.to(device), parts.private.take(slice(0, count)).to(device)
    others = parts.public.take(slice(0, count * again)).to(device)
    measures, figures = [], []
    for name, common in ((COMMON, True), (OWN, False)):
        # from a common start all models with the same record are the same, so one is enough
        each = 1 if common else again
        inside = targets.take(torch.arange(count, device=device).repeat_interleave(each))
        seen = _losses(scale, fixed, inside, targets, common=common, seed=seed, purpose="with").view(count, each, count)
        own = seen[range(count), :, range(count)]  # (records, models): each record under the models that saw it
        unseen = _losses(scale, fixed, others, targets, common=common, seed=seed, purpose="without").T
        each_auc = _auc(own, unseen)
        meaning = "chance that a model trained with the record has a lower loss on it than one trained with another"
        measures.append(
            Measure.from_interval(
                name, bootstrap_mean(each_auc, seed=derive_seed(seed, name)), meaning=meaning, chance=0.5
            )
        )
        if common:
            apart = binomial_proportion(int((each_auc >= 0.99).sum()), count)
            meaning = "share of the records with an AUC of at least 0.99"
            measures.append(Measure.from_interval(APART, apart, meaning=meaning, chance=0.01))
        figures.append(_histograms(name.removeprefix("AUC, "), own[0], unseen[0]))
    return Outcome(measures=tuple(measures), figures=tuple(figures))


def _losses(
    scale: Scale, fixed: Data, trained: Data, records: Data, *, common: bool, seed: int, purpose: str
) -> Tensor:
    """(models, records): of models trained on `fixed` and one of `trained` each."""
    model = net(nn.ELU)(fixed)
    start = {name: p.to(fixed.x) for name, p in initial_params(model, seed=derive_seed(seed, "start")).items()}
    losses, cutting = [], chunks(model, fixed, trained)
    for i, chunk in enumerate(track(cutting, total=len(cutting), label="models")):
        if not common:
            drawn = initial_stack(model, len(chunk), seed=derive_seed(seed, purpose, i))
            start = {name: p.to(fixed.x) for name, p in drawn.items()}
        # float32: one easy record changes its own loss little. TF32 gave the same on 100 records, 0.982 and 0.983
        stacked = train_chunk(training(scale, tf32=False), model, start, fixed, chunk, seed=seed, noise_seed=0)
        logits: Tensor = vmap(partial(apply, model), in_dims=(0, None))(stacked, records.x)
        labels = records.y.expand(len(chunk), -1)
        losses.append(cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape))
    return torch.cat(losses)


def _auc(own: Tensor, unseen: Tensor) -> Tensor:
    """For each record: how often a model that saw it has the lower loss, ties counted half."""
    difference = own[:, :, None] - unseen[:, None, :]
    return ((difference < 0).double() + (difference == 0).double() / 2).mean((1, 2))


def _histograms(title: str, own: Tensor, unseen: Tensor) -> Figure:
    both = torch.cat([own, unseen])
    low, high = float(both.min()), float(both.max()) + 1e-6
    middles = tuple((torch.linspace(low, high, 41)[:-1] + (high - low) / 80).tolist())

    def shares(losses: Tensor) -> tuple[float, ...]:
        return tuple((torch.histc(losses.cpu(), bins=40, min=low, max=high) / len(losses)).tolist())

    return Figure(
        title=f"Losses on one record, {title}",
        x_label="loss on the record",
        y_label="share of the models",
        series=(
            Series(name="trained with it", x=middles, y=shares(own)),
            Series(name="trained with another", x=middles, y=shares(unseen), role="chance"),
        ),
    )
