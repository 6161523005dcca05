"""The fully connected layer that the records of a gradient release enter, for attacks that divide its gradients, and
whether there is something to divide."""

from collections.abc import Iterable
from math import prod

from torch.nn.modules.batchnorm import _BatchNorm

from remanence.errors import BadInput
from remanence.models.normalisation import InputNormalisation
from remanence.models.operations import Linear, describe
from remanence.models.structure import Unsupported, first_linear
from remanence.releases import KnowsGradient


def entry_layer(release: KnowsGradient, *, by: str) -> tuple[Linear, InputNormalisation]:
    """The layer with a bias that the records enter as they are or normalised, and how they enter it."""
    first, numbers = first_linear(release.model, release.shape), prod(release.shape)
    normalisation = None if isinstance(first, Unsupported) else first.normalisation
    if isinstance(first, Unsupported) or normalisation is None:
        why = first.reason if isinstance(first, Unsupported) else f"this one begins with {describe(first.before)}"
        message = (
            f"`model` must begin with a linear layer that the {numbers} numbers of a record enter for {by}; "
            f"{why}: use GradientMatching"
        )
        raise BadInput(message, code="unsupported-model", argument="release")
    if release.batch_norm == "training" and any(isinstance(each, _BatchNorm) for each in release.model.modules()):
        message = (
            f"{by} needs gradients that are sums over records, and BatchNorm in training mode makes that of each "
            "record depend on the others: use GradientMatching"
        )
        raise BadInput(message, code="unsupported-training", argument="release")
    if first.layer.weight not in release.gradient:
        message = f"{by} reads the gradient of `{first.layer.path}`, which was frozen: use GradientMatching"
        raise BadInput(message, code="unsupported-training", argument="release")
    if not first.layer.has_bias:
        message = f"{by} divides by the gradient of the bias of `{first.layer.path}`, which has none: use Stein"
        raise BadInput(message, code="unsupported-model", argument="release")
    return first.layer, normalisation


def check_gradient(release: KnowsGradient, names: Iterable[str]) -> None:
    """Refuse a gradient with NaN or infinite values, and one that is zero for a parameter of these `names`."""
    for name, g in release.gradient.items():
        if not bool(g.isfinite().all()):
            message = f"`gradient` of `{name}` holds NaN or infinite values: request it again"
            raise BadInput(message, code="not-finite", argument="gradient")
    for name in names:
        if not bool(release.gradient[name].any()):
            message = f"`gradient` of `{name}` is zero, and shows nothing of the records: request it again"
            raise BadInput(message, code="empty", argument="gradient")


def check_labels(release: KnowsGradient, records: int) -> None:
    """Refuse labels that are not those of all records."""
    if release.labels is not None and release.labels.shape != (records,):
        shape = tuple(release.labels.shape)
        message = f"`labels` must be one for each of the {records} records, got {shape}: give all of them, or none"
        raise BadInput(message, code="shape-mismatch", argument="labels")
