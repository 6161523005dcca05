"""What a record is: the types of `results.json`. The fields are described in docs/results-format.md."""

from typing import Any, Literal, NotRequired, TypedDict

SCHEMA = 2


class ClaimRecord(TypedDict):
    quantity: str
    printed: float | None  # None: the paper prints no number
    target: float | None  # the bar that we set ourselves
    where: str
    measured: float | None
    holds: bool | None  # None: nothing is printed, or the claim belongs to another scale
    reached: bool | None  # the same for the target


class CaveatRecord(TypedDict):
    code: str
    text: str


class PointRecord(TypedDict):
    axis: str
    value: float | str
    series: str
    log: bool


class LimitRecord(TypedDict):
    mu: float | None  # None: unbounded, as without noise
    epsilon: float | None
    delta: float | None
    metric: str
    threshold: float
    prior: float
    bound: float
    success: dict[str, float]


class MeasureRecord(TypedDict):
    name: str
    value: float | None
    low: float | None
    high: float | None
    chance: float | None
    meaning: str


class SeriesRecord(TypedDict):
    name: str
    role: str
    x: list[float | str]  # numbers only, or texts only
    y: list[float | None]
    low: list[float | None] | None
    high: list[float | None] | None


class FigureRecord(TypedDict):
    title: str
    x_label: str
    y_label: str
    kind: str
    log_x: bool
    log_y: bool
    series: list[SeriesRecord]


class Record(TypedDict):
    """One cell or one study of a recipe, as it stands in `results.json`."""

    schema: int
    kind: Literal["attack", "study", "refused"]
    recipe: str
    cell: str
    scale: str
    seed: int
    command: str
    commit: str | None
    hardware: dict[str, Any]
    seconds: float
    claims: list[ClaimRecord]
    caveats: list[CaveatRecord]
    # an attack's
    release: NotRequired[dict[str, Any]]
    attack: NotRequired[str]
    matching: NotRequired[str]
    scores: NotRequired[dict[str, Any]]
    nulls: NotRequired[dict[str, Any]]
    limit: NotRequired[LimitRecord | None]
    point: NotRequired[PointRecord | None]
    # of one that was refused
    refusal: NotRequired[str]
    # a study's
    about: NotRequired[str]
    verdict: NotRequired[str | None]  # missing from records made before there were any
    measures: NotRequired[list[MeasureRecord]]
    figures: NotRequired[list[FigureRecord]]
