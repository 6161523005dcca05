"""The checks: a statistic of a layer, the limit above which it is flagged, and what it means for an engineer.

The limits are rounded values above those of the honest models of `benchmarks/inspection.py --seed 0 --seeds 12`; false
positives are counted on models of other seeds (docs/inspect.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from remanence.diagnostics.inspection import statistics
from remanence.diagnostics.inspection.layers import Layer


@final
@dataclass(frozen=True, kw_only=True)
class Check:
    """A statistic of a layer, None where it cannot be measured; honest weights do not exceed `limit`."""

    code: str
    statistic: Callable[[Layer], float | None]
    limit: float
    measured: str  # what the number is
    meaning: str  # what it lets a server do


CHECKS = (
    Check(
        code="parallel-rows",
        statistic=statistics.parallel_rows,
        limit=0.5,
        measured="fraction of rows parallel to another one",
        meaning="neurons of one direction cut the records into slices, and a slice of one record gives it away",
    ),
    Check(
        code="graded-biases",
        statistic=statistics.graded_biases,
        limit=0.9,
        measured="rank correlation of biases with their position",
        meaning="biases in order are the quantiles by which an imprint module separates records",
    ),
    Check(
        code="equal-columns",
        statistic=statistics.equal_columns,
        limit=0.6,
        measured="fraction of inputs with the same outgoing weights",
        meaning="neurons with the same error differ by the records alone, which their gradients then give away",
    ),
    Check(
        code="rare-activation",
        statistic=statistics.rare_activation,
        limit=1.5,
        measured="standard deviations by which neurons stay below zero",
        meaning="neurons that nearly no record activates pass on the gradient of single records",
    ),
    Check(
        code="dead-neurons",
        statistic=statistics.dead_neurons,
        limit=0.9,
        measured="fraction of neurons that no input in [-1, 1] activates",
        meaning="a layer that is off lets no gradient through, so that a sum over clients is that of a single one",
    ),
    Check(
        code="large-scale",
        statistic=statistics.gain,
        limit=30.0,
        measured="root mean square norm of a row",
        meaning="a layer that amplifies this much lets the gradient of one record drown the others",
    ),
    Check(
        code="large-bias",
        statistic=statistics.largest_bias,
        limit=100.0,
        measured="largest bias over the median norm of a row",
        meaning="biases that outweigh all inputs decide which records have a gradient at all",
    ),
    Check(
        code="outlier-row",
        statistic=statistics.outlier_row,
        limit=5.0,
        measured="largest norm of a row over the second largest",
        meaning="one amplified output makes the gradient that of the records it singles out",
    ),
    Check(
        code="identity-kernels",
        statistic=statistics.identity_kernels,
        limit=0.5,
        measured="fraction of kernels that are one weight at the same position",
        meaning="convolutions that pass images on as they are bring them to a trap after them",
    ),
)
