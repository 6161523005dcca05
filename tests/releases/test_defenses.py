"""Each defense against a loop over the entries, at its limits, and in a release."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil, exp, sqrt, tanh

import pytest
import torch
from refusals import refused
from scipy.stats import norm as normal

from remanence import Gradient, Training, Victim
from remanence.data import Split
from remanence.models import initial_params, mlp
from remanence.releases import Case, gradient_at_final, gradient_at_initial, local_update
from remanence.releases.defenses import Clipping, Defense, GaussianNoise, LocalDP, Quantization, Sign, TopK, defended
from remanence.types import Params

ALL: list[Defense] = [
    GaussianNoise(relative_std=0.3),
    Clipping(norm=1.0),
    LocalDP(epsilon=10, norm=1.0),
    LocalDP(epsilon=1e4),
    TopK(fraction=0.3),
    Sign(),
    Quantization(bits=3),
]
by_defense = pytest.mark.parametrize("defense", ALL, ids=repr)


def gradient(seed: int = 0) -> Params:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"0.weight": (7, 5), "0.bias": (7,), "1.weight": (1, 7)}
    return {n: torch.randn(s, generator=generator, dtype=torch.float64) ** 3 for n, s in shapes.items()}


def entries(params: Params) -> list[float]:
    return [value for p in params.values() for value in p.flatten().tolist()]


def victim(parts: Split, first: int = 0) -> Victim:
    model = mlp(parts.fixed.shape, 10)
    initial = initial_params(model, seed=0)
    private = parts.private.take(slice(first, first + 3))
    return Victim(model=model, training=Training(), initial=initial, final=initial, fixed=parts.fixed, private=private)


# ---- each against a loop


def test_noise_has_its_share_of_the_norm_of_each_tensor_and_no_mean() -> None:
    sent = {"large": torch.full((400, 500), 3.0), "small": torch.full((200_000,), -0.01)}
    found = GaussianNoise(relative_std=0.5)(sent, seed=0)
    for name, g in sent.items():
        noise = found[name] - g
        assert float(noise.norm() / g.norm()) == pytest.approx(0.5, rel=0.01)
        assert abs(float(noise.mean())) < 4 * float(noise.std()) / sqrt(noise.numel())
        inside = (noise.abs() < noise.std()).float().mean()
        assert float(inside) == pytest.approx(0.6827, abs=0.005)  # a Gaussian's


@pytest.mark.parametrize("norm", [0.1, 2.0, 1e6])
def test_clipping_scales_the_whole_gradient_to_the_norm(norm: float) -> None:
    sent = gradient()
    length = sqrt(sum(value**2 for value in entries(sent)))
    expected = [value * min(1.0, norm / length) for value in entries(sent)]
    assert entries(Clipping(norm=norm)(sent, seed=0)) == pytest.approx(expected)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (8.0, 1e-3), (200.0, 1e-6)])
@pytest.mark.parametrize("norm", [0.5, None])
def test_local_privacy_is_the_gaussian_mechanism_between_opposite_updates(
    epsilon: float, delta: float, norm: float | None
) -> None:
    sent = {"weight": torch.full((400, 500), 3.0, dtype=torch.float64)}
    bound = float(sent["weight"].norm()) if norm is None else norm
    defense = LocalDP(epsilon=epsilon, norm=norm, delta=delta)
    shown = defense(sent, seed=0)
    noise = shown["weight"] - sent["weight"] * (bound / sent["weight"].norm())
    assert defense.noise_std(shown) == pytest.approx(float(noise.std()), rel=0.01)
    assert abs(float(noise.mean())) < 4 * float(noise.std()) / sqrt(noise.numel())
    distance = 2 * bound / float(noise.std())  # of two clipped updates, in standard deviations
    spent = normal.cdf(distance / 2 - epsilon / distance) - exp(epsilon) * normal.cdf(
        -distance / 2 - epsilon / distance
    )
    assert spent == pytest.approx(delta, rel=0.15)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 1.0])
def test_top_k_keeps_the_largest_of_all_entries(share: float) -> None:
    sent = gradient()
    count = ceil(share * len(entries(sent)))
    least = sorted(map(abs, entries(sent)))[-count]
    expected = [value if abs(value) >= least else 0.0 for value in entries(sent)]
    assert entries(TopK(fraction=share)(sent, seed=0)) == expected


def test_signs_carry_the_mean_magnitude_of_their_tensor() -> None:
    sent = gradient()
    for name, g in Sign()(sent, seed=0).items():
        values = sent[name].flatten().tolist()
        mean = sum(map(abs, values)) / len(values)
        assert g.flatten().tolist() == pytest.approx([mean if value > 0 else -mean for value in values])


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_low_bits_are_right_on_average_and_one_of_the_two_levels_around(bits: int) -> None:
    sent, draws = gradient(), 500
    drawn = [Quantization(bits=bits)(sent, seed=k) for k in range(draws)]
    for name, g in sent.items():
        values, largest = torch.stack([each[name] for each in drawn]), float(g.abs().max())
        step = 2 * largest / (2**bits - 1)
        levels = torch.tensor([-largest + k * step for k in range(2**bits)], dtype=torch.float64)
        assert float((values[..., None] - levels).abs().amin(-1).max()) < 1e-12
        assert float((values - g).abs().max()) <= step * (1 + 1e-9)
        assert float((values.mean(0) - g).abs().max()) < 4.5 * step / 2 / sqrt(draws)


# ---- in the dtype of an update


def norm_of(params: Params) -> float:
    return sqrt(sum(value**2 for value in entries(params)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [3e-5, 1e-2, 3e2])
def test_noise_is_as_large_in_every_dtype(dtype: torch.dtype, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    sent = {name: (size * torch.randn(shape, generator=generator)).to(dtype) for name, shape in _LARGE.items()}
    length = norm_of(sent)
    for defense, std in (
        (GaussianNoise(relative_std=1.0), length / sqrt(len(entries(sent)))),
        (LocalDP(epsilon=8.0), LocalDP(epsilon=8.0, norm=length).noise_std(sent)),
    ):
        shown = defense(sent, seed=0)
        assert {name: g.dtype for name, g in shown.items()} == dict.fromkeys(sent, dtype)
        noise = torch.tensor(entries(shown), dtype=torch.float64) - torch.tensor(entries(sent), dtype=torch.float64)
        if bool(noise.isfinite().all()):  # float16 has no more than 65,504
            assert float(noise.std()) == pytest.approx(std, rel=0.01)
        else:
            assert (dtype, size) == (torch.float16, 3e2)


_LARGE = {"weight": (300, 100), "bias": (1000,)}


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *((torch.float16, size) for size in (1e-6, 1e-3, 300.0, 6e4)),
        *((torch.bfloat16, size) for size in (1e-25, 1.0, 1e25)),
        *((torch.float32, size) for size in (1e-25, 1.0, 1e25)),
    ],
    ids=str,
)
def test_clipping_neither_overflows_nor_underflows(dtype: torch.dtype, size: float) -> None:
    sent = {name: (size * g.clamp(-1, 1)).to(dtype) for name, g in gradient().items()}
    length = norm_of(sent)
    for share in (0.25, 4.0):
        clipped = Clipping(norm=share * length)(sent, seed=0)
        expected = [value * min(1.0, share) for value in entries(sent)]
        assert {g.dtype for g in clipped.values()} == {dtype}
        eps, least = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        assert entries(clipped) == pytest.approx(expected, rel=2 * eps, abs=least)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("bits", [2, 8, 16])
@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_low_bits_are_right_on_average_in_every_dtype(dtype: torch.dtype, bits: int, size: float) -> None:
    """Levels are rounded to the dtype, so that an entry is rounded to another one of these unless it is one."""
    draws, generator = 400, torch.Generator().manual_seed(0)
    sent = {"weight": (size * torch.randn(200, generator=generator)).to(dtype)}
    values = torch.stack([Quantization(bits=bits)(sent, seed=k)["weight"].double() for k in range(draws)])
    exact = sent["weight"].double()
    largest = float(exact.abs().max())
    step = 2 * largest / (2**bits - 1)
    rounding = torch.finfo(dtype).eps * largest + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert float((values - exact).abs().max()) <= step + rounding
    assert float((values.mean(0) - exact).abs().max()) < 4.5 * (step + rounding) / 2 / sqrt(draws)
    assert len(values.unique()) <= 2**bits


def test_low_bits_of_weights_in_any_memory_format() -> None:
    weight = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    sent = {"weight": weight.to(memory_format=torch.channels_last)}
    assert torch.equal(Quantization(bits=3)(sent, seed=0)["weight"], Quantization(bits=3)({"": weight}, seed=0)[""])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_signs_carry_small_magnitudes(dtype: torch.dtype) -> None:
    sent = {"weight": torch.tensor([1e-6, -3e-6, 2e-6]).to(dtype)}
    mean = sum(map(abs, entries(sent))) / 3
    assert entries(Sign()(sent, seed=0)) == pytest.approx([mean, -mean, mean], rel=0.05)
    assert entries(Sign().imitate(sent, sent)) == pytest.approx([mean * tanh(v / mean) for v in entries(sent)], rel=0.1)


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_what_was_not_sent_stays_so_after_low_bits(bits: int) -> None:
    """Otherwise the server could not tell which entries were sent, and its own gradient would keep them all."""
    sparse = TopK(fraction=0.1)(gradient(), seed=0)
    shown = defended(gradient(), (TopK(fraction=0.1), Clipping(norm=1.0), Quantization(bits=bits)), seed=0)
    assert [value == 0 for value in entries(shown)] == [value == 0 for value in entries(sparse)]
    ours = entries(TopK(fraction=0.1).imitate(gradient(1), shown))
    threshold = min(abs(value) for value in entries(shown) if value)
    for mine, value, was_sent in zip(ours, entries(gradient(1)), entries(shown), strict=True):
        beyond = 0.0 if abs(value) <= threshold else value - (threshold if value > 0 else -threshold)
        assert mine == pytest.approx(value if was_sent else beyond)


# ---- limits


@pytest.mark.parametrize(
    "defense",
    [GaussianNoise(relative_std=0), Clipping(norm=1e9), LocalDP(epsilon=1e12), TopK(fraction=1), Quantization(bits=16)],
    ids=repr,
)
def test_at_its_weakest_a_defence_changes_nothing(defense: Defense) -> None:
    assert entries(defense(gradient(), seed=0)) == pytest.approx(entries(gradient()), abs=1e-3)


@by_defense
def test_is_repeatable_and_keeps_shapes_dtypes_and_its_argument(defense: Defense) -> None:
    sent = {name: g.float() for name, g in gradient().items()}
    before = {name: g.clone() for name, g in sent.items()}
    one, again = defense(sent, seed=1), defense(sent, seed=1)
    for name, g in sent.items():
        assert torch.equal(one[name], again[name])
        assert torch.equal(g, before[name])
        assert (one[name].shape, one[name].dtype) == (g.shape, g.dtype)


@by_defense
def test_a_gradient_of_zeros_stays_finite(defense: Defense) -> None:
    zeros = {name: torch.zeros_like(g) for name, g in gradient().items()}
    assert all(bool(g.isfinite().all()) for g in defense(zeros, seed=0).values())
    assert all(bool(g.isfinite().all()) for g in defense.imitate(zeros, zeros).values())


@by_defense
def test_a_tensor_without_entries_stays_as_it_is(defense: Defense) -> None:
    sent = gradient() | {"none": torch.zeros(0, 3)}
    assert defense(sent, seed=0)["none"].shape == (0, 3)


@pytest.mark.parametrize("draws", [GaussianNoise(relative_std=1), LocalDP(epsilon=1), Quantization(bits=2)], ids=repr)
def test_two_of_a_kind_draw_differently(draws: Defense) -> None:
    other = defended(gradient(), (TopK(fraction=1), draws), seed=0)
    assert entries(defended(gradient(), (draws,), seed=0)) != entries(other)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: GaussianNoise(relative_std=-0.1), "relative_std"),
        (lambda: GaussianNoise(relative_std=float("nan")), "relative_std"),
        (lambda: Clipping(norm=0), "norm"),
        (lambda: LocalDP(epsilon=0), "epsilon"),
        (lambda: LocalDP(epsilon=1, norm=-1), "norm"),
        (lambda: LocalDP(epsilon=1, delta=1), "delta"),
        (lambda: TopK(fraction=0), "fraction"),
        (lambda: TopK(fraction=1.5), "fraction"),
        (lambda: Quantization(bits=0), "bits"),
        (lambda: Quantization(bits=17), "bits"),
    ],
)
def test_bad_values_are_refused(make: Callable[[], Defense], argument: str) -> None:
    with refused("out-of-range", argument):
        make()


# ---- what the server makes of them


def test_the_imitations_are_what_was_sent_for_the_clients_own_gradient() -> None:
    sent = gradient()
    for defense in (Clipping(norm=1.0), LocalDP(epsilon=1e26, norm=1.0), TopK(fraction=0.3)):
        own = defense(sent, seed=0)
        assert entries(defense.imitate(sent, own)) == pytest.approx(entries(own))
    signs = Sign().imitate(sent, Sign()(sent, seed=0))
    assert [value > 0 for value in entries(signs)] == [value > 0 for value in entries(sent)]


# ---- in a release


@pytest.mark.parametrize("reveal", [gradient_at_initial, gradient_at_final])
def test_a_release_is_of_the_defended_gradient_and_says_so(parts: Split, reveal: Callable[..., Case[Gradient]]) -> None:
    plain, defenses = reveal(victim(parts)).release, (Clipping(norm=0.5), TopK(fraction=0.2))
    release = reveal(victim(parts), defenses=defenses).release
    assert plain.defenses == ()
    assert release.defenses == defenses
    expected = TopK(fraction=0.2)(Clipping(norm=0.5)(plain.gradient, seed=0), seed=0)
    assert entries(release.gradient) == pytest.approx(entries(expected))


def test_clients_draw_noise_of_their_own(parts: Split) -> None:
    reveal = partial(gradient_at_initial, defenses=(GaussianNoise(relative_std=1.0),))
    noises = []
    for first in (0, 3):
        plain, noisy = gradient_at_initial(victim(parts, first)).release, reveal(victim(parts, first)).release
        shape = {name: (noisy.gradient[name] - g) / g.norm() for name, g in plain.gradient.items()}
        noises.append(torch.tensor(entries(shape)))
    assert float(torch.nn.functional.cosine_similarity(*noises, dim=0).abs()) < 0.2
    same, other = reveal(victim(parts)).release, reveal(victim(parts), seed=1).release
    assert entries(reveal(victim(parts)).release.gradient) == entries(same.gradient) != entries(other.gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reveal", [gradient_at_initial, local_update])
def test_half_precision_has_releases(parts: Split, dtype: torch.dtype, reveal: Callable[..., Case[Gradient]]) -> None:
    made = victim(parts)
    initial = {name: p.to(dtype) for name, p in made.initial.items()}
    half = replace(made, initial=initial, private=made.private.to("cpu", dtype))
    for first in (reveal(half).release.sent, reveal(half, defenses=(Quantization(bits=8),)).release.sent):
        assert {g.dtype for g in first.values()} == {dtype}
        assert all(bool(g.isfinite().all()) for g in first.values())
