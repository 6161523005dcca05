"""The differencing attack on a normalisation: the mean of all records less the known ones is the one that is unknown.

Differencing is the oldest attack on published statistics (Denning, Denning, Schwartz, "The Tracker", ACM TODS 1979). A
model that standardises its records by their own mean and standard deviation publishes both, to all digits, however
it is trained and whatever follows: N mean - sum of the fixed records is the unknown record, feature by feature, and the
standard deviation verifies it.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.bounds import Bounds, clamp, described, within
from remanence.errors import BadInput
from remanence.models.structure import Unsupported, first_linear
from remanence.releases import KnowsFixed, require
from remanence.types import Reconstruction

_TOLERANCE = 1e-3  # of a standard deviation, relative


@final
@dataclass(frozen=True, kw_only=True)
class Differencing:
    """The difference of a mean, without parameters; features that it does not give are the mean of the fixed records.

    Its objective is the fraction of features that the standard deviation does not verify.
    """

    def run(self, release: KnowsFixed, *, seed: int) -> Reconstruction:
        require(release, KnowsFixed, by=type(self).__name__)
        fixed = release.fixed.x.flatten(1).double()
        mean, std = _statistics(release)
        records = len(fixed) + 1
        found = records * mean - fixed.sum(0)
        verified = _verified(fixed, found, mean, std, release.bounds)
        if not bool(verified.any()):
            message = (
                "the model must normalise its records by their own mean and standard deviation for Differencing, got "
                f"none that fits the fixed records and one more in {described(release.bounds)}"
            )
            raise BadInput(message, code="unsupported-model", argument="release")
        record = clamp(torch.where(verified, found, fixed.mean(0)), release.bounds)
        x = record.to(release.fixed.x)[None].unflatten(1, release.shape)
        return Reconstruction(x=x, objective=float((~verified).double().mean()))


def _statistics(release: KnowsFixed) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation, (features,) each, by which the model normalises records."""
    first = first_linear(release.model, release.shape)
    normalisation = None if isinstance(first, Unsupported) else first.normalisation
    if normalisation is None:
        why = first.reason if isinstance(first, Unsupported) else "other layers are before its first linear one"
        message = f"the model must begin with a normalisation and a linear layer for Differencing: {why}"
        raise BadInput(message, code="unsupported-model", argument="release")
    params = {name: p.double() for name, p in release.final.items() if p.is_floating_point()}
    zero = release.fixed.x.new_zeros(1, release.fixed.x[0].numel()).double()
    mean = normalisation.records(params, zero).flatten()
    return mean, normalisation.to_records(params, zero + 1).flatten().abs()


def _verified(fixed: Tensor, found: Tensor, mean: Tensor, std: Tensor, bounds: Bounds) -> Tensor:
    """(features,): whether a record is in its box and gives the standard deviation of all records, with N or N - 1."""
    records = len(fixed) + 1
    squares = (fixed - mean).square().sum(0) + (found - mean).square()
    near = [(squares / count).sqrt() for count in (records, max(1, records - 1))]
    same = torch.stack([(each - std).abs() <= _TOLERANCE * std for each in near]).any(0)
    return same & within(found, bounds, tolerance=_TOLERANCE)
