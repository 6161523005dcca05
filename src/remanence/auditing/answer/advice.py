"""What to do next, from the step of severity and the kind of release: a few sentences, the first the decision."""

from collections.abc import Sequence

from remanence.auditing.answer.report import AttackRow, Check, Severity
from remanence.auditing.answer.threats import TEXT
from remanence.auditing.answer.undecided import KIND, NEAR_COPIES, is_assumed

UPDATES = ("Gradient", "LocalUpdate", TEXT)


def advice(kind: str, step: Severity, attacks: Sequence[AttackRow], checks: Sequence[Check] = ()) -> tuple[str, ...]:
    """What the owner of the data can do about a release of this `kind`; where the preflight warned that something does
    not fit, and no record was reconstructed, putting that right comes first."""
    if step in ("some-records", "many-records"):
        return _against_reconstruction(kind, kind in UPDATES)
    warned = [check for check in checks if check.status == "warning" and is_assumed(check)]
    first = [
        f"Attacks may have searched in vain: put this right, and audit again. {check.text}" for check in warned[:1]
    ]
    if any(check.name == "update" for check in warned):
        first.append("Where a defense changed it, audit the update without it: `--sweep` says what the defense hides.")
    compared = (KIND, NEAR_COPIES, "held-out")
    few = [check.text for name in compared for check in checks if check.status == "warning" and check.name == name]
    return (*first, *_without_reconstruction(kind in UPDATES, step, attacks, few))


def _without_reconstruction(
    update: bool, step: Severity, attacks: Sequence[AttackRow], few: Sequence[str]
) -> tuple[str, ...]:
    if step == "membership":
        return _against_membership(update)
    late = [row.name for row in attacks if row.status == "skipped" or row.shortened]
    more = (f"Give a larger budget: {', '.join(late)} did not run in full, for lack of time.",) if late else ()
    if step == "inconclusive":
        if more and not any(row.status == "ran" for row in attacks):
            return more
        known = "the local training" if update else "the base model, the training recipe, the other records"
        missing = few[0] if few else f"give what an attacker may have ({known}) and what the attacks need."
        return (f"Do not take this for an answer, and audit again: {missing[0].lower()}{missing[1:]}", *more)
    lacking = [row.name for row in attacks if row.status == "refused" and (row.reason or "").endswith("--recipe")]
    recipe = (
        f"Say how the model was trained (`--recipe`), as far as it is known: {', '.join(lacking)}, which compare it "
        "with its base, did not run without.",
    )
    return (
        "Keep this report with the release, and say in the model card what was tested and what was not.",
        *(recipe if lacking else ()),
        *more,
        "Audit again when the model, its data, what is released or the known attacks change.",
    )


def _against_reconstruction(kind: str, update: bool) -> tuple[str, ...]:
    if update:
        return (
            "Do not send such updates one by one: let the server see only their sum over many clients.",
            "Where single updates must be sent, clip them and add noise (differential privacy), and audit again; "
            "`--sweep` tries how much noise, and sums of how many clients, hide the records.",
            "Larger batches and more local steps hide single records less reliably than noise does.",
        )
    base = ("If the base model need not be public, withhold it: the attacks that found records compare with it.",)
    return (
        "Do not publish these weights: treat them as a copy of the records that were found.",
        *(base if kind.startswith("FineTuned") else ()),
        "Retrain with differential privacy, or with those records left out or replaced, and audit again.",
    )


def _against_membership(update: bool) -> tuple[str, ...]:
    what = "this update" if update else "this model"
    return (
        f"If being in the data is itself sensitive, do not release {what} as it is.",
        "Train for fewer epochs, with more records or more regularisation, or with differential privacy; audit again.",
        "If it is not, say in the model card that membership can be inferred.",
    )
