"""Differentially private gradient descent, on all records (DP-GD) or on Poisson samples of them (DP-SGD), and the
accounting of full batches in closed form.

Full-batch DP-GD is the Gaussian mechanism composed once a step, and that composition is exact (Dong, Roth, Su,
"Gaussian Differential Privacy", 2022): T steps with the noise multiplier s are mu-GDP with mu = sqrt(T) / s under
add/remove adjacency, whatever optimiser, learning rate or weight decay makes of the noisy sums, and

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

The number of records, by which the sum is divided, counts as public. Poisson samples are accounted for in
`remanence.training.guarantee`.
"""

from dataclasses import dataclass
from math import erf, exp, inf, isfinite, log, sqrt
from typing import final

from remanence.errors import BadInput, check_above, check_min

DELTA = 1e-5  # Balle et al. 2022


@final
@dataclass(frozen=True, kw_only=True)
class DPGD:
    """DP-GD: the gradient of each record is clipped to the L2 norm `clip`, and Gaussian noise with the standard
    deviation `noise * clip` is added to their sum.

    With a `sample_rate` q below 1 it is DP-SGD (Abadi et al. 2016), as Opacus runs it: each step takes each record with
    the probability q, independently of all others (Poisson sampling), the sum is divided by the expected number of
    records in a step, q times their number, and an epoch has 1/q steps.
    """

    clip: float
    noise: float = 0.0  # in units of `clip`, the noise multiplier; 0: clip only, which guarantees nothing
    sample_rate: float = 1.0  # 1: every record takes part in each step

    def __post_init__(self) -> None:
        check_above(self, clip=0, sample_rate=0)
        check_min(self, noise=0)
        if self.sample_rate > 1:
            message = f"`sample_rate` of DPGD must be a probability above 0, 1 at the most, got {self.sample_rate}"
            raise BadInput(message, code="out-of-range", argument="sample_rate")

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in which a record takes part once on average."""
        return max(1, round(1 / self.sample_rate))

    @classmethod
    def for_epsilon(cls, epsilon: float, *, steps: int, clip: float, delta: float = DELTA) -> "DPGD":
        """DP-GD with the smallest noise with which `steps` full-batch steps are (epsilon, delta)-DP."""
        return cls(clip=clip, noise=noise_for(epsilon, steps=steps, delta=delta))


def mu(noise: float, *, steps: int) -> float:
    """The mu of `steps` full-batch steps with the noise multiplier `noise`."""
    _check_positive("noise", noise)
    _check_steps(steps)
    return sqrt(steps) / noise


def delta(mu: float, epsilon: float) -> float:
    """The smallest delta with which a mu-GDP mechanism is (epsilon, delta)-DP."""
    _check_positive("mu", mu)
    if not (isfinite(epsilon) and epsilon >= 0):
        raise _out_of_range("epsilon", "a finite number, 0 or above", epsilon)
    return exp(_log_delta(mu, epsilon))


def epsilon(mu: float, delta: float = DELTA) -> float:
    """The smallest epsilon with which a mu-GDP mechanism is (epsilon, delta)-DP."""
    from scipy.optimize import brentq
    from scipy.special import ndtri

    _check_positive("mu", mu)
    check_delta(delta)
    if _log_delta(mu, 0.0) <= log(delta):
        return 0.0
    enough = mu * (mu / 2 - float(ndtri(delta)))  # the first term of delta(epsilon) alone is `delta` there
    return float(brentq(lambda e: _log_delta(mu, e) - log(delta), 0.0, enough, xtol=1e-13 * enough, rtol=1e-13))


def noise_for(epsilon: float, *, steps: int, delta: float = DELTA) -> float:
    """The smallest noise multiplier with which `steps` full-batch steps are (epsilon, delta)-DP."""
    from scipy.optimize import bisect

    _check_positive("epsilon", epsilon)
    check_delta(delta)
    _check_steps(steps)
    low = high = log(2 * epsilon) / 2
    while _log_delta(exp(low), epsilon) > log(delta):
        low -= 1
    while _log_delta(exp(high), epsilon) <= log(delta):
        high += 1
    # the logarithm of delta drops steeply where mu is small: only its sign is usable
    found = float(bisect(lambda m: 1.0 if _log_delta(exp(m), epsilon) > log(delta) else -1.0, low, high, xtol=1e-14))
    return sqrt(steps) / exp(found)


def _log_delta(mu: float, epsilon: float) -> float:
    """log delta(epsilon), by exp(epsilon) phi(far) = phi(near): no power of e overflows, no large terms cancel."""
    from scipy.special import erfcx, ndtr

    if epsilon == 0:
        return log(erf(mu / sqrt(8)))
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if near <= 0:
        return log(float(ndtr(-near)) - exp(-near * near / 2) * float(erfcx(far / sqrt(2))) / 2)
    between = float(erfcx(near / sqrt(2)) - erfcx(far / sqrt(2))) / 2
    return log(between) - near * near / 2 if between > 0 else -inf


def _check_positive(name: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise _out_of_range(name, "a finite number above 0", value)


def check_delta(delta: float) -> None:
    """Refuse a `delta` that is no probability between 0 and 1."""
    if not 0 < delta < 1:
        raise _out_of_range("delta", f"between 0 and 1, such as {DELTA}", delta)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise _out_of_range("steps", "1 or more", steps)


def _out_of_range(name: str, expected: str, value: float) -> BadInput:
    return BadInput(f"`{name}` must be {expected}, got {value}", code="out-of-range", argument=name)
