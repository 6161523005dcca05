"""Whether private and held-out records are of one kind, by the records alone: what no model is asked about.

Held-out records that are darker, noisier, shifted or from elsewhere are distinguished from the private ones by
anything, and near copies of private records hide what leaks of these. Both look like a result.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from remanence.auditing.answer.report import Check
from remanence.auditing.answer.undecided import KIND, NEAR_COPIES
from remanence.auditing.checks.records import IN_BOTH, distinct, distinct_positions, evenly
from remanence.metrics.subjects import Subjects
from remanence.metrics.two_sample import Difference, neighbour_test, shift_test
from remanence.seeds import derive_seed
from remanence.types import Data

_LEVEL = 1e-3  # of the whole check
_SHIFTED = 0.15  # of an AUC, from 0.5: less, as between a few writers and many, is a note
_ALIKE = 0.4  # of the way from as many private neighbours as are expected to all of them
_MAX_RECORDS = 1000  # of each set
_MAX_COPIES = 5000  # of each set, in which near copies are looked for
_SIDE = 16  # pixels at most, to which images are averaged for distances
_NEAR = 0.05  # of a typical squared distance between held-out records
_TIMES = 5.0  # as many as by chance
_NAMED = 10  # records
_OF_IMAGES = ("brightness", "contrast", "difference of adjacent pixels")


def check_kind(private: Data, held_out: Data) -> list[Check]:
    """A warning where private and held-out records of a class are distinguished without the model."""
    if Subjects.from_groups(private, held_out) is not None:
        private, held_out = (_one_each(data) for data in (private, held_out))
    private, held_out = (evenly(distinct(data), _MAX_RECORDS) for data in (private, held_out))
    labels = private.y.cpu(), held_out.y.cpu()
    ours, theirs = _points(private, held_out)
    neighbours = neighbour_test(ours, theirs, *labels, seed=derive_seed(0, "kind"))
    shifts = shift_test(_statistics(private), _statistics(held_out), *labels)
    strongest = max(
        (k for k in range(len(shifts)) if shifts[k].p <= _LEVEL / (2 * len(shifts))), key=_by(shifts), default=None
    )
    said, effects = [], []
    if strongest is not None:
        said.append(
            f"the private record of a pair with a held-out one has the larger {_name(private, strongest)} in "
            f"{shifts[strongest].observed:.0%} of them, where 50% were expected"
        )
        effects.append(_by(shifts)(strongest) >= _SHIFTED)
    if neighbours.p <= _LEVEL / 2:
        said.append(
            f"the record most like a private one is private too for {neighbours.observed:.0%} of them, where "
            f"{neighbours.expected:.0%} were expected"
        )
        effects.append(neighbours.observed - neighbours.expected >= _ALIKE * (1 - neighbours.expected))
    if not said:
        return [Check(name=KIND, status="ok", text="Private and held-out records are alike.")]
    remedy = (
        "Hold out records at random from the same source, prepared in the same way; where several are of one person or "
        "scene, say which (`groups`)."
    )
    if not any(effects):
        text = f"Private and held-out records differ a little: {'; '.join(said)}. {remedy}"
        return [Check(name=KIND, status="note", text=text)]
    text = (
        f"Private and held-out records are not of one kind: {'; '.join(said)}. Whatever tells them apart would be "
        f"taken for a leak, so that exact copies alone count. {remedy}"
    )
    return [Check(name=KIND, status="warning", text=text)]


def _by(shifts: Sequence[Difference]) -> Callable[[int], float]:
    return lambda k: abs(shifts[k].observed - shifts[k].expected)


def _one_each(data: Data) -> Data:
    """One record of each subject, the first of them."""
    assert data.groups is not None
    first = {group: k for k, group in reversed(list(enumerate(data.groups.tolist())))}
    return data.take(torch.tensor(sorted(first.values()), device=data.x.device))


def _statistics(data: Data) -> Tensor:
    """(records, statistics): of an image brightness, contrast and the mean difference of adjacent pixels, of a table
    row its columns."""
    x = data.x.detach().float()
    if not data.is_image:
        return x
    steps = [x.diff(dim=dim).abs().flatten(1) for dim in (2, 3)]
    texture = torch.cat([*steps, x.new_zeros(len(x), 1)], dim=1).mean(1)
    flat = x.flatten(1)
    return torch.stack([flat.mean(1), flat.std(1, correction=0), texture], dim=1)


def _name(data: Data, statistic: int) -> str:
    return _OF_IMAGES[statistic] if data.is_image else f"value in column {statistic}"


def _points(private: Data, held_out: Data) -> tuple[Tensor, Tensor]:
    """The records as points whose distances mean something: images averaged to a few pixels, columns standardised."""
    x = torch.cat([private.x, held_out.x.to(private.x)]).detach().float()
    if private.is_image:
        x = F.adaptive_avg_pool2d(x, (min(x.shape[2], _SIDE), min(x.shape[3], _SIDE))).flatten(1)
    else:
        x = (x - x.mean(0)) / x.std(0, correction=0).clamp_min(1e-12)
    return x[: len(private)], x[len(private) :]


def check_near_copies(private: Data, held_out: Data, numbers: dict[str, float | None]) -> list[Check]:
    """Held-out records that lie far nearer to a private one than held-out records lie to each other.

    How often that is so by chance is counted within the private and within the other held-out records, so that data
    with many lookalikes, of which both sets are random, have none. To leave such records out by their distance to
    private ones would make the remaining ones no measure of chance; who made them knows which they are.
    """
    from scipy.stats import binom

    numbers["near_copies"] = 0
    if Subjects.from_groups(private, held_out) is not None or len(held_out) < 3:
        return []
    private, positions = evenly(distinct(private), _MAX_COPIES), distinct_positions(held_out)
    if len(positions) > _MAX_COPIES:
        positions = positions[torch.linspace(0, len(positions) - 1, _MAX_COPIES).round().long()]
    held_out = held_out.take(positions.to(held_out.x.device))
    ours, theirs = _points(private, held_out)
    to_private, nearest = _nearest(theirs, ours)
    among, _ = _nearest(theirs, theirs, others=True)
    limit = _NEAR * _typical(among, held_out.y)
    equal = (theirs == ours[nearest.to(ours.device)]).all(1).cpu()  # copies, which another check names
    near = ~equal & (to_private < limit)
    unlike = ~equal & ~near
    within, _ = _nearest(ours, ours, others=True)
    alike = torch.cat([among[unlike] < limit[unlike], within < _NEAR * _typical(within, private.y)])
    by_chance = float(alike.sum() + 1) / (len(alike) + 1)
    count = len(nearest[near].unique())
    if count < _TIMES * by_chance * len(private) or binom.sf(count - 1, len(private), min(1.0, by_chance)) > _LEVEL:
        return []
    numbers["near_copies"] = int(near.sum())
    position = positions[near].tolist()
    named = f"{', '.join(map(str, position[:_NAMED]))}{', …' if len(position) > _NAMED else ''}"
    status: Literal["warning", "stop"] = "stop" if count >= IN_BOTH * len(private) else "warning"
    text = (
        f"{len(position)} held-out records are near copies of {count} of {len(private)} private ones (at the "
        f"positions {named} of the held-out ones, counted from 0): what leaks of these private records is recognised "
        "in their copies too, and not found. Leave what was made of private records, such as another compression, out "
        "of the held-out ones; or, of several photographs of one scene, say which with `groups`."
    )
    return [Check(name=NEAR_COPIES, status=status, text=text)]


def _nearest(points: Tensor, among: Tensor, *, others: bool = False) -> tuple[Tensor, Tensor]:
    """(points,): the squared distance to the nearest point of a set and its position; of `others` but itself."""
    distances, positions = [], []
    for start in range(0, len(points), 500):
        distance = torch.cdist(points[start : start + 500], among)
        if others:
            rows = torch.arange(len(distance), device=distance.device)
            distance[rows, start + rows] = torch.inf
        nearest = distance.min(1)
        distances.append(nearest.values.square())
        positions.append(nearest.indices)
    return torch.cat(distances).cpu(), torch.cat(positions).cpu()


def _typical(distances: Tensor, labels: Tensor) -> Tensor:
    """(records,): the median distance of each record's class."""
    typical, labels = torch.empty_like(distances), labels.cpu()
    for label in labels.unique():
        typical[labels == label] = distances[labels == label].median()
    return typical
