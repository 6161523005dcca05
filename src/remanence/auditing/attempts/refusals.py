"""Why an attack does not apply to a release, in plain words: the one thing that is missing, and how to give it."""

from dataclasses import replace
from typing import Any

from remanence.auditing.checks.outputs import unknown_layers
from remanence.errors import BadInput
from remanence.models.structure import CNN, MLP, Unsupported, parse
from remanence.releases import KnowsFinal, KnowsUpdate

_INNER = "model."  # what `normalized` puts before the names of the user's layers
_LONGEST = 110  # characters of a description of a network

# What a release must show, in the order in which it is asked for, and what to say where it does not.
_MISSING = {
    "gradient": "needs an update of a federated client: `remanence audit update`",
    "sent": "needs an update of a federated client: `remanence audit update`",
    "final": "needs a published model: `remanence audit model`",
    "fixed": "needs all records but one, which an attacker of this release does not have: --fixed",
    "initial": "needs the model before training: --base",
    "before": "needs another version of the model, from before records were deleted or added",
    "training": "needs the training recipe: --recipe",
}

# The networks that each attack can be run on.
_NETWORKS = {
    "FirstLayer": "nets whose records enter a fully connected layer with a bias",
    "SPEAR": "nets whose records enter a fully connected layer with a bias and a ReLU",
    "RGAP": "CNNs without pooling or shortcuts, below activations that can be inverted",
    "Stein": "fully connected nets with a hidden layer",
    "GLM": "linear models with an intercept",
    "NewtonStep": "nets whose records enter a fully connected layer with a bias",
    "Differencing": "models with a scaler that was fitted to the records",
    "ConvStationarity": (
        "CNNs with two fully connected layers or more and ReLU between them (one is a combination of records for each "
        "class, and no more)"
    ),
    "Stationarity": "fully connected nets with ReLU and a hidden layer",
}


def missing_knowledge(release: Any, needs: type) -> str | None:
    """What `release` would have to show for an attack that `needs` a protocol; None where it shows it all."""
    names = {name for cls in needs.__mro__ for name, member in vars(cls).items() if isinstance(member, property)}
    for name, words in _MISSING.items():
        if name in names and not hasattr(release, name):
            return words
    if "initial" in names and (layers := unknown_layers(release)):
        listed = ", ".join(f"`{layer}`" for layer in layers)
        return (
            f"needs the initial weights of {listed} too, which the base does not hold: --base with those it began with"
        )
    return None


def refusal_words(attack: str, refusal: BadInput, release: Any) -> str:
    """The refusal of an attack in a sentence without the names of arguments, where the network is its reason."""
    if refusal.code != "unsupported-model" or attack not in _NETWORKS:
        return str(refusal)
    return f"works on {_NETWORKS[attack]}, this is {network_words(release)}"


def network_words(release: KnowsFinal | KnowsUpdate) -> str:
    """The network of a release in a few words."""
    match parse(release.model, release.shape):
        case CNN() as net:
            kind, said = "a CNN", str(replace(net, norm=None))
        case MLP() as net:
            kind = "a fully connected net" if len(net.layers) > 1 else "a linear model"
            said = str(replace(net, record_norm=None, flat_norm=None))
        case Unsupported(reason=reason):
            kind, said = "a net that is not recognised", f": {reason}"
    said = said.partition(": ")[2].replace(f" {_INNER}", " ").removeprefix(_INNER)
    return f"{kind}: {said if len(said) <= _LONGEST else said[:_LONGEST].rpartition(',')[0] + ', ...'}"
