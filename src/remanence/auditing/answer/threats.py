"""Threat models: which of them an audit of a release asks about, by the kind of release; the others are not tested."""

from typing import Final

TEXT: Final = "TransformerUpdate"  # the kind of release of which the records are sentences
THREATS: Final[dict[str, tuple[str, ...]]] = {
    "weights alone": ("WeightsOnly", "FineTuned", "FineTunedUnknownRecipe", "AllButOne", "AllButOneUnknownInit"),
    "weights beside the base they were tuned from": ("FineTuned", "FineTunedUnknownRecipe", "AllButOne"),
    "an attacker who has all records but one": ("AllButOne", "AllButOneUnknownInit"),
    "a federated update": ("Gradient", "LocalUpdate", TEXT),
    "queries to a served model": (),
    "several releases of one model together": ("BeforeAndAfter",),
}


def threats_asked(kind: str) -> tuple[str, ...]:
    """The threat models that an audit of a release of this `kind` asks about."""
    return tuple(threat for threat, kinds in THREATS.items() if kind in kinds)


def threats_not_asked(kind: str) -> tuple[str, ...]:
    """The threat models that it says nothing about."""
    return tuple(threat for threat, kinds in THREATS.items() if kind not in kinds)
