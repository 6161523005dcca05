"""Planted batches, where the truth is known to the last digit: figure 2, the rate, noise, and what cannot be read."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import log

import torch
from torch import Tensor, nn

from remanence.attacks import Stein
from remanence.experiments import Claim, Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import Interval, hungarian
from remanence.metrics.statistics import bootstrap_mean, bootstrap_statistic
from remanence.progress import track
from remanence.releases.defenses import GaussianNoise
from remanence.seeds import derive_seed
from remanence_recipes.wang2023.setting import (
    HEAD,
    OURS,
    PAPERS,
    PLUGGED,
    SPAN,
    Square,
    SquareAndCube,
    frobenius,
    frobenius_of,
    gradient_in_blocks,
    gradient_of,
    standard_batch,
)

DIMENSIONS = tuple(range(10, 101, 10))
PRINTED = {  # read off figure 2
    "head, x²+x³": (0.150, 0.220, 0.280, 0.320, 0.379, 0.390, 0.422, 0.444, 0.387, 0.488),
    "rows, x²+x³": (0.037, 0.056, 0.075, 0.102, 0.091, 0.102, 0.114, 0.120, 0.118, 0.125),
    "rows, tanh": (0.067, 0.096, 0.162, 0.184, 0.246, 0.283, 0.283, 0.296, 0.335, 0.361),
    "rows, sigmoid": (0.103, 0.177, 0.293, 0.265, 0.279, 0.308, 0.348, 0.377, 0.385, 0.376),
}
CURVES: dict[str, tuple[Stein, Callable[[], nn.Module]]] = {
    "head, x²+x³": (HEAD, SquareAndCube),
    "rows, x²+x³": (PAPERS, SquareAndCube),
    "rows, tanh": (PAPERS, nn.Tanh),
    "rows, sigmoid": (PAPERS, nn.Sigmoid),
    "plugged in, tanh": (PLUGGED, nn.Tanh),
    "plugged in, sigmoid": (PLUGGED, nn.Sigmoid),
    "exact span, x²+x³": (SPAN, SquareAndCube),
    "exact span, tanh": (SPAN, nn.Tanh),
    "refined, x²+x³": (OURS, SquareAndCube),
    "refined, tanh": (OURS, nn.Tanh),
    "refined, ReLU": (OURS, nn.ReLU),
}
TARGETS = {
    "rows, tanh": {10: 0.03, 50: 0.08, 100: 0.11},
    "plugged in, tanh": {10: 0.03, 50: 0.08, 100: 0.11},
    "exact span, x²+x³": dict.fromkeys((10, 50, 100), 0.014),
    "exact span, tanh": dict.fromkeys((10, 50, 100), 0.015),
}
CHANCE = "the error of random unit vectors"


def figure2(scale: Scale) -> Sequence[Experiment]:
    """Figure 2: two unit vectors from one gradient, error against the number of features; the paper's way and ours."""
    dimensions = (10, 20) if scale == "smoke" else DIMENSIONS
    claims = [claim for d in (10, 50, 100) for claim in _figure_2_claims(d)] if scale != "smoke" else []
    about = (
        "Two planted records, unit vectors, read from one gradient of a wide net with weights of the server's choice."
    )
    return [
        Experiment(
            label="planted pairs",
            about=about,
            evaluations=(Measurement(measure=partial(_figure2, scale, dimensions)),),
            claims=tuple(claims),
        )
    ]


def _figure_2_claims(features: int) -> list[Claim]:
    place = DIMENSIONS.index(features)
    made = []
    for name in CURVES:
        printed, target = PRINTED.get(name), TARGETS.get(name, {}).get(features)
        if printed or target:
            claim = Claim(
                quantity=_named(name, features),
                higher_is_better=False,
                printed=printed[place] if printed else None,
                target=target,
                where=f"figure 2, d = {features}",
                rtol=0.2,
            )
            made.append(claim)
    return made


def _named(curve: str, features: int) -> str:
    return f"{curve}, d = {features}"


def _figure2(scale: Scale, dimensions: Sequence[int], seed: int, device: torch.device) -> Outcome:
    rows, repeats = {"smoke": (2000, 2), "small": (5000, 4), "full": (5000, 10)}[scale]
    found = {
        name: [errors_of(attack, activation, rows, d, repeats, seed, device) for d in dimensions]
        for name, (attack, activation) in track(CURVES.items(), total=len(CURVES), label="curves")
    }
    chance = {d: chance_of(d, seed) for d in dimensions}
    measures = tuple(
        Measure.from_interval(
            _named(name, d), each, meaning=f"mean of ‖error‖_F / 2; chance is {CHANCE}", chance=chance[d]
        )
        for name, errors in found.items()
        for d, each in zip(dimensions, errors, strict=True)
        if d in (10, 50, 100)
    )
    return Outcome(measures=measures, figures=tuple(_figures(found, dimensions, chance)))


def errors_of(
    attack: Stein,
    activation: Callable[[], nn.Module],
    rows: int,
    features: int,
    repeats: int,
    seed: int,
    device: torch.device,
) -> Interval:
    x, labels = (part.to(device) for part in standard_batch(features))
    errors = []
    for i in range(repeats):
        own = derive_seed(seed, "weights", features, i)
        release = gradient_of(x, labels, activation=activation, rows=rows, seed=own)
        errors.append(frobenius(attack, release, x, seed=derive_seed(seed, "attack", i)))
    return bootstrap_mean(torch.tensor(errors), seed=derive_seed(seed, "interval", features))


def chance_of(features: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(derive_seed(seed, "chance", features))
    drawn = torch.randn(200, 2, features, generator=generator, dtype=torch.float64)
    truth, _ = standard_batch(features)
    unit = drawn / drawn.norm(dim=2, keepdim=True)
    return float(torch.stack([(x[hungarian(x, truth)] - truth).norm() for x in unit]).mean()) / 2


def _figures(found: dict[str, list[Interval]], dimensions: Sequence[int], chance: dict[int, float]) -> list[Figure]:
    """The paper's curves beside ours; and ours alone, on a scale where they can be seen."""
    x = tuple(map(float, dimensions))
    drawn = {name: Series.from_intervals(name, x, errors) for name, errors in found.items()}
    printed = tuple(
        Series(name=f"printed: {name}", x=x, y=values[: len(x)], role="printed") for name, values in PRINTED.items()
    )
    level = Series(name="chance", x=x, y=tuple(chance.values()), role="chance")
    papers = tuple(drawn[name] for name in PRINTED)
    ours = tuple(series for name, series in drawn.items() if name not in PRINTED)
    label = "‖error‖_F / 2"
    return [
        Figure(title="The paper's estimators", x_label="features", y_label=label, series=(*papers, *printed, level)),
        Figure(title="Ours", x_label="features", y_label=label, series=(*ours, level), log_y=True),
    ]


MANY = 1_000_000  # rows, which are never all in memory
SLOPE, AWAY = "slope", "distance of the slope from 1/2"
OF_SLOPE = "of the logarithm of the error over that of features / rows, by least squares"
OF_CONSTANT = "of the error over the square root of features / rows: the geometric mean over the numbers of rows"
WIDTHS: dict[Scale, tuple[int, ...]] = {
    "smoke": (1000, 4000),
    "small": (3000, 10_000, 30_000),
    "full": (3000, 10_000, 30_000, 100_000),
}
REPEATS: dict[Scale, int] = {"smoke": 6, "small": 6, "full": 12}
SHARES = (0.0, 1.0, 3.0, 10.0)


def rates(scale: Scale) -> Sequence[Experiment]:
    """Theorem 5.1: the error falls as the square root of features over rows, with noise on the gradient as well."""
    target = Claim(quantity=AWAY, higher_is_better=False, target=0.1, where="theorem 5.1: 1/2")
    about = "How the paper's error grows with features / rows, on logarithmic scales."
    return [
        Experiment(
            label=label,
            about=about,
            evaluations=(Measurement(measure=partial(_rates, scale, noise)),),
            claims=(target,) if scale != "smoke" else (),
        )
        for label, noise in (("no noise", 0.0), ("noise of half the gradient's norm", 0.5))
    ]


def _rates(scale: Scale, noise: float, seed: int, device: torch.device) -> Outcome:
    dimensions = {"smoke": (10,), "small": (20, 50), "full": (20, 50, 100)}[scale]
    widths, repeats = WIDTHS[scale], REPEATS[scale]
    errors = {
        (d, m): _draws(PAPERS, d, m, noise, repeats, seed, device)
        for d in dimensions
        for m in track(widths, total=len(widths), label=f"d = {d}")
    }
    if scale == "full" and not noise:
        errors[dimensions[-1], MANY] = _many_draws(dimensions[-1], MANY, 3, seed, device)
    lines = []
    for d in dimensions:
        own = {(e, m): each for (e, m), each in errors.items() if e == d}
        means = [_mean(each, *at, seed) for at, each in own.items()]
        lines.append(Series.from_intervals(f"d = {d}", tuple(d / m for _, m in own), means))
    figure = Figure(
        title="Error against features / rows",
        x_label="features / rows",
        y_label="‖error‖_F / 2",
        series=tuple(lines),
        log_x=True,
        log_y=True,
    )
    slope = _fitted(_slope, errors, seed)
    return Outcome(
        measures=(Measure.from_interval(SLOPE, slope, meaning=OF_SLOPE, chance=0.0), _away(AWAY, slope)),
        figures=(figure,),
    )


def noise(scale: Scale) -> Sequence[Experiment]:
    """Section 7.1: Gaussian noise on the gradient changes the constant of the error, not its rate."""
    about = "The error against the number of rows, with noise of so many times the norm of each tensor of the gradient."
    shares = (0.0, 3.0) if scale == "smoke" else SHARES
    claims = tuple(
        Claim(quantity=_under(AWAY, share), higher_is_better=False, target=0.1, where="section 7.1: 1/2")
        for share in shares
        if scale != "smoke"
    )
    ways = {"the paper's estimator": PAPERS, "exact span": SPAN}
    return [
        Experiment(
            label=way,
            about=about,
            evaluations=(Measurement(measure=partial(_noise, scale, attack, shares)),),
            claims=claims,
        )
        for way, attack in ways.items()
    ]


def _noise(scale: Scale, attack: Stein, shares: Sequence[float], seed: int, device: torch.device) -> Outcome:
    features, widths, repeats = 10 if scale == "smoke" else 50, WIDTHS[scale], REPEATS[scale]
    lines, measures, x = [], [], tuple(map(float, widths))
    for share in track(shares, total=len(shares), label="noise"):
        errors = {(features, m): _draws(attack, features, m, share, repeats, seed, device) for m in widths}
        lines.append(Series.from_intervals(f"noise {share:g}", x, [_mean(errors[at], *at, seed) for at in errors]))
        slope = _fitted(_slope, errors, seed)
        measures += [
            Measure.from_interval(_under(SLOPE, share), slope, meaning=OF_SLOPE, chance=0.0),
            Measure.from_interval(_under("constant", share), _fitted(_constant, errors, seed), meaning=OF_CONSTANT),
            _away(_under(AWAY, share), slope),
        ]
    lines.append(Series(name="chance", x=x, y=(chance_of(features, seed),) * len(x), role="chance"))
    figure = Figure(
        title=f"Error against rows, {features} features",
        x_label="rows",
        y_label="‖error‖_F / 2",
        series=tuple(lines),
        log_x=True,
        log_y=True,
    )
    return Outcome(measures=tuple(measures), figures=(figure,))


def _under(quantity: str, share: float) -> str:
    return f"{quantity}, noise {share:g}"


def _away(name: str, slope: Interval) -> Measure:
    return Measure(name=name, value=abs(slope.value - 0.5), meaning="the theorem's rate is the square root")


def _draws(
    attack: Stein, features: int, rows: int, noise: float, repeats: int, seed: int, device: torch.device
) -> Tensor:
    """Errors with weights, and noise, drawn anew each time."""
    x, labels = (part.to(device) for part in standard_batch(features))
    defenses, errors = (GaussianNoise(relative_std=noise),) if noise else (), []
    for i in range(repeats):
        own = derive_seed(seed, "rates", features, rows, i)
        release = gradient_of(x, labels, activation=SquareAndCube, rows=rows, seed=own, defenses=defenses)
        errors.append(frobenius(attack, release, x, seed=own))
    return torch.tensor(errors, dtype=torch.float64)


def _mean(errors: Tensor, features: int, rows: int, seed: int) -> Interval:
    return bootstrap_mean(errors, seed=derive_seed(seed, "interval", features, rows))


def _fitted(statistic: Callable[[Tensor], float], errors: Mapping[tuple[int, int], Tensor], seed: int) -> Interval:
    """Of the points (log features / rows, log mean error), with its interval over the draws."""
    ratios = [log(d / m) for d, m in errors]

    def of(*drawn: Tensor) -> float:
        means = [log(float(each[rows].mean())) for each, rows in zip(errors.values(), drawn, strict=True)]
        return statistic(torch.tensor([ratios, means], dtype=torch.float64))

    return bootstrap_statistic(of, [len(each) for each in errors.values()], seed=derive_seed(seed, "fitted"))


def _many_draws(features: int, rows: int, repeats: int, seed: int, device: torch.device) -> Tensor:
    """The same, with rows that are made again from the seed, a block at a time."""
    x, labels = (part.to(device) for part in standard_batch(features))
    errors = []
    for i in range(repeats):
        own = derive_seed(seed, "rates", features, rows, i)
        blocks = gradient_in_blocks(x, labels, activation=SquareAndCube, rows=rows, seed=own)
        errors.append(frobenius_of(PAPERS.run_in_blocks(blocks, len(x), seed=own), x))
    return torch.tensor(errors, dtype=torch.float64)


def _slope(points: Tensor) -> float:
    x, y = points - points.mean(1, keepdim=True)
    return float((x * y).sum() / x.square().sum())


def _constant(points: Tensor) -> float:
    x, y = points
    return float((y - x / 2).mean().exp())


def linear_caveat(scale: Scale) -> Sequence[Experiment]:
    """Linear and quadratic activations: only a combination of the batch, only its span, and nothing more to be had."""
    about = "What a gradient determines when the activation's higher Hermite coefficients vanish."
    return [Experiment(label="what remains", about=about, evaluations=(Measurement(measure=partial(_caveat, scale)),))]


def _caveat(scale: Scale, seed: int, device: torch.device) -> Outcome:
    """Of the first layer's gradient only: those of the biases and of the head tell more."""
    features, rows, records = 20, 500 if scale == "smoke" else 5000, 3
    generator = torch.Generator().manual_seed(derive_seed(seed, "caveat"))
    x = torch.rand(records, features, generator=generator, dtype=torch.float64).to(device)
    labels = (torch.arange(records, device=device) + 1) % 2
    linear = gradient_of(x, labels, activation=nn.Identity, rows=rows, seed=seed).gradient["1.weight"]
    square = gradient_of(x, labels, activation=Square, rows=rows, seed=seed)
    sent = square.gradient["1.weight"]
    return Outcome(
        measures=(
            _exactly(
                "rank of the gradient, linear", torch.linalg.matrix_rank(linear), "of three records: one direction"
            ),
            _exactly("rank of the gradient, quadratic", torch.linalg.matrix_rank(sent), "of three records: their span"),
            _exactly("records outside the span, quadratic", _outside(x, sent), "share of their norm outside the span"),
            _exactly(
                "other vectors, same gradient of the first layer",
                _other_batch(square.at["1.weight"], sent, x),
                "largest difference, in units of the largest entry, to that of orthogonal vectors in the span",
            ),
        )
    )


def _exactly(name: str, value: Tensor, meaning: str) -> Measure:
    return Measure(name=name, value=float(value), meaning=meaning)


def _outside(x: Tensor, sent: Tensor) -> Tensor:
    basis = torch.linalg.svd(sent, full_matrices=False).Vh[: len(x)]
    left: Tensor = (x - x @ basis.T @ basis).norm() / x.norm()
    return left


def _other_batch(rows: Tensor, sent: Tensor, x: Tensor) -> Tensor:
    """With s = x^2 the gradient is W M for one symmetric M, and M has as many square roots as there are rotations."""
    middle = torch.linalg.lstsq(rows, sent).solution
    values, vectors = torch.linalg.eigh((middle + middle.T) / 2)
    leading = values.abs().argsort(descending=True)[: len(x)]
    others = values[leading].abs().sqrt()[:, None] * vectors[:, leading].T  # not the records
    again = (rows @ others.T) * values[leading].sign() @ others
    difference: Tensor = (again - sent).abs().max() / sent.abs().max()
    return difference
