"""Planted leaks: every private record comes back, changed in one way, and how many of them are found.

remanence run evidence.power --scale full     two cores: ten minutes
expected      nine in ten or more, whatever the change; what chance lists stands beside each
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from remanence.experiments import Experiment, Measure, Outcome, Scale
from remanence.metrics.leakage import LeakTest, leak_test
from remanence.metrics.similarity import turned
from remanence.metrics.statistics import binomial_proportion
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence_recipes.curves import figure_along, measured
from remanence_recipes.evidence.sets import data_set, data_sets

PRIVATE, HELD_OUT = 100, 1000
Change = Callable[[Tensor, int], Tensor]


def power(scale: Scale) -> Sequence[Experiment]:
    """Planted leaks in several data sets: noise, blur, halves, shifts, mirror images, rotations, one copy, junk."""
    about = "All private records leak, changed in one way; `one copy` is a single one among unrelated reconstructions."
    return [measured(name, about, partial(_measure, scale, name)) for name in data_sets(scale)]


def _measure(scale: Scale, name: str, seed: int, device: torch.device) -> Outcome:
    data = data_set(name).to(device)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).to(data.x.device)
    private = data.take(order[:PRIVATE])
    held_out = data.take(order[PRIVATE:-PRIVATE][:HELD_OUT])
    unrelated = data.x[order[-PRIVATE:]]
    changes = IMAGES if data.is_image else ROWS
    tests = {}
    for change, leak in track(changes.items(), total=len(changes), label=f"leaks of {name}"):
        tests[change] = leak_test(leak(private.x, derive_seed(seed, change)), private, held_out, seed=seed)
    with_junk = torch.cat(
        [changes["noise 0.1"](private.x, seed), torch.rand_like(private.x).repeat(3, *[1] * (data.x.ndim - 1))]
    )
    tests["noise 0.1, junk beside"] = leak_test(with_junk, private, held_out, seed=seed)
    tests["one copy"] = leak_test(torch.cat([unrelated[1:], private.x[:1]]), private, held_out, seed=seed)
    nothing = leak_test(unrelated, private, held_out, seed=seed)
    found = {change: _found(change, test) for change, test in tests.items()}
    chance = int(nothing.found.sum()) / len(private)
    measures = [_with(measure, chance) for measure in found.values()]
    ranks = [_rank(change, test) for change, test in tests.items()]
    names = tuple(found)
    figure = figure_along(
        "Found",
        ("leak", "fraction found"),
        {name: list(found.values())},
        names,
        {"nothing leaked": (chance,) * len(names)},
    )
    return Outcome(measures=(*measures, *ranks, _together(nothing)), figures=(figure,))


def _found(change: str, test: LeakTest) -> Measure:
    records = len(test.found) if change != "one copy" else 1
    count = int(test.found.sum()) if change != "one copy" else int(test.found[0])
    how = f"of {records}; p {test.together:.2g}, recognised by {', '.join(sorted(_by(test)))}"
    return Measure.from_interval(f"found, {change}", binomial_proportion(count, records), meaning=how)


def _by(test: LeakTest) -> set[str]:
    return {test.recognised_by(int(i)) for i in test.found.nonzero()[:, 0]} or {"none"}


def _with(measure: Measure, chance: float) -> Measure:
    return Measure(**{**vars(measure), "chance": chance})


def _rank(change: str, test: LeakTest) -> Measure:
    ranks = test.identification
    meaning = f"records that their reconstruction resembles most, of {ranks.held_out} held-out ones and itself"
    return Measure.from_interval(f"rank 1, {change}", ranks.top1, meaning=meaning, chance=ranks.chance_top1)


def _together(test: LeakTest) -> Measure:
    return Measure(name="p, nothing leaked", value=test.together, meaning="of all records together", chance=0.5)


def _noise(std: float) -> Change:
    return lambda x, seed: (x + std * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)).clamp(
        0, 1
    )


def _blurred(x: Tensor, seed: int) -> Tensor:
    line = x.new_tensor([1.0, 2.0, 1.0]) / 4
    kernel = torch.outer(line, line).expand(x.shape[1], 1, 3, 3)
    return F.conv2d(F.pad(x, (1,) * 4, mode="replicate"), kernel, groups=x.shape[1])


def _half_resolution(x: Tensor, seed: int) -> Tensor:
    return F.interpolate(F.avg_pool2d(x, 2), size=x.shape[2:], mode="nearest")


def _half(x: Tensor, seed: int) -> Tensor:
    left = x.clone()
    left[..., x.shape[3] // 2 :] = x.mean()
    return left


def _shifted(right: int, down: int) -> Change:
    def shift(x: Tensor, seed: int) -> Tensor:
        padded = F.pad(x, (2,) * 4, mode="replicate")
        return padded[:, :, 2 - down : 2 - down + x.shape[2], 2 - right : 2 - right + x.shape[3]]

    return shift


def _mixed(x: Tensor, seed: int) -> Tensor:
    """Every reconstruction is the mean of two records."""
    return 0.5 * (x[0::2][: len(x) // 2] + x[1::2][: len(x) // 2])


def _eleven_thirteenths(x: Tensor, seed: int) -> Tensor:
    wrong = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
    known = torch.arange(x.shape[1]) < x.shape[1] * 11 // 13
    return torch.where(known.to(x.device), x, wrong)


IMAGES: Mapping[str, Change] = {
    "noise 0.05": _noise(0.05),
    "noise 0.1": _noise(0.1),
    "noise 0.2": _noise(0.2),
    "blur of one pixel": _blurred,
    "half the resolution": _half_resolution,
    "half the image": _half,
    "shift of 1 pixel": _shifted(1, 0),
    "shift of 2 pixels": _shifted(2, -2),
    "mirror image": lambda x, seed: x.flip(3),
    "rotation of 10 degrees": lambda x, seed: turned(x, degrees=10),
    "rotation of -10 degrees": lambda x, seed: turned(x, degrees=-10),
    "contrast 0.3": lambda x, seed: 0.3 * x + 0.4,
    "mean of two records": _mixed,
}
ROWS: Mapping[str, Change] = {
    "noise 0.05": _noise(0.05),
    "noise 0.1": _noise(0.1),
    "11 of 13 columns": _eleven_thirteenths,
    "mean of two records": _mixed,
}
