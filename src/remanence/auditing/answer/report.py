"""The report of an audit: what was released, what was tried, what came back, and how bad that is.

`Answer` is what is written as JSON, with the schema that follows from its fields; `Report` adds what the page shows of
single records. Counts of records (`found`, `low`, `high`, `chance`) are all in records, not fractions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from remanence.errors import BadInput
from remanence.experiments.codec import encode, json_schema
from remanence.experiments.finding import Finding
from remanence.experiments.outcome import Figure
from remanence.metrics import Interval
from remanence.types import Caveat

if TYPE_CHECKING:
    from pandas import DataFrame

    from remanence.auditing.answer.examples import Examples
    from remanence.auditing.answer.sentences import Sentence
    from remanence.types import Data

SCHEMA = 5
Status: TypeAlias = Literal["ran", "refused", "failed", "skipped"]
Severity: TypeAlias = Literal["inconclusive", "none-found", "membership", "some-records", "many-records"]
SEVERITIES: tuple[Severity, ...] = ("inconclusive", "none-found", "membership", "some-records", "many-records")


@final
@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How well reconstructions pick their records out of held-out ones: the rank of the record, 1 is the best.

    `first` and `first_five` are fractions of the records; `chance_…` is what held-out records reach among the others.
    """

    held_out: int  # records among which each is ranked
    median: float
    chance_median: float | None
    first: float
    chance_first: float | None
    first_five: float
    chance_first_five: float | None


@final
@dataclass(frozen=True, kw_only=True)
class AuditTest:
    """All attacks on the release together: how many of the records, or subjects, are found by one or more of them, of
    which about `false` by chance, and `p`, that held-out records score as well.

    `copies` of those found are exact. Before `smallest_list` records leak, none can be listed, and `p` is at least
    `smallest_p`. Where the held-out records are too few for any list, or for a p of the level of an audit, it takes
    `needed` of each class of the private ones, and `lacking` are the classes with fewer, where there are several.
    """

    records: int
    found: int
    copies: int
    false: float
    fdr: float
    p: float
    held_out: int
    smallest_list: int
    smallest_p: float
    needed: int  # 0: there are enough
    lacking: tuple[int, ...]
    untested: tuple[int, ...]  # classes of which no record was held out
    subjects: bool  # whether subjects are counted rather than records


@final
@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """One attack of an audit, whether it ran or not; `reason` says why not, or what makes it weaker than usual.

    `found` counts the records on the list of the rank test at a false-discovery rate of `fdr`, and exact copies, with
    its 95 % interval from `low` to `high`; of these about `chance` are there by chance.
    """

    name: str
    status: Status
    reason: str | None = None
    knowledge: str = ""  # what this attack was shown, a rung of the ladder of knowledge
    records: int | None = None
    found: int | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    exact: int | None = None  # of those found: copies, far nearer to their record than any held-out record is
    fdr: float | None = None  # of the list
    p: float | None = None  # of all records together: that held-out ones score as well
    ranks: Ranks | None = None
    seconds: float = 0.0
    call: str | None = None  # the Python expression that makes the attack
    subject: Literal["release", "stand-in"] = "release"
    shortened: bool = False  # to keep the budget: `reason` says by what


@final
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One measurement without a reconstruction: membership, the span, labels. It never counts as found."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    chance: float | None
    meaning: str
    p: float | None = None  # of the value under chance
    group: Literal["membership", "span", "labels", "tokens", "other"] = "other"


@final
@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of the preflight: `stop` ends the audit before any attack, with the way out."""

    name: str
    status: Literal["ok", "note", "warning", "stop"]
    text: str


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What one attack and its scores are expected to take."""

    name: str
    seconds: float | None
    bytes: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class PreflightSummary:
    """What was looked at before any attack: checks in words, numbers by name, an estimate for each attack."""

    checks: tuple[Check, ...]
    numbers: dict[str, float | None]
    updated_layers: tuple[str, ...]  # whose weights training changed, where the base is known
    estimates: tuple[Estimate, ...]
    seconds: float


@final
@dataclass(frozen=True, kw_only=True)
class Released:
    """What was released, in words."""

    kind: str
    model: str
    parameters: int
    shape: tuple[int, ...]
    num_classes: int
    shows: dict[str, str]
    withholds: str


@final
@dataclass(frozen=True, kw_only=True)
class Digests:
    """SHA-256 of the files, or of the arrays where no files were given."""

    model: str
    base: str | None
    data: str
    held_out: str


@final
@dataclass(frozen=True, kw_only=True)
class Countermeasure:
    """A stand-in that was made with one countermeasure: how accurate it is and what leaks from it.

    The first of a list is the baseline, without any. A stand-in of a model is trained again; one of a federated update
    is sent again, with a `value` on the axis `name` of a sweep, its accuracy being that after a short federated
    training. Where differential privacy applies, no attack finds a larger fraction of the records than `bound`, nor
    does a membership test at a false-positive rate of 1 %.
    """

    name: str
    setting: str
    status: Status
    reason: str | None = None  # why it did not run, or what limits it
    value: float | None = None
    accuracy: Interval | None = None  # on held-out records
    attack: AttackRow | None = None  # of a model the strongest on the baseline, of an update the strongest on this one
    together: AuditTest | None = None  # all attacks on an update, or one of them where that alone shows a leak
    no_time: tuple[str, ...] = ()  # attacks on an update that did not run or were stopped, for lack of time
    labels: Evidence | None = None  # of an update
    tokens: Evidence | None = None  # of an update on text: how many of the batch's tokens it shows
    tpr: Evidence | None = None  # of the membership test with the largest AUC
    auc: Evidence | None = None
    epsilon: float | None = None
    delta: float | None = None
    bound: float | None = None
    seconds: float = 0.0


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of an audit, as `--json` prints it and `report.json` holds it."""

    schema: int
    command: str
    date: str
    release: Released
    digests: Digests
    preflight: PreflightSummary
    attacks: tuple[AttackRow, ...]
    together: AuditTest | None  # None where no attack ran
    evidence: tuple[Evidence, ...]
    verdict: str
    severity: Severity
    not_tested: tuple[str, ...]
    correction: str  # for several attacks
    advice: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    figures: tuple[Figure, ...]
    budget: float  # seconds
    seconds: float
    seed: int
    versions: dict[str, str]
    records: int
    held_out: int
    countermeasures: tuple[Countermeasure, ...] = ()  # on request
    what_would_help: str | None = None  # of a sweep, in a sentence


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The answer, and what it was read from: the findings of the attacks, by name, and the records.

    `print(report)` says it in ten lines, a notebook shows a table, `report.save(folder)` writes the page.
    """

    answer: Answer
    findings: Mapping[str, Finding] = field(default_factory=dict)
    truth: "Data | None" = None
    stored: Mapping[str, "Examples"] = field(default_factory=dict)  # of a report that was loaded
    sentences: "tuple[Sentence, ...]" = ()  # of an audit of text

    @property
    def attacks(self) -> tuple[AttackRow, ...]:
        """One row for each attack, refused ones included."""
        return self.answer.attacks

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Membership, span and labels."""
        return self.answer.evidence

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        return self.answer.verdict

    @property
    def severity(self) -> Severity:
        """How bad it is, on the scale of docs/severity.md."""
        return self.answer.severity

    @property
    def worst(self) -> AttackRow | None:
        """The attack that found the most records of the release, None where none ran."""
        ran = [row for row in self.attacks if row.status == "ran" and row.subject == "release"]
        return max(ran, key=lambda row: (row.found or 0, row.exact or 0)) if ran else None

    @property
    def examples(self) -> Mapping[str, "Examples"]:
        """The worst records of each attack that ran, by its name: truth, reconstruction, look-alike."""
        from remanence.auditing.answer.examples import examples_of

        if self.stored or self.truth is None:
            return self.stored
        return {name: examples_of(finding, self.truth) for name, finding in self.findings.items()}

    def __str__(self) -> str:
        from remanence.auditing.answer.words import lines_of

        return "\n".join(lines_of(self.answer))

    def __repr__(self) -> str:
        ran = sum(row.status == "ran" for row in self.attacks)
        return f"Report({self.severity}: {ran} of {len(self.attacks)} attacks ran on a {self.answer.release.kind})"

    def _repr_html_(self) -> str:
        from remanence.auditing.answer.page import render_table

        return render_table(self.answer)

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values."""
        answer: dict[str, Any] = encode(self.answer)
        return answer

    def to_frame(self) -> "DataFrame":
        """One row for each attack, as a pandas frame with the fields of `AttackRow` as columns."""
        try:
            import pandas
        except ImportError:
            message = "`to_frame` needs pandas: install it (`pip install pandas`), or use `report.attacks`"
            raise BadInput(message, code="missing-package", argument="pandas") from None
        return pandas.DataFrame(
            [encode(row) for row in self.attacks], columns=[each.name for each in fields(AttackRow)]
        )

    def to_html(self, *, redact: bool = False) -> str:
        """The page, self-contained. With `redact` it shows no picture, no values and no line about a single record."""
        from remanence.auditing.answer.page import render_report
        from remanence.auditing.answer.saved import redacted

        return render_report(redacted(self) if redact else self)

    def model_card(self) -> str:
        """A paragraph for the model card, in Markdown."""
        from remanence.auditing.answer.formats import model_card

        return model_card(self.answer)

    def save(self, folder: Path | str, *, redact: bool = False) -> Path:
        """Write `report.json`, `record.json`, `report.html` and, unless redacted, `images.safetensors` or, of text,
        `sentences.json`."""
        from remanence.auditing.answer.saved import save_report

        save_report(self, Path(folder), redact=redact)
        return Path(folder)

    @classmethod
    def load(cls, folder: Path | str) -> "Report":
        """The report that `save` wrote into `folder`, without its findings."""
        from remanence.auditing.answer.saved import load_report

        return load_report(Path(folder))


def schema() -> dict[str, Any]:
    """The JSON schema of an answer."""
    return {"title": "remanence audit", **json_schema(Answer)}
