"""Why an attack did not run or was shortened, why a stand-in could not be made, and what sets it apart from what is
released."""

from torch import nn

from remanence.auditing.answer.report import AttackRow, Status
from remanence.errors import BadInput
from remanence.progress import OutOfTime
from remanence.releases.releases import BatchNormMode

NO_TIME = "the budget ended before it did: give more with `--budget`"


def why(fault: Exception) -> tuple[Status, str]:
    """The status and the reason of an attack that did not run, or of a stand-in that could not be made."""
    if isinstance(fault, OutOfTime):
        return "skipped", NO_TIME
    if isinstance(fault, BadInput):
        return "refused", str(fault)
    return "failed", f"{type(fault).__name__}: {str(fault).partition(chr(10))[0]}"


def shortening(*parts: str | None) -> str | None:
    """What was taken away from an attack to keep the budget; None where nothing was."""
    said = [part for part in parts if part]
    return ", ".join([*said, "to keep the budget"]) if said else None


def named(row: AttackRow) -> str:
    """The reason of an attack that did not run, beginning with its name."""
    reason = row.reason or row.status
    return reason if reason.startswith(row.name) else f"{row.name}: {reason}"


def simplified(model: nn.Module, batch_norm: BatchNormMode = "frozen") -> list[str]:
    """What the training of a stand-in leaves out of the layers of its network."""
    notes, layers = list[str](), list(model.modules())
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in layers):
        frozen, training = (
            "BatchNorm keeps the statistics that it begins with",
            "no defense changes BatchNorm statistics",
        )
        notes.append(frozen if batch_norm == "frozen" else training)
    if any(isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p for layer in layers):
        notes.append("it is trained without dropout")
    return notes
