"""What to do next, from the step of severity and the kind of release: three sentences, the first the decision."""

from collections.abc import Sequence

from remanence.auditing.answer.report import AttackRow, Severity

UPDATES = ("Gradient", "LocalUpdate")


def advice(kind: str, step: Severity, attacks: Sequence[AttackRow]) -> tuple[str, ...]:
    """What the owner of the data can do about a release of this `kind`."""
    update = kind in UPDATES
    if step in ("some-records", "many-records"):
        return _against_reconstruction(kind, update)
    if step == "membership":
        return _against_membership(update)
    skipped = [row.name for row in attacks if row.status == "skipped"]
    more = (f"Give a larger budget: {', '.join(skipped)} did not run for lack of time.",) if skipped else ()
    if step == "inconclusive":
        missing = (
            "Do not take this for an answer: give what an attacker may have (the base model, the training recipe, the "
            "other records) and more held-out records, and audit again.",
        )
        return (*missing, *more)
    return (
        "Keep this report with the release, and say in the model card what was tested and what was not.",
        *more,
        "Audit again when the model, its data, what is released or the known attacks change.",
    )


def _against_reconstruction(kind: str, update: bool) -> tuple[str, ...]:
    if update:
        return (
            "Do not send such updates one by one: let the server see only their sum over many clients.",
            "Where single updates must be sent, clip them and add noise (differential privacy), and audit again.",
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
