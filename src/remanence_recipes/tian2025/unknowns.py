"""What the attacker may not know: the learning rate, and the number of records."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from remanence.attacks import Count, SimuDy, contributions, count_needed, find_rate, with_search
from remanence.experiments import Claim, Experiment, Measure, Measurement, Outcome, Scale
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics.matching import NONE
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean
from remanence.progress import track
from remanence.releases import FineTuned, fine_tuned, train_victim
from remanence.seeds import derive_seed
from remanence.training import Adam, Training
from remanence.types import Data, Params
from remanence_recipes.tian2025.mlps import whitened
from remanence_recipes.tian2025.resnets import NETS, Start, built, deep, leaping
from remanence_recipes.tian2025.setting import PAPERS, Images, cut, images_of, torch_start, wide

RATES: dict[Scale, tuple[float, ...]] = {
    "smoke": (0.0025, 0.01, 0.04),
    "small": tuple(place / 500 for place in range(1, 11)),
    "full": tuple(place / 1000 for place in range(1, 21)),
}
FAST = Adam(lr=0.04, beta1=0.8, beta2=0.9)  # for few steps
ON_SEED_0 = "The settings of the search were chosen on true records of seed 0{}: quote another seed."
TUNED = tuned_on_truth(ON_SEED_0.format(""))
RATES_TUNED = tuned_on_truth(ON_SEED_0.format(", after another search had missed learning rates of seed 2"))


def unknown_learning_rate(scale: Scale) -> Sequence[Experiment]:
    """The learning rate from a grid, by the objective of the first steps: the paper's 0.01, and any of the grid."""
    claim = Claim(quantity="within one step of the grid", higher_is_better=True, target=0.9, where="ours, of ten seeds")
    about = "How often a short search at each learning rate of a grid tells the victim's"
    truths: dict[str, tuple[str, Callable[[int, int], float]]] = {
        "learning rate": (f"{about}, 0.01, which always to answer would be right.", lambda *_: PAPERS.optimizer.lr),
        "any learning rate": (f"{about}, drawn from it for each.", partial(drawn_rate, RATES[scale])),
    }
    return [
        Experiment(
            label=label,
            about=text,
            evaluations=(Measurement(measure=partial(_rates, scale, rate)),),
            claims=(claim,) if scale == "full" else (),
        )
        for label, (text, rate) in truths.items()
    ]


def drawn_rate(grid: Sequence[float], seed: int, place: int) -> float:
    generator = torch.Generator().manual_seed(derive_seed(seed, "rate", place))
    return grid[int(torch.randint(len(grid), (), generator=generator))]


def _rates(scale: Scale, rate_of: Callable[[int, int], float], seed: int, device: torch.device) -> Outcome:
    records, width, side, scales, steps, count = {
        "smoke": (10, 32, None, 0, 15, 1),
        "small": (20, 100, 16, 3, 40, 10),
        "full": (20, 1000, None, 4, 10, 10),  # 20 images, as in the authors' script
    }[scale]
    grid, rates, found = RATES[scale], [], []
    attack = whitened(with_search(SimuDy(candidates=records), steps=steps, scales=scales))
    for place in track(range(count), total=count, label="victims"):
        own = derive_seed(seed, "victim", place)
        private = cut(scale, records, own, side=side).private.to(device)
        model = wide(width)(private)
        rates.append(rate_of(seed, place))
        training = replace(PAPERS, optimizer=replace(PAPERS.optimizer, lr=rates[-1]))
        release = _released(private, model, torch_start(images_of(scale))(model, own), training)
        found.append(find_rate(attack, release, grid, seed=own))
    return Outcome(measures=told(grid, rates, found), caveats=(RATES_TUNED,))


def told(grid: Sequence[float], rates: Sequence[float], found: Sequence[float]) -> tuple[Measure, ...]:
    places, count = [grid.index(rate) for rate in rates], len(rates)
    far = torch.tensor([abs(grid.index(rate) - place) for rate, place in zip(found, places, strict=True)])
    all_far = (torch.arange(len(grid)) - torch.tensor(places)[:, None]).abs()
    meaning = f"of {count} victims, each with its own images and start, by {len(grid)} rates; chance: one of them drawn"
    return tuple(
        Measure.from_interval(
            name,
            binomial_proportion(int((far <= most).sum()), count),
            meaning=meaning,
            chance=float((all_far <= most).double().mean()),
        )
        for name, most in (("within one step of the grid", 1), ("exact", 0))
    )


def unknown_size(scale: Scale) -> Sequence[Experiment]:
    """Half as many candidates again as there were records: which of them the training needs."""
    about = "More candidates than records: those with the largest sums of gradients are kept, as many as records."
    claim = Claim(
        quantity="mean SSIM of those kept", higher_is_better=True, printed=0.2295, target=0.30, where="40 of 60"
    )
    claims = (claim,) if scale == "full" else ()
    return [
        Experiment(
            label="number of records",
            about=about,
            evaluations=(Measurement(measure=partial(_size, scale)),),
            claims=claims,
        )
    ]


def _size(scale: Scale, seed: int, device: torch.device) -> Outcome:
    records, images, net = {"smoke": 10, "small": 20, "full": 40}[scale], images_of(scale), NETS[scale]
    steps = {"smoke": 60, "small": 400, "full": 1000}[scale]
    public = net.public if scale == "full" else 0
    parts = partial(cut, scale, records, public=public, side=16 if scale == "small" else None)
    private, unrelated = parts(seed).private.to(device), parts(seed).test.to(device)
    model = built(net)(private) if scale == "full" else wide(64)(private)
    begun = Start.of(scale, records).new_head(seed) if scale == "full" else torch_start(images)(model, seed)
    release = _released(private, model, begun, PAPERS)
    dummies = records * 3 // 2
    shallow = with_search(SimuDy(candidates=dummies), steps=steps, optimizer=FAST)
    attack = deep(dummies, steps, leaping(PAPERS)) if scale == "full" else shallow
    found = attack.run(release, seed=seed)
    pulls = contributions(release, found)
    kept = found.x[pulls.argsort(descending=True)[:records]]
    assert found.y is not None
    counted = count_needed(pulls, found.y, seed=derive_seed(seed, "count"))
    return _sized(images, private, unrelated, found.x, kept, pulls, counted, seed)


def _sized(
    images: Images,
    private: Data,
    unrelated: Data,
    found: Tensor,
    kept: Tensor,
    pulls: Tensor,
    counted: Count,
    seed: int,
) -> Outcome:
    match = images.matching(kept, private.x)
    scores = images.ssim.paired(kept[match], private.x)
    draw = torch.randperm(len(unrelated), generator=torch.Generator().manual_seed(derive_seed(seed, "look-alikes")))
    others = unrelated.x[draw[: len(private)].to(unrelated.x.device)]
    chance = float(images.ssim.paired(others[images.matching(others, private.x)], private.x).mean())
    index = images.matching(found, private.x)
    needed = torch.zeros(len(found), dtype=torch.bool, device=found.device)
    needed[index[index != NONE]] = True
    pairs = (pulls[needed][:, None] > pulls[~needed]).double().mean()
    return Outcome(
        measures=(
            Measure.from_interval(
                "mean SSIM of those kept",
                bootstrap_mean(scores, seed=seed),
                meaning="greedy, of normalised images; chance: as many unrelated images",
                chance=chance,
            ),
            Measure(
                name="matched pull more than unmatched",
                value=float(pairs),
                meaning="share of pairs of a candidate that is matched with a record and one that is not",
                chance=0.5,
            ),
            Measure(
                name="records by two groups",
                value=counted.value,
                low=counted.low,
                high=counted.high,
                meaning=f"of {len(found)} candidates; there were {len(private)} records",
                chance=len(found) / 2,
            ),
        ),
        pictures={"truth": private.x, "kept": kept[match]},
        caveats=(TUNED,),
    )


def _released(private: Data, model: nn.Module, start: Params, training: Training) -> FineTuned:
    initial = {name: p.to(private.x) for name, p in start.items()}
    return fine_tuned(train_victim(model, training, initial, private.take(slice(0, 0)), private, seed=0)).release
