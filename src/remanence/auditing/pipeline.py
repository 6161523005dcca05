"""One call, one release, every attack that applies.

    report = audit(WeightsOnly(model=net, final=net.state_dict(), shape=(1, 28, 28), num_classes=10),
                   truth=(x, y), held_out=(other_x, other_y), budget=900)
    print(report)

Preflight first, then what costs no search (membership, span, labels), then the attacks, cheapest first, each within
what is left of the budget. An attack that is refused or fails is a row, and the audit goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from torch.nn.attention import SDPBackend, sdpa_kernel

from remanence.auditing.answer.advice import advice
from remanence.auditing.answer.assembling import correction, not_tested, released, versions, warnings_of
from remanence.auditing.answer.hiding import what_would_help
from remanence.auditing.answer.report import (
    SCHEMA,
    Answer,
    AttackRow,
    Digests,
    Estimate,
    Report,
)
from remanence.auditing.answer.severity import severity, verdict
from remanence.auditing.answer.undecided import is_comparable
from remanence.auditing.answer.words import progress_line
from remanence.auditing.attempts.applicability import Applicability, applicable, in_evaluation_mode
from remanence.auditing.attempts.resuming import Steps
from remanence.auditing.attempts.running import attempt, count_found, minutes
from remanence.auditing.attempts.scoring import ScoringTime
from remanence.auditing.attempts.stand_in import attack_stand_ins, awaits_stand_ins, shows_weights_alone
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.countermeasures.axes import DEFAULT, Sweep
from remanence.auditing.countermeasures.comparison import countermeasures_for
from remanence.auditing.countermeasures.sweep import check_sweep
from remanence.auditing.evidence.columns import column_evidence, encoding_checks
from remanence.auditing.evidence.comparable import copies_alone, undecided_evidence, without_ranks
from remanence.auditing.evidence.membership import gather_evidence
from remanence.auditing.evidence.together import together
from remanence.auditing.inputs.digests import digest_data, digest_params
from remanence.auditing.inputs.records import as_data
from remanence.auditing.inputs.sklearn import covering
from remanence.auditing.text import audit_text
from remanence.data import Tokens
from remanence.errors import BadInput
from remanence.experiments import checks
from remanence.experiments.finding import Finding
from remanence.progress import say
from remanence.releases import TransformerUpdate
from remanence.seeds import derive_seed
from remanence.types import Caveat, Data

Pair: TypeAlias = tuple[Any, Any]
BUDGET = 900.0  # seconds
_EVIDENCE = 0.1  # of the budget that shadow models of a membership test may take


@sdpa_kernel(SDPBackend.MATH)  # the only attention that can be differentiated twice, as attacks have to
def audit(
    release: Any,
    *,
    truth: Data | Tokens | Pair,
    held_out: Data | Tokens | Pair,
    budget: float = BUDGET,
    seed: int = 0,
    attacks: Sequence[str] | None = None,
    command: str = "",
    digests: Digests | None = None,
    store: Path | None = None,
    caveats: Sequence[Caveat] = (),
    defenses: bool = False,
    sweep: Sweep | None = None,
) -> Report:
    """Run every attack that applies to `release` and say which of the `truth`, its private records, come back.

    `held_out` are records of the same kind that the model never saw; the more there are, the finer the levels of
    chance. `attacks` names the only ones to run. `budget` is in seconds. Searches that an interrupted audit left in
    `store` are resumed. `caveats` are added to those of the attacks. With `defenses` half of the budget goes to
    stand-ins that are made again with each countermeasure: a model is trained (`countermeasures.comparison`), the
    update of a client is sent with the settings of a `sweep` such as {"clients": (2, 5), "noise": (0.1, 1)}
    (`countermeasures.sweep`), which may be given without `defenses`. Of an update on text both are `Tokens`.
    """
    if isinstance(release, TransformerUpdate):
        if not isinstance(truth, Tokens) or not isinstance(held_out, Tokens):
            message = "`truth` and `held_out` of an update on text must be `Tokens`"
            raise BadInput(message, code="wrong-type", argument="truth")
        return audit_text(
            release,
            truth=truth,
            held_out=held_out,
            budget=budget,
            seed=seed,
            attacks=attacks,
            command=command,
            digests=digests,
            caveats=caveats,
            sweep=sweep,
            defenses=defenses,
        )
    start, total = perf_counter(), budget
    if sweep is not None:
        check_sweep(sweep, release)
    defenses = defenses or sweep is not None
    budget = budget / 2 if defenses else budget
    release = covering(in_evaluation_mode(release), truth, held_out)
    private, others = as_data(truth, release, "truth"), as_data(held_out, release, "held_out")
    ready = preflight(release, private, others)
    ready = replace(ready, checks=(*ready.checks, *encoding_checks(private, others)))
    if stops := [check for check in ready.checks if check.status == "stop"]:
        raise BadInput(" ".join(check.text for check in stops), code="preflight", argument=stops[0].name)
    for check in ready.checks:
        if check.status == "warning":
            say(f"warning: {check.text}")
    comparable = is_comparable(ready.checks)
    evidence, figures = gather_evidence(
        release, private, others, seed=derive_seed(seed, "evidence"), seconds=_EVIDENCE * budget
    )
    if not comparable:
        evidence, figures = undecided_evidence(evidence), ()
    asked = applicable(release, records=len(private), attacks=attacks, seed=seed)
    if any(each.status != "refused" for each in asked):
        scoring = ScoringTime.measure(private, others)
        asked = tuple(scoring.add_to(each) for each in asked)
    running = [
        each.name if each.total is None else f"{each.name} ({minutes(each.total)})"
        for each in asked
        if each.status != "refused"
    ]
    say(f"attacks that apply: {', '.join(running) or 'none'}; budget {minutes(budget)}")
    steps = Steps(store)
    tried = []
    waiting = sum(each.status != "refused" for each in asked) + (attacks is None and awaits_stand_ins(release, asked))
    for each in asked:
        allowed = (start + budget - perf_counter()) / max(1, waiting)
        one = attempt(each, private, others, allowed, steps, seed)
        tried.append(one if comparable else copies_alone(one))
        if each.status != "refused":
            waiting -= 1
            say(progress_line(tried[-1].row, perf_counter() - start))
    tests = [one.finding.scores.test for one in tried if one.finding is not None]
    found = together(tests, seed=derive_seed(seed, "together"))
    if attacks is None and not (found and found.found) and shows_weights_alone(release, tried):
        tried += attack_stand_ins(release, private, others, start + budget, steps, seed)
    rows = count_found(tried) if comparable else without_ranks(count_found(tried))
    findings = {row.name: one.finding for row, one in zip(rows, tried, strict=True) if one.finding is not None}
    evidence += column_evidence(release, private, others, findings, rows)
    step = severity(rows, evidence, found, ready.checks)
    estimates = tuple(Estimate(name=each.name, seconds=each.total) for each in asked if each.status != "refused")
    helps = (
        countermeasures_for(
            release,
            private,
            others,
            attacks=attacks,
            asked=_strongest_first(asked, rows),
            sweep=DEFAULT if sweep is None else sweep,
            budget=start + total - perf_counter(),
            seed=derive_seed(seed, "countermeasures"),
        )
        if defenses and comparable
        else ()
    )
    answer = Answer(
        schema=SCHEMA,
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        release=released(release, shape=private.shape, num_classes=private.num_classes),
        digests=digests or _digests(release, private, others),
        preflight=replace(ready, estimates=estimates),
        attacks=tuple(rows),
        together=found,
        evidence=evidence,
        verdict=verdict(rows, evidence, step, found, ready.checks),
        severity=step,
        not_tested=not_tested(release, rows),
        correction=correction(rows),
        advice=advice(type(release).__name__, step, rows, ready.checks),
        caveats=(*caveats, *warnings_of(ready.checks), *_caveats(findings)),
        figures=figures,
        budget=total,
        seconds=perf_counter() - start,
        seed=seed,
        versions=versions(),
        records=len(private),
        held_out=len(others),
        countermeasures=helps,
        what_would_help=what_would_help(helps),
    )
    return Report(answer=answer, findings=findings, truth=private)


def _strongest_first(asked: Sequence[Applicability], rows: Sequence[AttackRow]) -> list[Applicability]:
    """The attacks that found records, the one that found the most first; all where none did."""
    found = {row.name: row.found or 0 for row in rows}
    finding = [one for one in asked if found.get(one.name)] or list(asked)
    return sorted(finding, key=lambda one: -found.get(one.name, 0))


def _caveats(findings: dict[str, Finding]) -> tuple[Caveat, ...]:
    """What limits the findings, once each; that an attack found nothing stands in its row."""
    every = [
        replace(caveat, text=f"{name}: {caveat.text}")
        for name, finding in findings.items()
        for caveat in checks.caveats(finding)
        if caveat.code != "nothing-found"
    ]
    return tuple({caveat.code: caveat for caveat in every}.values())


def _digests(release: Any, private: Data, others: Data) -> Digests:
    params, base = getattr(release, "final", None), getattr(release, "initial", None)
    if params is None:
        params, base = release.sent, release.at
    return Digests(
        model=digest_params(params),
        base=None if base is None else digest_params(base),
        data=digest_data(private),
        held_out=digest_data(others),
    )
