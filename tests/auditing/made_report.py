"""Reports of audits: one made by hand, and one with a real finding on digits."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from gradients import release_of

from remanence.attacks import FirstLayer
from remanence.auditing import AttackRow, Evidence, Report
from remanence.auditing.answer.report import (
    SCHEMA,
    Answer,
    AuditTest,
    Check,
    Digests,
    Estimate,
    PreflightSummary,
    Ranks,
    Released,
)
from remanence.data import load
from remanence.experiments.finding import attack_cases
from remanence.experiments.outcome import Figure, Series
from remanence.models import initial_params, mlp
from remanence.releases import Case
from remanence.training import CrossEntropy
from remanence.types import Caveat

RAN = AttackRow(
    name="FirstLayer",
    status="ran",
    knowledge="an update",
    records=32,
    found=20,
    low=14.0,
    high=25.3,
    chance=0.32,
    exact=18,
    fdr=0.05,
    p=1e-4,
    ranks=Ranks(
        held_out=500,
        median=1.0,
        chance_median=120.0,
        first=0.625,
        chance_first=0.06,
        first_five=0.75,
        chance_first_five=0.2,
    ),
    seconds=0.6,
    call="FirstLayer(tolerance=0.01)",
)
TOGETHER = AuditTest(
    records=32,
    found=20,
    copies=18,
    false=1.0,
    fdr=0.05,
    p=1e-4,
    held_out=500,
    smallest_list=2,
    smallest_p=5e-5,
    needed=0,
    lacking=(),
    untested=(),
    subjects=False,
)
REFUSED = AttackRow(name="GLM", status="refused", reason="GLM needs `fixed`", knowledge="all records but one")
SKIPPED = AttackRow(name="Stein", status="skipped", reason="the budget was spent", knowledge="an update")
FAILED = AttackRow(name="KKT", status="failed", reason="RuntimeError: no", knowledge="the weights")
TPR = Evidence(
    name="membership by loss: tpr@1%",
    value=0.2,
    low=0.08,
    high=0.4,
    chance=0.01,
    meaning="fraction identified",
    group="membership",
)
AUC = replace(TPR, name="membership by loss: AUC", value=0.8, low=0.7, high=0.9, chance=0.5, p=1e-6)
POINTS = Figure(
    title="one point for each record",
    x_label="x",
    y_label="y",
    kind="points",
    series=(Series(name="records", x=(0.1, 0.2), y=(0.3, 0.4)),),
)
BARS = Figure(
    title="bars", x_label="x", y_label="y", kind="bars", series=(Series(name="ours", x=("a", "b"), y=(0.3, 0.4)),)
)


def made_answer(**changes: Any) -> Answer:
    """The answer of an audit that found records."""
    answer = Answer(
        schema=SCHEMA,
        command="remanence audit update net:make --data batch.npz",
        date="2025-01-31T12:00:00+00:00",
        release=Released(
            kind="Gradient",
            model="Linear 64x200, ReLU, Linear 200x10",
            parameters=15010,
            shape=(1, 8, 8),
            num_classes=10,
            shows={"gradient": "15,010 numbers in 4 tensors"},
            withholds="every record of the batch",
        ),
        digests=Digests(model="ab" * 32, base=None, data="cd" * 32, held_out="ef" * 32),
        preflight=PreflightSummary(
            checks=(Check(name="labels", status="ok", text="labels lie in 0..9"),),
            numbers={"accuracy": 0.9, "rank": None},
            updated_layers=("0", "2"),
            estimates=(Estimate(name="FirstLayer", seconds=0.6), Estimate(name="Stein", seconds=None)),
            seconds=0.2,
        ),
        attacks=(RAN, REFUSED, SKIPPED, FAILED),
        together=TOGETHER,
        evidence=(TPR, AUC),
        verdict="20 of 32 records were reconstructed by FirstLayer beyond chance.",
        severity="many-records",
        not_tested=("GLM: GLM needs `fixed`", "threat model not asked about: weights alone"),
        correction="1 attack ran.",
        advice=("Do not send such updates one by one.", "Add noise."),
        caveats=(Caveat(code="few-records", text="There are few records."),),
        figures=(POINTS, BARS),
        budget=900.0,
        seconds=12.5,
        seed=0,
        versions={"remanence": "0.1.0", "torch": "2.11"},
        records=32,
        held_out=500,
    )
    return replace(answer, **changes)


def null_answer(**changes: Any) -> Answer:
    """The answer of an audit that found nothing beyond chance."""
    nothing = replace(RAN, found=0, exact=0, low=0.0, high=3.5, p=0.4)
    quiet = (replace(TPR, value=0.01, low=0.0, high=0.05), replace(AUC, value=0.5, low=0.45, high=0.55, p=0.5))
    verdict = "No record was found by the 1 attack that ran; a stronger or longer attack may find some."
    none = replace(TOGETHER, found=0, copies=0, false=0.0, p=0.4)
    given = {
        "attacks": (nothing, REFUSED),
        "together": none,
        "evidence": quiet,
        "verdict": verdict,
        "severity": "none-found",
    } | changes
    return made_answer(**given)


@cache
def real_report(table: bool = False) -> Report:
    """A report whose finding is real: FirstLayer on the gradient of a batch of digits, as images or as table rows."""
    digits = load("digits").to("cpu", torch.float64)
    if table:
        digits = replace(digits, x=digits.x.flatten(1))
    private, held_out = digits.take(slice(0, 8)), digits.take(slice(8, 210))
    model = mlp(digits.shape, 10, hidden=(100,), activation=torch.nn.ReLU)
    at = {name: p.double() for name, p in initial_params(model, seed=1).items()}
    release = release_of(model, at, private, loss=CrossEntropy())
    finding = attack_cases(
        [Case(release=release, truth=private)], FirstLayer(), public=held_out.take(slice(0, 0)), unrelated=held_out
    )
    found = finding.scores.found
    return Report(
        answer=made_answer(records=8, attacks=(replace(RAN, found=int(found.sum()), records=8), REFUSED)),
        findings={"FirstLayer": finding},
        truth=private,
    )
