"""The guarantee of DP-SGD against Opacus, simulated tests of the pair that dominates it, and its closed forms."""

import sys

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.stats import norm

from remanence import DPGD, Training
from remanence.training.guarantee import Guarantee, guarantee_of

KAPPAS = [1e-5, 0.01, 0.3, 0.9]
OPACUS = [  # noise, sample rate, steps, delta; epsilon of the PRV (up to 0.01 above) and the RDP accountant of 1.5.4
    (1.0, 0.01, 1000, 1e-5, 1.838371637, 2.101365272),
    (0.7, 0.05, 200, 1e-5, 10.560931303, 11.977264971),
    (2.0, 0.1, 500, 1e-6, 6.226973946, 6.678998969),
    (1.1, 256 / 60_000, 14_062, 1e-5, 2.391743696, 2.596556869),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "prv", "rdp"), OPACUS)
def test_epsilon_is_what_opacus_reports(
    noise: float, rate: float, steps: int, delta: float, prv: float, rdp: float
) -> None:
    ours = Guarantee(noise=noise, steps=steps, sample_rate=rate).epsilon(delta)
    assert prv - 0.03 <= ours <= prv
    assert ours < rdp


def test_a_thousand_steps_at_one_percent_with_noise_one_are_epsilon_1_83() -> None:
    numerical, bound = PLDAccountant(), RdpAccountant()
    for accountant in (numerical, bound):
        accountant.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1000)
    ours = Guarantee(noise=1.0, steps=1000, sample_rate=0.01).epsilon(1e-5)
    assert ours == pytest.approx(1.828, abs=5e-4)  # by the privacy loss distribution
    assert ours == pytest.approx(numerical.get_epsilon(1e-5), abs=1e-4)
    assert bound.get_epsilon(1e-5) == pytest.approx(2.10, abs=0.005)  # RDP is looser


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize(("rate", "noise"), [(0.3, 0.7), (0.01, 1.0), (0.9, 0.5)])
def test_one_step_is_the_best_test_between_a_gaussian_and_a_mixture(rate: float, noise: float, kappa: float) -> None:
    """The likelihood ratio rises with the output, so that the best test is a threshold."""
    exact = (1 - rate) * kappa + rate * norm.cdf(norm.ppf(kappa) + 1 / noise)
    found = Guarantee(noise=noise, steps=1, sample_rate=rate).tpr(kappa)
    assert exact <= found <= exact * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.1, 1.0, 50), (0.5, 2.0, 20), (0.02, 0.6, 100)])
def test_the_bound_is_the_power_of_the_likelihood_ratio_over_all_steps(rate: float, noise: float, steps: int) -> None:
    """As Hayes et al. 2023 compute it, by samples of both distributions."""
    rng, samples = np.random.default_rng(0), 200_000
    without, sampled = np.zeros(samples), np.zeros(samples)
    for _ in range(steps):
        for total, taken in ((without, 0.0), (sampled, rng.random(samples) < rate)):
            x = rng.normal(0, noise, samples) + taken
            total += np.log1p(rate * np.expm1((x - 0.5) / noise**2))
    guarantee = Guarantee(noise=noise, steps=steps, sample_rate=rate)
    for kappa in (0.01, 0.1, 0.5):
        power = float((sampled > np.quantile(without, 1 - kappa)).mean())
        quantile_error = power / kappa * np.sqrt(kappa / samples)
        assert guarantee.tpr(kappa) == pytest.approx(power, abs=4 * (quantile_error + np.sqrt(power / samples)))


@pytest.mark.parametrize("kappa", KAPPAS)
def test_samples_of_all_records_are_full_batches(kappa: float) -> None:
    full = Guarantee(noise=5.0, steps=30)
    nearly = Guarantee(noise=5.0, steps=30, sample_rate=1 - 1e-9)
    assert full.mu == pytest.approx(np.sqrt(30) / 5)
    assert full.tpr(kappa) == pytest.approx(norm.cdf(norm.ppf(kappa) + np.sqrt(30) / 5))
    assert nearly.tpr(kappa) == pytest.approx(full.tpr(kappa), rel=1e-4)
    assert nearly.epsilon() == pytest.approx(full.epsilon(), abs=1e-4)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(noise=st.floats(0.8, 8), rate=st.floats(0.005, 0.9), steps=st.integers(1, 300), kappa=st.floats(1e-6, 0.9))
def test_the_bound_lies_between_guessing_and_what_epsilon_allows(
    noise: float, rate: float, steps: int, kappa: float
) -> None:
    guarantee = Guarantee(noise=noise, steps=steps, sample_rate=rate)
    bound = guarantee.tpr(kappa)
    assert kappa <= bound <= min(1.0, np.exp(guarantee.epsilon(1e-5)) * kappa + 1e-5) * (1 + 1e-6)
    assert bound <= Guarantee(noise=noise, steps=steps).tpr(kappa) * (1 + 1e-6)


@pytest.mark.parametrize("guarantee", [Guarantee(noise=1.0, steps=2), Guarantee(noise=1.0, steps=2, sample_rate=0.1)])
def test_the_ends_and_what_is_no_probability(guarantee: Guarantee) -> None:
    assert guarantee.tpr(0.0) == 0
    assert guarantee.tpr(1.0) == 1
    with refused("out-of-range", "fpr"):
        guarantee.tpr(1.5)
    with refused("out-of-range", "delta"):
        guarantee.epsilon(1.0)


@pytest.mark.parametrize("wrong", [{"noise": 0.0}, {"steps": 0}, {"sample_rate": 0.0}, {"sample_rate": 2.0}])
def test_a_guarantee_refuses_what_guarantees_nothing(wrong: dict[str, float]) -> None:
    with refused("out-of-range", *wrong):
        Guarantee(**({"noise": 1.0, "steps": 1} | wrong))


def test_the_guarantee_of_a_training() -> None:
    noisy = DPGD(clip=1.0, noise=6.0)
    assert guarantee_of(Training()) is None
    assert guarantee_of(Training(privacy=DPGD(clip=1.0))) is None
    assert guarantee_of(Training(epochs=9, privacy=noisy)) == Guarantee(noise=6.0, steps=9)
    assert guarantee_of(Training(epochs=9, batch_size=10, privacy=noisy)) == Guarantee(noise=6.0, steps=9)
    sampled = DPGD(clip=1.0, noise=6.0, sample_rate=0.05)
    assert guarantee_of(Training(epochs=9, privacy=sampled)) == Guarantee(noise=6.0, steps=180, sample_rate=0.05)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    assert Guarantee(noise=1.1, steps=7).epsilon() > 0
    with refused("missing-dependency", "sample_rate") as refusal:
        Guarantee(noise=1.1, steps=7, sample_rate=0.123).epsilon()
    assert "remanence[dp]" in str(refusal.value)
