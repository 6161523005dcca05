"""The audit of an update on text: as that of records, by the attack on tokens and sequences (decision 0025).

report = audit_text(release, truth=tokens, held_out=others, sweep={"noise": (0.1, 1)})
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import perf_counter

from remanence.auditing.answer.advice import advice
from remanence.auditing.answer.assembling import correction, not_tested, released, versions, warnings_of
from remanence.auditing.answer.hiding import what_would_help
from remanence.auditing.answer.report import SCHEMA, Answer, Digests, Report
from remanence.auditing.answer.sentences import sentences_of, text_verdict
from remanence.auditing.answer.severity import severity
from remanence.auditing.answer.undecided import undecided
from remanence.auditing.answer.words import progress_line
from remanence.auditing.attempts.tokens import TEXT_ATTACKS, attempt_tokens
from remanence.auditing.checks.tokens import check_tokens
from remanence.auditing.countermeasures.axes import DEFAULT, Sweep, settings
from remanence.auditing.countermeasures.text import sweep_tokens
from remanence.auditing.evidence.text_labels import text_labels
from remanence.auditing.evidence.together import together
from remanence.auditing.evidence.tokens import distinct, of_length
from remanence.auditing.inputs.digests import digest_params
from remanence.data import Tokens
from remanence.errors import BadInput, unknown_name
from remanence.progress import say
from remanence.releases import TransformerUpdate
from remanence.seeds import derive_seed
from remanence.types import Caveat


def audit_text(
    release: TransformerUpdate,
    *,
    truth: Tokens,
    held_out: Tokens,
    budget: float,
    seed: int = 0,
    attacks: Sequence[str] | None = None,
    command: str = "",
    digests: Digests | None = None,
    caveats: Sequence[Caveat] = (),
    sweep: Sweep | None = None,
    defenses: bool = False,
) -> Report:
    """Run the attack on text and say which of the sequences `truth` come back, and which of their tokens; arguments are
    those of `audit`."""
    start, end = perf_counter(), perf_counter() + budget
    for name in attacks or ():
        if name not in TEXT_ATTACKS:
            raise unknown_name("attack on text", name, TEXT_ATTACKS, argument="attacks")
    sweep = DEFAULT if sweep is None and defenses else sweep
    if sweep is not None:
        settings(sweep)
    if not len(held_out):
        raise BadInput("`held_out` holds no sequence: give some", code="empty", argument="held_out")
    if truth.ids.shape[1] > release.length:
        message = f"`truth` has sequences of {truth.ids.shape[1]} tokens, and the release of at most {release.length}"
        raise BadInput(message, code="shape-mismatch", argument="truth")
    batch, held_out = of_length(truth, release.length), of_length(held_out, release.length)
    ready = check_tokens(release, batch, held_out)
    if stops := [check for check in ready.checks if check.status == "stop"]:
        raise BadInput(" ".join(check.text for check in stops), code="preflight", argument=stops[0].name)
    for check in ready.checks:
        if check.status == "warning":
            say(f"warning: {check.text}")
    truth = distinct(batch)
    tried = attempt_tokens(release, truth, held_out, seconds=budget / 2 if sweep is not None else budget, seed=seed)
    say(progress_line(tried.row, perf_counter() - start))
    labels = text_labels(release, batch, held_out, seed=derive_seed(seed, "labels"))
    evidence = (*tried.evidence, *([labels] if labels else []))
    found = together([tried.test] if tried.test else [], seed=derive_seed(seed, "together"))
    best = tried.best
    step = severity([tried.row], evidence, found, ready.checks)
    why = undecided([tried.row], found, ready.checks, noun="sentences")
    rows = (
        sweep_tokens(release, batch, held_out, sweep, budget=end - perf_counter(), seed=derive_seed(seed, "sweep"))
        if sweep is not None
        else ()
    )
    kind = type(release).__name__
    answer = Answer(
        schema=SCHEMA,
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        release=released(release, shape=tuple(batch.ids.shape[1:]), num_classes=_words(release, batch)),
        digests=digests or _digests(release, batch, held_out),
        preflight=ready,
        attacks=(tried.row,),
        together=found,
        evidence=evidence,
        verdict=text_verdict(tried.row, best and best.scores, best and best.recall, step, why),
        severity=step,
        not_tested=not_tested(release, [tried.row]),
        correction=correction([tried.row]),
        advice=advice(kind, step, [tried.row], ready.checks),
        caveats=(*caveats, *warnings_of(ready.checks)),
        figures=(),
        budget=budget,
        seconds=perf_counter() - start,
        seed=seed,
        versions=versions(),
        records=len(batch),
        held_out=len(held_out),
        countermeasures=rows,
        what_would_help=what_would_help(rows, noun="sentences"),
    )
    if tried.found is None or tried.test is None:
        return Report(answer=answer)
    return Report(answer=answer, sentences=sentences_of(truth.ids, tried.found, tried.test, truth.vocabulary))


def _words(release: TransformerUpdate, batch: Tokens) -> int:
    """The size of the owner's vocabulary: of a network without special tokens padding is ours, and none of it."""
    return len(batch.vocabulary) - (not release.model.special)


def _digests(release: TransformerUpdate, truth: Tokens, held_out: Tokens) -> Digests:
    return Digests(
        model=digest_params(release.gradient),
        base=digest_params(release.at),
        data=digest_params({"ids": truth.ids, "y": truth.y}),
        held_out=digest_params({"ids": held_out.ids, "y": held_out.y}),
    )
