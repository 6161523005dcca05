"""What figures 1, 5 and 7 measure: the best of each class, margins, and what an SSIM of 0.4 means."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remanence.diagnostics.preflight import run_preflight
from remanence.experiments import Figure, Measure, Outcome, Series
from remanence.metrics import SSIM, hungarian
from remanence.metrics.nulls import matched
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.types import Data
from remanence_recipes.curves import figure_along, proportion
from remanence_recipes.weights_alone.evaluation import (
    FOUND,
    ROW,
    THRESHOLD,
    Attacked,
    above_each,
    against_margin,
    attack,
    found,
    nearest,
    scatter,
    unrelated,
)
from remanence_recipes.weights_alone.target import Target

UNRELATED = "unrelated images"
WRONG = "records on the wrong side"


def best_of_classes(target: Target, seed: int, device: torch.device) -> Outcome:
    """The record of each class with the highest SSIM, for each attack and for unrelated images."""
    attacked = attack(target, seed, device)
    private, preflight = attacked.private, run_preflight(attacked.victim)
    pictures: dict[str, Tensor] = {}
    measures: list[Measure] = []
    for name, each in attacked.scored.items():
        order, best = _best(each.scores.values, private)
        pictures |= {f"truth, best of {name}": private.x[order], name: each.found.x[each.scores.index[order]]}
        lookalikes = unrelated(attacked.held_out, len(each.found.x), seed)
        paired = [matched(x, private.x, hungarian, (SSIM,)) for x in lookalikes]
        measures += [
            Measure.from_interval(
                f"best SSIM of a class, {name}",
                bootstrap_mean(best, seed=derive_seed(seed, name)),
                chance=float(torch.stack([_best(values, private)[1] for _, values in paired]).mean()),
                meaning="mean over the classes; chance: as many unrelated images as candidates",
            ),
            Measure.from_interval(
                f"classes with a record found, {name}",
                binomial_proportion(private.y[each.scores.found].unique().numel(), private.num_classes),
                chance=min(1.0, each.scores.test.false / private.num_classes),
                meaning="fraction of the classes; a record is found at a false-discovery rate of 5 %",
            ),
        ]
    index, values = paired[0]
    order = _best(values, private)[0]
    pictures |= {"truth, best of unrelated images": private.x[order], UNRELATED: lookalikes[0][index[order]]}
    return Outcome(
        measures=tuple(measures),
        figures=(scatter(preflight.margins, attacked),),
        pictures=pictures,
        caveats=preflight.caveats(),
    )


def _best(values: Mapping[str, Tensor], private: Data) -> tuple[Tensor, Tensor]:
    """For each class the index of the record with the highest SSIM, and that SSIM."""
    of_class = private.y == torch.arange(private.num_classes, device=private.y.device)[:, None]
    ssim = values[SSIM.name].nan_to_num(nan=-1.0).expand(of_class.shape)
    best, order = ssim.masked_fill(~of_class, -torch.inf).max(1)
    return order, best


def margins(targets: Mapping[str, Target], seed: int, device: torch.device) -> Outcome:
    """The margins of the records of each target, and their rank correlation with SSIM."""
    levels = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    measures: list[Measure] = []
    quantiles, scatters = [], []
    for name, target in track(list(targets.items()), total=len(targets), label="weight decays"):
        attacked = attack(target, seed, device)
        preflight = run_preflight(attacked.victim)
        each = preflight.margins.double().cpu()
        measures += _margin_measures(name, attacked, each, preflight.on_margin, seed)
        quantiles.append(Series(name=name, x=tuple(levels.tolist()), y=tuple(each.quantile(levels).tolist())))
        scatters.append(replace(scatter(each, attacked), title=f"SSIM against the margin, {name}"))
    figure = Figure(
        title="Margins of the records",
        x_label="fraction of the records",
        y_label="have at most this margin",
        series=tuple(quantiles),
    )
    return Outcome(measures=tuple(measures), figures=(figure, *scatters))


def _margin_measures(name: str, attacked: Attacked, margin: Tensor, on_margin: float, seed: int) -> Iterator[Measure]:
    yield Measure(name=f"median margin, {name}", value=float(margin.median()), meaning="of the records")
    yield Measure(
        name=f"records near the median margin, {name}",
        value=on_margin,
        meaning="fraction within 10 % of it",
    )
    yield proportion(f"{WRONG}, {name}", margin <= 0, meaning="fraction of the training records")
    yield against_margin(name, margin, attacked.ours.scores.values[SSIM.name], seed)
    yield found(f"{FOUND}, {name}", attacked.ours.scores)


def with_errors(targets: Sequence[Target], seed: int, device: torch.device) -> Outcome:
    """What is found in the first victim of `targets` that misclassifies some of its training records, the only one that
    is attacked; nothing is where there is none."""
    for target in targets:
        private, _ = (part.to(device) for part in target.split(seed))
        (victim,) = target.victims([private], [seed])
        wrong = run_preflight(victim).margins <= 0
        if wrong.any():
            break
    scored = attack(target, seed, device).scored if wrong.any() else {}
    return Outcome(
        measures=(
            proportion(WRONG, wrong, meaning=f"fraction of the training records, weight decay {target.decay:g}"),
            *(found(f"{FOUND}, {name}", each.scores) for name, each in scored.items()),
        )
    )


def threshold(target: Target, seed: int, device: torch.device) -> Outcome:
    """Records whose nearest candidate is above SSIM 0.4, which the paper counts as reconstructed, and by unrelated
    images, up to eight times as many as records."""
    attacked = attack(target, seed, device)
    truth, preflight = attacked.private.x, run_preflight(attacked.victim)
    pairs = {name: nearest(each.found.x, truth) for name, each in attacked.scored.items()}
    counts = [times * len(truth) for times in (1, 2, 4, 8) if times * len(truth) <= len(attacked.held_out)]
    draws = {n: [nearest(x, truth) for x in unrelated(attacked.held_out, n, seed)] for n in counts}
    meaning = "fraction of the records whose nearest unrelated image reaches it: what chance reaches"
    above = {count: torch.cat([ssim for _, ssim in each]) > THRESHOLD for count, each in draws.items()}
    by_chance = [proportion(f"above 0.4, {n} unrelated images", which, meaning=meaning) for n, which in above.items()]
    rows = pairs | {UNRELATED: draws[counts[0]][0]}
    ssim = {name: each for name, (_, each) in rows.items()}
    levels = above_each("Records above each SSIM", "fraction of the records above", ssim, null=UNRELATED)
    labels, line = (UNRELATED, "fraction of the records above 0.4"), {"nearest unrelated image": by_chance}
    growing = figure_along("Above 0.4 by chance", labels, line, counts, log_x=True)
    return Outcome(
        measures=(*_threshold_measures(attacked), *by_chance),
        figures=(levels, growing, scatter(preflight.margins, attacked)),
        pictures=_around_threshold(truth, rows),
        caveats=preflight.caveats(),
    )


def _threshold_measures(attacked: Attacked) -> Iterator[Measure]:
    for name, each in attacked.scored.items():
        above, chance = each.nearest > THRESHOLD, each.above_by_chance / len(each.nearest)
        meaning = "fraction of the records whose nearest candidate reaches it; chance: as many unrelated images"
        yield proportion(f"above 0.4, {name}", above, meaning=meaning, chance=chance)
        if above.any():
            meaning = "fraction of them beyond both nulls, one to one; chance is unknown for records chosen by score"
            yield proportion(f"found, of those above 0.4, {name}", each.scores.found[above], meaning=meaning)


def _around_threshold(truth: Tensor, pairs: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """The pairs of each kind that are nearest to the threshold, from below to above."""
    rows: dict[str, Tensor] = {}
    for name, (candidates, ssim) in pairs.items():
        closest = (ssim - THRESHOLD).abs().argsort()[:ROW]
        order = closest[ssim[closest].argsort()]
        low, high = ssim[order[[0, -1]]].tolist()
        rows[f"truth, {name} at {low:.2f} to {high:.2f}"] = truth[order]
        rows[name] = candidates[order]
    return rows
