"""The limit against optimal tests, priors whose best guess is known, and attacks with a planted success."""

import dataclasses

import pytest
import torch
from refusals import refused
from scipy.stats import chi2, norm
from torch import Tensor

from remanence import DPGD, SGD, AllButOne, Data, Reconstruction, Training, WeightsOnly
from remanence.data import Split
from remanence.engine import train
from remanence.experiments import Finding, attack_cases
from remanence.experiments.checks import caveats
from remanence.metrics import MSE, hungarian, identity
from remanence.metrics.limit import Limit, reconstruction_limit
from remanence.models import initial_params, mlp
from remanence.releases import Case
from remanence.training.dp import epsilon
from remanence.training.guarantee import Guarantee
from remanence.types import concat

MASSES = torch.tensor([0.3, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.03])
SHARP = 0.001  # far below the distances between atoms


def gdp(mu: float) -> Guarantee:
    return Guarantee(noise=1 / mu, steps=1)


def rows(x: Tensor) -> Data:
    return Data(x=x.clamp(0, 1), y=torch.zeros(len(x), dtype=torch.int64), num_classes=1)


def atoms(n: int, seed: int) -> tuple[Data, Tensor, Tensor]:
    """Records that are one of ten corners of a cube with a little noise, which corner each is, and the corners."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.eye(10, 16) * 0.8 + 0.1
    drawn = torch.multinomial(MASSES, n, replacement=True, generator=generator)
    return rows(corners[drawn] + 0.005 * torch.randn(n, 16, generator=generator)), drawn, corners


def cloud(n: int, seed: int, d: int = 20, spread: float = 0.08) -> Data:
    return rows(0.5 + spread * torch.randn(n, d, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("seed", range(4))
def test_kappa_of_ten_atoms_is_the_largest_mass_seen_from_above(seed: int) -> None:
    known, _, _ = atoms(2000, seed)
    truth, _, _ = atoms(50, seed + 100)
    limit = reconstruction_limit(
        Reconstruction(x=truth.x), truth, known, guarantee=gdp(1.0), threshold=SHARP, seed=seed
    )
    assert 0.3 <= limit.prior <= 0.39  # six standard deviations of a thousand draws
    assert limit.bound == pytest.approx(norm.cdf(norm.ppf(limit.prior) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_kappa_of_a_cloud_is_that_of_its_middle_which_no_record_reaches(seed: int) -> None:
    """The middle of a Gaussian succeeds where a chi-square variable is small; a record is twice as far from others."""
    known, truth, threshold = cloud(4000, seed), cloud(50, seed + 100), 0.003
    limit = reconstruction_limit(Reconstruction(x=truth.x), truth, known, guarantee=gdp(1.0), threshold=threshold)
    middle = float(chi2.cdf(20 * threshold / 0.08**2, df=20))
    errors = (known.x[:1000, None] - known.x[None]).square().mean(dim=2)
    best_record = float((errors <= threshold).double().mean(dim=1).max())
    assert best_record < 0.5 * middle <= limit.prior <= middle + 0.03
    assert limit.prior >= middle


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_threshold_is_what_the_best_guess_reaches_for_one_record_in_a_hundred(seed: int) -> None:
    known, truth = cloud(8000, seed), cloud(50, seed + 100)
    limit = reconstruction_limit(Reconstruction(x=truth.x), truth, known, guarantee=gdp(1.0))
    assert limit.threshold == pytest.approx(0.08**2 * chi2.ppf(0.01, df=20) / 20, rel=0.15)
    assert 0.005 <= limit.prior <= 0.03


def test_copies_of_one_record_do_not_make_the_threshold_zero() -> None:
    known = rows(torch.eye(4).repeat(100, 1))
    limit = reconstruction_limit(Reconstruction(x=torch.eye(4)), rows(torch.eye(4)), known, guarantee=gdp(1.0))
    assert limit.threshold == pytest.approx((1 / 255) ** 2)
    assert limit.prior >= 0.25
    assert limit.success.value == 1


def planted(parts: Split, share: float, seed: int) -> Tensor:
    """The truth for `share` of the records, noise for the others."""
    generator = torch.Generator().manual_seed(seed)
    knows = torch.rand(len(parts.private), generator=generator) < share
    noise = torch.rand(parts.private.x.shape, generator=generator)
    return torch.where(knows[:, None, None, None], parts.private.x, noise)


def measured(x: Tensor, parts: Split, mu: float, seed: int = 0) -> Limit:
    known = concat([parts.test, parts.public, parts.fixed])
    return reconstruction_limit(Reconstruction(x=x), parts.private, known, guarantee=gdp(mu), seed=seed)


def test_a_planted_success_is_measured_and_judged(parts: Split) -> None:
    half = measured(planted(parts, 0.5, seed=0), parts, mu=0.2)
    assert half.success.low < 0.5 < half.success.high
    assert half.violated
    assert not dataclasses.replace(half, bound=half.success.low).violated
    assert not measured(planted(parts, 0.5, seed=0), parts, mu=3.0).violated
    assert half.epsilon == pytest.approx(epsilon(0.2, 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_learnt_nothing_is_never_flagged(parts: Split, seed: int) -> None:
    drawn = torch.randperm(len(parts.public), generator=torch.Generator().manual_seed(seed))[: len(parts.private)]
    mean = parts.public.x.mean(dim=0).expand_as(parts.private.x)
    of_class = torch.stack([parts.public.x[parts.public.y == y].mean(dim=0) for y in parts.private.y])
    for x in (parts.public.x[drawn], mean, of_class, planted(parts, 0.0, seed), torch.full_like(mean, torch.nan)):
        assert not measured(x, parts, mu=0.05, seed=seed).violated


def most_likely(drawn: Tensor, corners: Tensor, mu: float, seed: int) -> Reconstruction:
    """A mu-GDP release, Gaussian noise plus a vector of length mu for the record, and the best attack on it."""
    noise = torch.randn(len(drawn), 10, generator=torch.Generator().manual_seed(seed))
    released = mu * torch.eye(10)[drawn] + noise
    return Reconstruction(x=corners[(mu * released + MASSES.log()).argmax(dim=1)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_best_attack_on_a_private_release_stays_below_and_one_with_too_little_noise_does_not(seed: int) -> None:
    known, _, corners = atoms(3000, seed)
    truth, drawn, _ = atoms(400, seed + 1000)
    for true_mu, flagged in ((0.3, False), (1.0, False), (4.0, True)):
        found = most_likely(drawn, corners, true_mu, seed)
        limit = reconstruction_limit(found, truth, known, guarantee=gdp(min(true_mu, 1.0)), threshold=SHARP, seed=seed)
        assert limit.violated is flagged
        assert limit.success.value > 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("true_mu", "flagged"), [(1.0, False), (4.0, True)])
def test_a_hundred_candidates_for_real_private_models(parts: Split, true_mu: float, flagged: bool) -> None:
    """The attacker trains without noise on each candidate and names the one whose weights are nearest."""
    generator = torch.Generator().manual_seed(0)
    candidates, fixed = parts.public.take(slice(0, 100)), parts.fixed
    model = mlp(fixed.shape, 10, hidden=())
    initial = initial_params(model, seed=0)

    def weights(noise: float, k: int, seed: int) -> Tensor:
        training = Training(optimizer=SGD(lr=0.3), epochs=1, privacy=DPGD(clip=0.5, noise=noise))
        final = train(training, model, initial, concat([fixed, candidates.take([k])]), seed=seed)
        return torch.cat([p.flatten() for p in final.values()])

    clean = torch.stack([weights(0.0, k, 0) for k in range(100)])
    drawn = torch.randint(100, (150,), generator=generator)
    released = torch.stack([weights(1 / true_mu, k, seed) for seed, k in enumerate(drawn.tolist())])
    named = (released[:, None] - clean).square().sum(dim=2).argmin(dim=1)
    known = candidates.take(torch.randint(100, (20_000,), generator=generator))
    found = Reconstruction(x=candidates.x[named])
    limit = reconstruction_limit(found, candidates.take(drawn), known, guarantee=gdp(1.0), threshold=SHARP)
    assert limit.success.value > 0.02  # twice what a guess reaches
    assert limit.violated is flagged


@dataclasses.dataclass(frozen=True)
class Perfect:
    """An attack that knows the truth, one record of it for each seed."""

    x: Tensor

    def run(self, release: object, *, seed: int) -> Reconstruction:
        return Reconstruction(x=self.x[seed : seed + 1])


def found_with(training: Training, parts: Split, per_case: int = 1, kind: type = AllButOne) -> Finding:
    model = mlp(parts.private.shape, 10)
    start = initial_params(model, seed=0)
    shown = {"model": model, "final": start, "shape": parts.private.shape, "num_classes": 10}
    if kind is AllButOne:
        shown |= {"initial": start, "training": training, "fixed": parts.fixed}
    truths = [parts.private.take(slice(k, k + per_case)) for k in range(0, len(parts.private), per_case)]
    cases = [Case(release=kind(**shown), truth=truth) for truth in truths]
    x = parts.private.x if per_case == 1 else parts.private.x.repeat_interleave(per_case, dim=0)
    matching = identity if per_case == 1 else hungarian
    return attack_cases(cases, Perfect(x), public=parts.public, unrelated=parts.test, matching=matching, metrics=(MSE,))


def test_an_audit_of_private_training_has_its_limit_and_says_when_it_is_broken(parts: Split) -> None:
    weak = found_with(Training(privacy=DPGD.for_epsilon(100.0, steps=100, clip=1.0)), parts)
    assert weak.limit.epsilon == pytest.approx(100.0)
    assert "above-the-limit" not in {caveat.code for caveat in caveats(weak)}
    strong = found_with(Training(privacy=DPGD.for_epsilon(1.0, steps=100, clip=1.0)), parts)
    assert strong.limit.threshold == weak.limit.threshold
    (flag,) = [caveat for caveat in caveats(strong) if caveat.code == "above-the-limit"]
    assert "epsilon 1, delta 1e-05" in flag.text
    assert "a bug" in flag.text


@pytest.mark.slow
def test_mini_batches_have_their_limit(parts: Split) -> None:
    """Twenty epochs at a sample rate of 1 % are 2,000 steps; shuffled batches count as full ones, one an epoch."""
    sampled = found_with(Training(epochs=20, privacy=DPGD(clip=1.0, noise=1.0, sample_rate=0.01)), parts).limit
    assert sampled is not None
    assert sampled.mu is None
    assert sampled.epsilon == pytest.approx(2.58, abs=0.02)  # 2.594 by the PRV accountant of Opacus, up to 0.01 above
    assert sampled.prior < sampled.bound < 5 * sampled.prior
    assert sampled.violated
    shuffled = found_with(Training(epochs=4, batch_size=8, privacy=DPGD(clip=1.0, noise=2.0)), parts).limit
    assert shuffled is not None
    assert shuffled.mu == 1.0
    assert shuffled.bound == pytest.approx(norm.cdf(norm.ppf(shuffled.prior) + 1))


@pytest.mark.slow
def test_without_an_accounted_guarantee_there_is_no_limit(parts: Split) -> None:
    noisy = DPGD(clip=1.0, noise=10.0)
    assert found_with(Training(privacy=noisy), parts).limit is not None
    assert found_with(Training(), parts).limit is None
    assert found_with(Training(privacy=DPGD(clip=1.0)), parts).limit is None
    several = found_with(Training(privacy=noisy), parts, per_case=2)
    assert several.limit is None
    assert "limit-not-computed" in {caveat.code for caveat in caveats(several)}
    assert found_with(Training(privacy=noisy), parts, kind=WeightsOnly).limit is None


def test_what_cannot_be_used_is_named(parts: Split) -> None:
    x, known = parts.private.x, parts.public
    for wrong in ({"threshold": -1.0}, {"delta": 2.0}):
        with refused("out-of-range", *wrong):
            reconstruction_limit(Reconstruction(x=x), parts.private, known, guarantee=gdp(1.0), **wrong)
    with refused("shape-mismatch", "reconstruction"):
        reconstruction_limit(Reconstruction(x=x[:3]), parts.private, known, guarantee=gdp(1.0))
    with refused("too-few", "known"):
        reconstruction_limit(Reconstruction(x=x), parts.private, known.take(slice(0, 1)), guarantee=gdp(1.0))
