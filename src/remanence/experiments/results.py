"""What stands in `results.json`: one `Result` for each experiment, defined by these dataclasses and nowhere else.

Reading is strict (see `codec`), and `remanence schema` prints the JSON schema that follows from them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

from remanence.errors import BadInput, printable
from remanence.experiments.claim import Budget
from remanence.experiments.codec import decode, encode, json_schema, parse_json
from remanence.experiments.experiment import Point
from remanence.experiments.outcome import Figure, Measure
from remanence.experiments.provenance import Hardware
from remanence.metrics import Interval, Roc
from remanence.metrics.evaluation import Labels
from remanence.metrics.limit import Limit
from remanence.metrics.statistics import check_lengths
from remanence.types import Caveat

SCHEMA = 4
MAX_RESULTS = 200  # of one run, which is one page
Kind: TypeAlias = Literal["attack", "measurement", "refused"]


@final
@dataclass(frozen=True, kw_only=True)
class ClaimCheck:
    """What a paper printed or we set as a target, and what was measured.

    `holds` (ours is no worse than the printed number, within the claim's tolerance) and `reached` (ours meets the
    target) are null at another scale than `full`, and where nothing is printed or no target is set.
    """

    quantity: str
    where: str
    printed: float | None
    target: float | None
    measured: float | None
    holds: bool | None
    reached: bool | None


@final
@dataclass(frozen=True, kw_only=True)
class ReleaseSummary:
    """What the attacker saw: `shows` has a few words about each part, `owned` about records the attacker had."""

    kind: str
    data: str
    shows: dict[str, str]
    owned: str
    withholds: str
    records: int  # withheld


@final
@dataclass(frozen=True, kw_only=True)
class MetricSummary:
    """One metric over the records: mean with its bootstrap 95 % interval, quantiles, the level called a success."""

    mean: float | None
    low: float | None
    high: float | None
    median: float | None
    p10: float | None
    p90: float | None
    good: float | None
    higher_is_better: bool


@final
@dataclass(frozen=True, kw_only=True)
class Counted:
    """How many records, and which fraction of all with its exact binomial 95 % interval."""

    count: int
    fraction: Interval


@final
@dataclass(frozen=True, kw_only=True)
class TestSummary:
    """The test that decides which records are found: ranks among `held_out` records, a list at the false-discovery
    rate `fdr` of which about `false` are there by chance, and `p` of all records together.

    `copies` of those found are exact. Before `smallest_list` records leak, none can be listed. `by` counts the records
    that are found by the similarity that recognises each.
    """

    fdr: float
    p: float
    false: float
    copies: int
    held_out: int
    smallest_list: int
    untested: tuple[int, ...]  # classes of which no record was held out
    by: dict[str, int]
    subjects: int | None  # where several records are of one subject, whose number it is


@final
@dataclass(frozen=True, kw_only=True)
class IdentificationSummary:
    """How well reconstructions pick their records out of held-out ones, beside what held-out records reach."""

    held_out: int
    median: float
    chance_median: float | None
    top1: Interval
    chance_top1: float | None
    top5: Interval
    chance_top5: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Closer:
    """How many records are closer than their nearest neighbour, and which fraction of held-out ones is."""

    count: int
    fraction: Interval
    chance: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of the primary metric between the edges: of the records, and of the scores of two null levels."""

    edges: tuple[float, ...]
    records: tuple[int, ...]
    held_out: tuple[int, ...]
    unrelated: tuple[int, ...]

    def __post_init__(self) -> None:
        check_lengths(bins=self.edges[1:], records=self.records, held_out=self.held_out, unrelated=self.unrelated)


@final
@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """The scores of a reconstruction; `primary` names the metric of the histogram and of the nearest neighbour.

    `test` says how `found` was decided; it is null in results of before, where found meant to beat two pooled null
    levels at a false-positive rate of 1 % each. `closer` counts the records that score better than their own nearest
    neighbour among those the attacker could own. `objective` is the attack's own criterion at its end.
    """

    records: int
    candidates: int
    unmatched: int
    primary: str
    objective: float | None
    metrics: dict[str, MetricSummary]
    found: Counted
    test: TestSummary | None
    identification: IdentificationSummary | None
    closer: Closer | None
    labels: Labels | None
    roc: Roc
    histogram: Histogram

    def __post_init__(self) -> None:
        if self.primary not in self.metrics:
            raise BadInput(f"there is no metric `{self.primary}`, which `primary` names", argument="primary")


@final
@dataclass(frozen=True, kw_only=True)
class NullLevel:
    """One metric of a null: its mean, and the value that only 1 % of its scores reach."""

    mean: float | None
    at_1_percent: float | None


@final
@dataclass(frozen=True, kw_only=True)
class NullSummary:
    """A level that is reached without any leak: `count` scores that rest on `distinct` different comparisons."""

    meaning: str
    count: int
    distinct: int
    metrics: dict[str, NullLevel]


@final
@dataclass(frozen=True, kw_only=True)
class Nulls:
    """The null levels of a finding."""

    held_out: NullSummary
    unrelated: NullSummary
    noise: NullSummary
    mean_image: NullSummary
    nearest_neighbour: NullSummary


@final
@dataclass(frozen=True, kw_only=True)
class AttackSummary:
    """An attack on a release, and its scores; `call` is the Python expression that makes the attack."""

    call: str
    release: ReleaseSummary
    matching: str
    scores: ScoreSummary
    nulls: Nulls
    limit: Limit | None  # what differential privacy allows

    def __post_init__(self) -> None:
        for null in (self.nulls.held_out, self.nulls.unrelated):
            if self.scores.primary not in null.metrics:
                raise BadInput(f"a null level lacks the metric `{self.scores.primary}`", argument="nulls")


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """One experiment of a run.

    `seconds` is wall-clock time; victims that an earlier experiment of the run prepared are not counted again.
    `attack` is null where no attack was evaluated; `refusal` says why an experiment could not be done.
    """

    schema: int
    recipe: str
    label: str
    about: str
    scale: str
    seed: int
    command: str
    commit: str | None
    hardware: Hardware
    seconds: float
    repeats: int
    budget: Budget | None
    point: Point | None
    refusal: str | None
    attack: AttackSummary | None
    verdict: str | None
    measures: tuple[Measure, ...]
    figures: tuple[Figure, ...]
    claims: tuple[ClaimCheck, ...]
    caveats: tuple[Caveat, ...]

    @property
    def kind(self) -> Kind:
        """What the result is of: an attack, another measurement, or a refused experiment."""
        return "refused" if self.refusal is not None else "measurement" if self.attack is None else "attack"


def dump_results(results: Sequence[Result]) -> str:
    """The text of `results.json`."""
    return json.dumps(encode(tuple(results)), indent=1, allow_nan=False) + "\n"


def parse_results(text: str, *, where: str) -> list[Result]:
    """The results in `text`, every field checked; `where` is named in errors."""
    try:
        parsed = parse_json(text)
    except ValueError as error:
        raise _damaged(f"`{where}` is not JSON ({error})") from None
    if not isinstance(parsed, list):
        raise _damaged(f"`{where}` must hold a list of results")
    if len(parsed) > MAX_RESULTS:
        raise _damaged(f"`{where}` must hold at most {MAX_RESULTS} results, got {len(parsed)}")
    return [_parsed(each, f"result {i} of `{where}`") for i, each in enumerate(parsed)]


def _parsed(value: Any, where: str) -> Result:
    if not isinstance(value, dict):
        raise _damaged(f"{where} must be an object")
    if value.get("schema") != SCHEMA:
        raise _damaged(f"{where} has schema {shown(value.get('schema'))}, this version reads {SCHEMA}")
    try:
        return decode(Result, value)
    except BadInput as fault:
        raise _damaged(f"{where} {fault}", argument=fault.argument) from None


def _damaged(what: str, *, argument: str | None = None) -> BadInput:
    return BadInput(f"{what}: make the run again", code="damaged-file", argument=argument)


def shown(value: Any) -> str:
    """A parsed value in a message; lists and objects only by their kind."""
    return type(value).__name__ if isinstance(value, list | dict) else printable(repr(value), 40)


def schema() -> dict[str, Any]:
    """The JSON schema of `results.json`."""
    of_one = json_schema(Result)
    reference = of_one.pop("$ref")
    return {"title": "remanence results", "type": "array", "items": {"$ref": reference}, **of_one}
