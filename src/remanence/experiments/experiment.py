"""An experiment: victims, an attack, and the evaluations that open the truth. One pipeline runs them all.

    victims = Victims(split=..., model=..., training=Training(epochs=100), reveal=all_but_one, per_victim=1)
    experiment = Experiment(label="RecoNN", victims=victims, attack=RecoNN())
    completed = run_experiment(experiment, seed=1)
    completed.outcome.finding.scores.means["ssim"]

`run_experiment` prepares the victims (trains, reveals), hands a `Trial` to each evaluation, and joins what they give.
An evaluation is any function from a `Trial` to an `Outcome`: `Reconstructed` attacks the releases and scores the
reconstructions against the truth (the default); others measure membership, memorization or accuracy of the victims.
What needs no victims at all (a planted gradient, a formula) is a `Measurement`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from time import perf_counter
from typing import Any, Protocol, TypeVar, final

import torch

from remanence.attacks import Attack, ShadowAttack
from remanence.errors import BadInput
from remanence.execution import Backend
from remanence.experiments.checks import caveats, tuned_on_truth
from remanence.experiments.claim import Budget, Claim, check_claims
from remanence.experiments.finding import Finding, attack_cases
from remanence.experiments.outcome import Measure, Outcome, joined, quantities_of
from remanence.experiments.victims import Prepared, Victims
from remanence.metrics import Matching, Metric, default_metrics, hungarian
from remanence.metrics.evaluation import quantities
from remanence.metrics.statistics import bootstrap_mean
from remanence.seeds import derive_seed
from remanence.shadow import Store

V = TypeVar("V", float, int, str)  # where a sweep stands


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """Where an experiment stands on the axis of a sweep: the page plots one figure for each axis."""

    axis: str
    value: float | str  # texts make bars
    series: str = ""
    log: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.value, str) and not (isfinite(self.value) and (self.value > 0 or not self.log)):
            wanted = "a positive number" if self.log else "a finite number"
            message = (
                f"`value` on the axis `{self.axis}` must be {wanted} or a text, got {self.value}: "
                "leave `point` out for an experiment that lies off the axis"
            )
            raise BadInput(message, code="out-of-range", argument="value")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One execution of an experiment by one seed, as its evaluations get it.

    `prepared` holds the trained victims, their releases and the truth; it is None where the experiment has no victims.
    """

    attack: Attack[Any] | ShadowAttack | None
    seed: int
    device: torch.device
    prepared: Prepared | None = None
    store: Store | None = None

    @property
    def victims(self) -> Prepared:
        """The prepared victims, for evaluations that need them."""
        if self.prepared is None:
            raise BadInput("this evaluation needs `victims`, got an experiment without any", code="empty")
        return self.prepared


class Evaluation(Protocol):
    """A measurement of one trial. Evaluations are the only code that sees releases and truth together."""

    def __call__(self, trial: Trial, /) -> Outcome: ...


@final
@dataclass(frozen=True, kw_only=True)
class Reconstructed:
    """Evaluation: run the attack on every release and score the reconstructions, with null levels, against the truth.

    `metrics` defaults to `default_metrics` of the records; the first of them decides which records count as found.
    """

    matching: Matching = hungarian
    metrics: tuple[Metric, ...] | None = None

    def __call__(self, trial: Trial) -> Outcome:
        """The finding, with caveats about the victims and about the scores."""
        victims, about_victims = trial.victims, trial.victims.caveats
        finding = self.finding(trial, victims)
        return Outcome(finding=finding, caveats=(*about_victims, *caveats(finding)))

    def finding(self, trial: Trial, victims: Prepared) -> Finding:
        """What the attack of `trial` reconstructed from `victims`, and the scores."""
        if trial.attack is None:
            raise BadInput("`Reconstructed` needs an `attack`, got an experiment without one", code="empty")
        return attack_cases(
            victims.cases,
            trial.attack,
            public=victims.split.public,
            unrelated=victims.split.test,
            bank=victims.bank if isinstance(trial.attack, ShadowAttack) else None,
            matching=self.matching,
            metrics=self.metrics,
            store=trial.store,
            seed=trial.seed,
        )


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Evaluation: call `measure(seed, device)`, for what is measured without the victims of the experiment."""

    measure: Callable[[int, torch.device], Outcome]

    def __call__(self, trial: Trial) -> Outcome:
        return self.measure(trial.seed, trial.device)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Victims, an attack on them, the evaluations, and what a paper printed.

    `about` says in a plain sentence what is measured, where the label does not. `point` is its position in a sweep.
    `budget` states where it spends less than the paper. `tuned_on_truth` adds the caveat that the attack's settings
    were chosen by looking at true records. With `repeats` the experiment runs that often, each time with a seed of its
    own (the first with the seed given): every quantity becomes a mean with its 95 % interval over the repeats.
    """

    label: str
    victims: Victims | None = None
    attack: Attack[Any] | ShadowAttack | None = None
    evaluations: tuple[Evaluation, ...] = (Reconstructed(),)
    about: str = ""
    claims: tuple[Claim, ...] = ()
    point: Point | None = None
    budget: Budget | None = None
    tuned_on_truth: bool = False
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.attack is not None and self.victims is None:
            raise BadInput(f"`attack` of `{self.label}` needs `victims`, got none", code="conflict", argument="victims")
        if not self.evaluations:
            raise BadInput(f"`evaluations` of `{self.label}` is empty", code="empty", argument="evaluations")
        if self.repeats < 1:
            raise BadInput(f"`repeats` must be 1 or more, got {self.repeats}", code="out-of-range", argument="repeats")
        if known := self._known_quantities():
            check_claims(self.claims, known)

    def with_victims(self, **changes: Any) -> "Experiment":
        """The same experiment on other victims: those of this one with some fields replaced."""
        if self.victims is None:
            raise BadInput(f"`{self.label}` has no victims to change", code="empty", argument="victims")
        return replace(self, victims=replace(self.victims, **changes))

    def _known_quantities(self, prepared: Prepared | None = None) -> Mapping[str, bool | None]:
        """The quantities of the only evaluation, if it is `Reconstructed` and its metrics are known already."""
        match self.evaluations:
            case (Reconstructed(metrics=metrics),) if metrics or prepared:
                return quantities(metrics or default_metrics(prepared.split.private))  # type: ignore[union-attr]
        return {}


def sweep(
    experiment: Experiment,
    axis: str,
    values: Iterable[V],
    vary: Callable[[Experiment, V], Experiment],
    *,
    label: str = "{axis} {value}",
    series: str = "",
    log: bool = False,
) -> list[Experiment]:
    """The experiments `vary(experiment, value)`, labelled and set on the axis, in the order of `values`.

    `label` is a format string with `axis`, `value` and `series`: ``label="epsilon {value:g}"``. Where `vary` changes
    the attack only, all hold the same victims and these are trained once.
    """
    return [
        replace(
            vary(experiment, value),
            label=label.format(axis=axis, value=value, series=series),
            point=Point(axis=axis, value=value, series=series, log=log),
        )
        for value in values
    ]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Completed:
    """An experiment that ran: its outcome; or that was refused: why."""

    experiment: Experiment
    outcome: Outcome = field(default_factory=Outcome)
    refusal: str | None = None
    seconds: float
    device: torch.device

    @property
    def finding(self) -> Finding:
        """What the attack reconstructed, and the scores."""
        if self.outcome.finding is None:
            raise BadInput(f"`{self.experiment.label}` has no finding: no attack was evaluated", code="empty")
        return self.outcome.finding


def prepare(
    victims: Victims,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    backend: Backend | None = None,
    store: Store | None = None,
    require_fit: bool = True,
) -> Prepared:
    """What `victims` become for one seed: trained and revealed when an evaluation first asks for it."""
    return Prepared(
        victims=victims, seed=seed, device=device_of(device), backend=backend, store=store, require_fit=require_fit
    )


def run_experiment(
    experiment: Experiment,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    backend: Backend | None = None,
    store: Store | None = None,
    require_fit: bool = True,
    prepared: Callable[[Victims, int], Prepared] | None = None,
) -> Completed:
    """Run every evaluation of `experiment` on its victims; `prepared` gives victims that other experiments share."""
    start, device = perf_counter(), device_of(device)

    def fresh(victims: Victims, seed: int) -> Prepared:
        return prepare(victims, seed=seed, device=device, backend=backend, store=store, require_fit=require_fit)

    outcomes = []
    for i in range(experiment.repeats):
        repeat_seed = derive_seed(seed, "repeat", i) if i else seed
        victims = None if experiment.victims is None else (prepared or fresh)(experiment.victims, repeat_seed)
        if victims and (known := experiment._known_quantities(victims)):
            check_claims(experiment.claims, known)
        trial = Trial(attack=experiment.attack, seed=repeat_seed, device=device, prepared=victims, store=store)
        outcomes.append(joined([evaluation(trial) for evaluation in experiment.evaluations]))
    outcome = outcomes[0] if len(outcomes) == 1 else _over_repeats(outcomes, seed)
    check_claims(experiment.claims, dict.fromkeys(quantities_of(outcome)))
    if experiment.tuned_on_truth:
        outcome = replace(outcome, caveats=(*outcome.caveats, tuned_on_truth()))
    return Completed(experiment=experiment, outcome=outcome, seconds=perf_counter() - start, device=device)


def _over_repeats(outcomes: list[Outcome], seed: int) -> Outcome:
    """The first outcome, with every quantity as its mean over the repeats and the interval over them."""
    first, values = outcomes[0], [quantities_of(outcome) for outcome in outcomes]
    meanings = {measure.name: measure for measure in first.measures}
    measures = []
    for name in values[0]:
        found = bootstrap_mean(torch.tensor([each[name] for each in values]), seed=derive_seed(seed, "repeats", name))
        known = meanings.get(name)
        meaning = f"{known.meaning}; mean" if known else "mean"
        measures.append(
            Measure.from_interval(
                name, found, meaning=f"{meaning} over {len(outcomes)} repeats", chance=known.chance if known else None
            )
        )
    return replace(first, measures=tuple(measures))


def device_of(device: torch.device | str) -> torch.device:
    """The device of this name; one that is not here is refused."""
    found = device_named(device)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        message = f"`device` is `{found}`, but torch finds {torch.cuda.device_count()} CUDA devices here: use `cpu`"
        raise BadInput(message, code="unknown-name", argument="device")
    return found


def device_named(device: torch.device | str) -> torch.device:
    """The device of this name, here or on another machine."""
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        message = f"`device` must be like `cpu`, `cuda` or `cuda:0`, got `{device}`"
        raise BadInput(message, code="unknown-name", argument="device")
    return found
