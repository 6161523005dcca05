"""The accounting against its definition in many digits and against Google's accountants."""

from collections.abc import Callable
from math import inf, log

import mpmath
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

import remanence
from remanence import DPGD, Training
from remanence.training.dp import delta, epsilon, mu, noise_for
from remanence.training.guarantee import guarantee_of

MUS = st.floats(-3, 6).map(lambda exponent: 10.0**exponent)
DELTAS = st.floats(-30, -0.01).map(lambda exponent: 10.0**exponent)


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@given(mu=MUS, where=st.floats(-3, 8))
def test_delta_is_the_closed_form_in_sixty_digits(mu: float, where: float) -> None:
    eps = max(0.0, mu * mu / 2 + where * mu)
    assert delta(mu, eps) == pytest.approx(float(exact_delta(mu, eps)), rel=1e-6)


@given(mu=MUS, given_delta=DELTAS)
def test_epsilon_is_where_delta_is_the_one_given(mu: float, given_delta: float) -> None:
    eps = epsilon(mu, given_delta)
    if eps == 0:
        assert exact_delta(mu, 0) <= given_delta * (1 + 1e-9)
    else:
        assert float(mpmath.log(exact_delta(mu, eps))) == pytest.approx(log(given_delta), abs=1e-6)


@given(exponent=st.floats(-3, 6), given_delta=DELTAS, steps=st.integers(1, 10_000))
def test_noise_for_gives_the_epsilon_asked_for(exponent: float, given_delta: float, steps: int) -> None:
    noise = noise_for(10.0**exponent, steps=steps, delta=given_delta)
    assert epsilon(mu(noise, steps=steps), given_delta) == pytest.approx(10.0**exponent, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "steps"), [(50.0, 100), (20.0, 100), (3.0, 10), (1.0, 30), (0.7, 1)])
def test_two_other_accountants_agree(noise: float, steps: int) -> None:
    numerical, bound = PLDAccountant(), RdpAccountant()
    for accountant in (numerical, bound):
        accountant.compose(GaussianDpEvent(noise), steps)
    ours = epsilon(mu(noise, steps=steps), 1e-5)
    # theirs rounds losses up to a grid of 1e-4
    assert ours == pytest.approx(numerical.get_epsilon(1e-5), rel=1e-3, abs=1e-3)
    assert ours <= numerical.get_epsilon(1e-5) + 1e-9
    assert ours <= bound.get_epsilon(1e-5)


def test_a_private_training_is_made_for_an_epsilon_and_can_be_written_down() -> None:
    training = Training(epochs=50, privacy=DPGD.for_epsilon(3.0, steps=50, clip=0.5, delta=1e-6))
    guarantee = guarantee_of(training)
    assert guarantee is not None
    assert guarantee.epsilon(1e-6) == pytest.approx(3.0)
    names = vars(remanence) | vars(remanence.training)
    assert eval(repr(training), names) == training


@pytest.mark.parametrize(
    "wrong", [{"clip": 0.0}, {"clip": inf}, {"noise": -1.0}, {"clip": -1.0}, {"sample_rate": 1.5}, {"sample_rate": 0.0}]
)
def test_dpgd_refuses_values_that_defend_nothing(wrong: dict[str, float]) -> None:
    with refused("out-of-range", *wrong):
        DPGD(**({"clip": 1.0} | wrong))


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("epsilon", lambda: noise_for(0.0, steps=1)),
        ("delta", lambda: noise_for(1.0, steps=1, delta=1.0)),
        ("steps", lambda: noise_for(1.0, steps=0)),
        ("mu", lambda: epsilon(inf)),
        ("noise", lambda: mu(0.0, steps=1)),
        ("epsilon", lambda: delta(1.0, -1.0)),
    ],
)
def test_the_accounting_names_what_it_cannot_use(argument: str, call: Callable[[], float]) -> None:
    with refused("out-of-range", argument):
        call()
