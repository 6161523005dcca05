"""What the noise of a training guarantees for each of its records: epsilon, and the most that any test can tell.

A step of DP-SGD with noise multiplier s and sample rate q adds to the sum of the others, scaled by the clipping norm,
a record's gradient with the probability q. Its outputs with and without a record are dominated by the pair

    P = (1 - q) N(0, s^2) + q N(1, s^2)    with it,        Q = N(0, s^2)    without it,

and those of T steps by T independent draws (Zhu, Dong, Wang 2022). No test that is positive with a probability of at
most `fpr` under Q is positive under P with one above

    tpr(fpr) = min over epsilon of  delta(epsilon) + exp(epsilon) fpr,
    delta(epsilon) = sup over events E of  P(E) - exp(epsilon) Q(E).

"The reconstruction is close to the record" is such a test, which makes this the bound of Hayes, Mahloujifar, Balle
(2023) on reconstruction. delta(epsilon) of Poisson samples is that of the privacy loss distribution of dp-accounting,
an extra, rounded up; of full batches it has a closed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, floor, inf, log, log1p, sqrt
from typing import TYPE_CHECKING, Any, final

from remanence.errors import BadInput, check_above, check_min
from remanence.training.dp import DELTA, check_delta, epsilon, mu

if TYPE_CHECKING:
    from remanence.training.training import Training

_INTERVAL, _POINTS = 1e-4, 100.0  # of the grid of privacy losses; it is coarser for losses of a wider range
_GRID, _REFINED = 64, 3  # thresholds that are tried at once, and how often between the best of them
_MIN_LOSS = -50.0


@final
@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The guarantee of `steps` steps with the noise multiplier `noise`, each on a Poisson sample at `sample_rate`.

    Neighbours differ in one record that takes part or does not. For a `sample_rate` of 1 it is that of full batches.
    """

    noise: float
    steps: int
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        check_above(self, noise=0, sample_rate=0)
        check_min(self, steps=1)
        if self.sample_rate > 1:
            message = f"`sample_rate` must be a probability above 0, 1 at the most, got {self.sample_rate}"
            raise BadInput(message, code="out-of-range", argument="sample_rate")

    @property
    def mu(self) -> float | None:
        """The mu of Gaussian differential privacy of full batches; None for Poisson samples."""
        return mu(self.noise, steps=self.steps) if self.sample_rate == 1 else None

    @property
    def accountant(self) -> str:
        """How it is accounted for."""
        if self.sample_rate == 1:
            return "closed form (Gaussian DP)"
        return f"privacy loss distribution (dp-accounting {_version()})"

    def epsilon(self, delta: float = DELTA) -> float:
        """The smallest epsilon with which the training is (epsilon, delta)-DP under add/remove adjacency."""
        if (full_batch := self.mu) is not None:
            return epsilon(full_batch, delta)
        check_delta(delta)
        return float(max(losses.get_epsilon_for_delta(delta) for losses in _both(self)))

    def tpr(self, fpr: float) -> float:
        """The largest true-positive rate of any test at the false-positive rate `fpr`, the trade-off function: the
        largest success rate of any attack on a record for which the best guess without the release has the rate `fpr`.
        """
        from scipy.special import ndtr, ndtri

        if not 0 <= fpr <= 1:
            raise BadInput(f"`fpr` must be a probability from 0 to 1, got {fpr}", code="out-of-range", argument="fpr")
        if (full_batch := self.mu) is not None:
            return float(ndtr(ndtri(fpr) + full_batch))
        if fpr in (0, 1):
            return float(fpr)
        return _largest_tpr(_composed(self.noise, self.sample_rate, self.steps, True), fpr, self._smallest_loss)

    @property
    def _smallest_loss(self) -> float:
        """Below all privacy losses of a record that took part, or where they no longer matter."""
        return max(_MIN_LOSS, self.steps * log1p(-self.sample_rate))


def guarantee_of(training: "Training") -> Guarantee | None:
    """The guarantee of a training, None where its steps have no noise.

    Of mini-batches that are shuffled or in order each record is in one a pass, which is accounted for like one step on
    all records, without amplification: neighbours differ in a record whose gradient counts or is zero.
    """
    if training.privacy is None or not training.privacy.noise or not training.epochs:
        return None
    steps = training.epochs * training.privacy.steps_per_epoch
    return Guarantee(noise=training.privacy.noise, steps=steps, sample_rate=training.privacy.sample_rate)


def _largest_tpr(losses: Any, fpr: float, lowest: float) -> float:
    """The minimum over epsilon, which is a valid bound wherever it is taken: it is unimodal, and found on a grid that
    is refined around its best point. Above log(1 / fpr) the bound exceeds one."""

    def bound(threshold: float) -> float:
        return float(losses.get_delta_for_epsilon(threshold)) + exp(threshold) * fpr

    low, high = lowest - 1e-3, -log(fpr)
    best = inf
    for _ in range(_REFINED):
        step = (high - low) / _GRID
        values = [bound(low + i * step) for i in range(_GRID + 1)]
        at = min(range(_GRID + 1), key=values.__getitem__)
        best = min(best, values[at])
        low, high = low + max(0, at - 1) * step, low + min(_GRID, at + 1) * step
    return min(1.0, max(fpr, best))


def _both(guarantee: Guarantee) -> Sequence[Any]:
    """The privacy losses of a record that is removed, and of one that is added."""
    return [_composed(guarantee.noise, guarantee.sample_rate, guarantee.steps, removed) for removed in (True, False)]


@lru_cache(maxsize=32)
def _composed(noise: float, sample_rate: float, steps: int, removed: bool) -> Any:
    """The distribution of the privacy loss of all steps, of dp-accounting, rounded up to a grid ("connect the dots",
    Doroshenko et al. 2022)."""
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_mechanism
    except ImportError:
        message = (
            "the guarantee of DP-SGD with Poisson sampling needs dp-accounting, which is not installed: "
            '`pip install "remanence[dp]"`'
        )
        raise BadInput(message, code="missing-dependency", argument="sample_rate") from None
    import numpy as np

    adjacency = privacy_loss_mechanism.AdjacencyType
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(
        noise, sampling_prob=sample_rate, adjacency_type=adjacency.REMOVE if removed else adjacency.ADD
    )
    bounds = loss.connect_dots_bounds()
    width = bounds.epsilon_upper - bounds.epsilon_lower
    interval = _INTERVAL * max(1.0, width * sqrt(steps) / _POINTS)
    low, high = floor(bounds.epsilon_lower / interval), ceil(bounds.epsilon_upper / interval)
    deltas = loss.get_delta_for_epsilon(np.arange(low, high + 1) * interval)
    one_step = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas)
    return one_step.self_compose(steps)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dp-accounting")
    except PackageNotFoundError:
        return "is missing"
