"""Planted batches: figure 2, what cannot be identified, the bias of remark 1, the activations of remarks 3 and 4,
deeper nets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor, nn

from remanence.attacks import Stein, hermite_coefficients, identifying_order, vanishes
from remanence.errors import BadInput
from remanence.experiments import Claim, Experiment, Figure, Measure, Outcome, Scale, Series
from remanence.metrics import Interval, hungarian
from remanence.metrics.statistics import bootstrap_mean
from remanence.progress import track
from remanence.releases import Gradient
from remanence.seeds import derive_seed
from remanence.types import Reconstruction
from remanence_recipes.curves import figure_along, measured, measures_along, proportion, series_along
from remanence_recipes.wang2023.setting import (
    BY_ONES,
    CHANCE,
    ERROR,
    HEAD,
    OF_ONE_SIGN,
    OFFSET,
    OURS,
    PAPERS,
    PLUGGED,
    SPAN,
    Square,
    SquareAndCube,
    chance_error,
    frobenius_error,
    gradient_of,
    mean_error,
    reconstructed,
    standard_batch,
    unit_batch,
)

Run: TypeAlias = tuple[Tensor, Reconstruction]  # a planted batch, and what was reconstructed of it
ROWS: dict[Scale, int] = {"smoke": 2000, "small": 5000, "full": 5000}
FEATURES: dict[Scale, int] = {"smoke": 10, "small": 50, "full": 50}  # but for figure 2
REPEATS: dict[Scale, int] = {"smoke": 2, "small": 4, "full": 10}
DIMENSIONS = tuple(range(10, 101, 10))
BIASES = (2.0, 5.0, 10.0, OFFSET)  # on the output, of which remark 1 says only that no residual may vanish
PRINTED = {  # figure 2
    "head, x²+x³": (0.150, 0.220, 0.280, 0.320, 0.379, 0.390, 0.422, 0.444, 0.387, 0.488),
    "rows, x²+x³": (0.037, 0.056, 0.075, 0.102, 0.091, 0.102, 0.114, 0.120, 0.118, 0.125),
    "rows, tanh, one sign": (0.067, 0.096, 0.162, 0.184, 0.246, 0.283, 0.283, 0.296, 0.335, 0.361),
    "rows, sigmoid, one sign": (0.103, 0.177, 0.293, 0.265, 0.279, 0.308, 0.348, 0.377, 0.385, 0.376),
}
TARGETS = {  # ours
    "rows, tanh": {10: 0.03, 50: 0.08, 100: 0.11},
    "plugged in, tanh": {10: 0.03, 50: 0.08, 100: 0.11},
    "exact span, x²+x³": {10: 0.014, 50: 0.014, 100: 0.014},
    "exact span, tanh": {10: 0.015, 50: 0.015, 100: 0.015},
}
CURVES: dict[str, tuple[Stein, Callable[[], nn.Module]]] = {
    "head, x²+x³": (HEAD, SquareAndCube),
    "rows, x²+x³": (PAPERS, SquareAndCube),
    "rows, tanh, one sign": (OF_ONE_SIGN, nn.Tanh),
    "rows, sigmoid, one sign": (OF_ONE_SIGN, nn.Sigmoid),
    "rows, tanh, a = ones": (BY_ONES, nn.Tanh),
    "rows, sigmoid, a = ones": (BY_ONES, nn.Sigmoid),
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


def figure2(scale: Scale) -> Sequence[Experiment]:
    """Figure 2: two unit vectors from one gradient, error against features; the paper's estimators and ours.

    What the axis measures is not said: `ERROR` fits best. Nor is the vector `a` that contracts the moments of tanh and
    sigmoid (remark 3), nor which eigenvectors of the contracted moment span the batch: ones, and the eigenvalues of the
    sign that all residuals and sums of records give them, stand against print. Beside them stand ones with the largest
    eigenvalues of either sign, which under sigmoid from 50 features on are noise, and the first moment, our choice.
    """
    claims = [
        Claim(
            quantity=f"{curve}, d = {d}",
            higher_is_better=False,
            printed=PRINTED[curve][i] if curve in PRINTED else None,
            target=TARGETS.get(curve, {}).get(d),
            where=f"figure 2, d = {d}",
            rtol=0.2,
        )
        for i, d in enumerate(DIMENSIONS)
        for curve in CURVES
        if curve in PRINTED or d in TARGETS.get(curve, {})
    ]
    about = (
        "Two planted unit vectors, reconstructed from one gradient of a wide net with weights of the server's choice."
    )
    return [measured("planted pairs", about, partial(_figure2, scale), () if scale == "smoke" else tuple(claims))]


def _figure2(scale: Scale, seed: int, device: torch.device) -> Outcome:
    dimensions = _dimensions(scale)
    runs = {
        name: [_runs(scale, attack, activation, d, seed, device) for d in dimensions]
        for name, (attack, activation) in track(CURVES.items(), total=len(CURVES), label="curves")
    }
    found = {
        name: [mean_error(each, seed=seed, position=d) for d, each in zip(dimensions, of_name, strict=True)]
        for name, of_name in runs.items()
    }
    labels = (_labels(f"labels recovered, {name}", runs[name]) for name in CURVES)
    x, chance = tuple(map(float, dimensions)), [chance_error(d, seed) for d in dimensions]
    measures = measures_along(
        found, [f"d = {d}" for d in dimensions], meaning=f"mean of {ERROR}; chance is {CHANCE}", chance=chance
    )
    printed = [
        Series(name=f"printed: {name}", x=x, y=errors[: len(x)], role="printed") for name, errors in PRINTED.items()
    ]
    *papers, level = series_along({name: found[name] for name in PRINTED}, x, {"chance": chance})
    ours = {name: each for name, each in found.items() if name not in PRINTED}
    low = (
        _as_low_as(printed, f"runs as low as print, {name}, d = {d}", runs_of_d)
        for name, of_name in PRINTED.items()
        for d, printed, runs_of_d in zip(dimensions, of_name, runs[name], strict=False)
    )
    return Outcome(
        measures=(*measures, *low, *labels),
        figures=(
            Figure(
                title="The paper's estimators", x_label="features", y_label=ERROR, series=(*papers, *printed, level)
            ),
            figure_along("Ours", ("features", ERROR), ours, x, {"chance": chance}, log_y=True),
        ),
    )


def _as_low_as(printed: float, name: str, runs: Sequence[Run]) -> Measure:
    """The fraction of single runs whose error is at most the printed one, which the paper may have of a single run."""
    errors = torch.tensor([frobenius_error(found.x, x) for x, found in runs])
    return proportion(
        name, errors <= printed, meaning="of the draws of the weights, those with an error of at most the printed one"
    )


def _dimensions(scale: Scale) -> tuple[int, ...]:
    return (10, 20) if scale == "smoke" else DIMENSIONS


def _labels(name: str, runs: Iterable[Sequence[Run]]) -> Measure:
    """The fraction of the labels of planted batches that are recovered, at all numbers of features."""
    right = []
    for x, found in chain.from_iterable(runs):
        assert found.y is not None
        right.append(found.y[hungarian(found.x, x)] == standard_batch(x.shape[1], device=x.device)[1])
    meaning = "of the labels of the planted vectors, at all numbers of features; chance: a guess"
    return proportion(name, torch.cat(right), meaning=meaning, chance=0.5)


def _runs(
    scale: Scale,
    attack: Stein,
    activation: Callable[[], nn.Module],
    features: int,
    seed: int,
    device: torch.device,
    offset: float = OFFSET,
) -> list[Run]:
    """The planted batch and its reconstruction, over draws of the server's weights."""
    x, labels = standard_batch(features, device=device)
    seeds = [derive_seed(seed, "weights", features, i) for i in range(REPEATS[scale])]
    send = partial(gradient_of, activation=activation, rows=ROWS[scale], offset=offset)
    sent = ((x, send(x, labels, seed=each)) for each in seeds)
    return reconstructed(attack, sent, seed=seed)


def output_bias(scale: Scale) -> Sequence[Experiment]:
    """Remark 1: without a bias on the output, the record whose label the network expects leaves no gradient."""
    about = (
        "Two planted unit vectors with labels 1 and -1, of which a network with x²+x³ and no bias on its output "
        "expects the first: its residual, E[s(z)] - y with E[s(z)] = 1, is zero but for the draw of the rows."
    )
    return [measured("labels", about, partial(_output_bias, scale))]


def _output_bias(scale: Scale, seed: int, device: torch.device) -> Outcome:
    """The distance of either record from its reconstruction, up to the sign, with and without the bias, and the labels
    that are recovered with smaller ones: the larger the bias, the less the residuals of the labels differ."""
    features, repeats, measures = FEATURES[scale], 10 * REPEATS[scale], list[Measure]()
    x, labels = standard_batch(features, device=device)
    for name, offset in (("bias 30", OFFSET), ("no bias", 0.0)):
        errors = []
        for i in range(repeats):
            draw = derive_seed(seed, "weights", features, i)
            sent = gradient_of(x, labels, activation=SquareAndCube, rows=ROWS[scale], seed=draw, offset=offset)
            found = PAPERS.run(sent, seed=derive_seed(seed, "attack", i)).x
            errors.append((found[hungarian(found, x)] - x).norm(dim=1))
        measures += [
            Measure.from_interval(
                f"label {label}, {name}",
                bootstrap_mean(each, seed=derive_seed(seed, name, label)),
                meaning=f"mean distance of the record with this label from its reconstruction, of {repeats} draws of "
                "the weights; chance is that of a random unit vector",
                chance=2**0.5,
            )
            for label, each in zip((1, -1), torch.stack(errors).T, strict=True)
        ]
    for offset in BIASES:
        runs = [_runs(scale, PAPERS, SquareAndCube, d, seed, device, offset) for d in _dimensions(scale)]
        measures.append(_labels(f"labels recovered, bias {offset:g}", runs))
    return Outcome(measures=tuple(measures))


def linear_caveat(scale: Scale) -> Sequence[Experiment]:
    """Linear and quadratic activations: the gradient determines one combination of the batch, or only its span."""
    about = "What a gradient determines when the activation's higher Hermite coefficients vanish."
    return [measured("what remains", about, partial(_caveat, scale))]


def _caveat(scale: Scale, seed: int, device: torch.device) -> Outcome:
    """Measured on the first layer's gradient only: those of the biases and of the head determine more."""
    features, rows, records = 20, 500 if scale == "smoke" else 5000, 3
    generator = torch.Generator().manual_seed(derive_seed(seed, "caveat"))
    x = torch.rand(records, features, generator=generator, dtype=torch.float64).to(device)
    _, labels = standard_batch(features, records, device=device)
    linear, square = (
        gradient_of(x, labels, activation=activation, rows=rows, seed=seed) for activation in (nn.Identity, Square)
    )
    sent, weights = square.gradient["1.weight"], square.at["1.weight"]
    basis = torch.linalg.svd(sent, full_matrices=False).Vh[:records]
    # With s = x^2 the gradient is W M for one symmetric M, and M has as many square roots as there are rotations.
    symmetric = torch.linalg.lstsq(weights, sent).solution
    values, vectors = torch.linalg.eigh((symmetric + symmetric.T) / 2)
    leading = values.abs().argsort(descending=True)[:records]
    others = values[leading].abs().sqrt()[:, None] * vectors[:, leading].T  # not the records
    theirs = (weights @ others.T) * values[leading].sign() @ others
    rank = torch.linalg.matrix_rank
    found = {
        "rank of the gradient, linear": (rank(linear.gradient["1.weight"]), "of three records: one direction"),
        "rank of the gradient, quadratic": (rank(sent), "of three records: their span"),
        "records outside the span, quadratic": (
            (x - x @ basis.T @ basis).norm() / x.norm(),
            "fraction of their norm outside the span",
        ),
        "other vectors, same gradient of the first layer": (
            (theirs - sent).abs().max() / sent.abs().max(),
            "largest difference, in units of the largest entry, to that of orthogonal vectors in the span",
        ),
    }
    return Outcome(
        measures=tuple(Measure(name=name, value=float(v), meaning=meaning) for name, (v, meaning) in found.items())
    )


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "x²+x³": SquareAndCube,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "ReLU": nn.ReLU,
    "leaky ReLU": nn.LeakyReLU,
    "ELU": nn.ELU,
    "linear": nn.Identity,
    "quadratic": Square,
}
ESTIMATORS = {"the paper's estimator": PAPERS, "exact span": SPAN, "refined": OURS}


def activations(scale: Scale) -> Sequence[Experiment]:
    """Remarks 3 and 4: eight activations, their Hermite coefficients, the moment used, the error; two are refused."""
    error = "Two planted unit vectors, reconstructed from one gradient of a wide net, for each activation."
    coefficients = "The Hermite coefficients of an activation, which decide what a gradient determines of a batch."
    return [
        measured("error", error, partial(_activations, scale)),
        measured("Hermite coefficients", coefficients, _coefficients),
    ]


def _activations(scale: Scale, seed: int, device: torch.device) -> Outcome:
    features, repeats = FEATURES[scale], REPEATS[scale]
    x, labels = standard_batch(features, device=device)
    found, refused = dict[str, list[Interval]](), list[Measure]()
    for name, activation in track(ACTIVATIONS.items(), total=len(ACTIVATIONS), label="activations"):
        release = gradient_of(x, labels, activation=activation, rows=ROWS[scale], seed=derive_seed(seed, "refusals"))
        if messages := [message for attack in ESTIMATORS.values() if (message := _refusal(attack, release, seed))]:
            meaning = f"of three: {messages[0]}"
            refused.append(Measure(name=f"{name}, ways refused", value=len(messages), meaning=meaning))
        else:
            runs = (_runs(scale, each, activation, features, seed, device) for each in ESTIMATORS.values())
            found[name] = [mean_error(each, seed=seed, position=features) for each in runs]
    chance = chance_error(features, seed)
    meaning = f"mean of {ERROR} at d = {features} over {repeats} draws of the weights; chance is {CHANCE}"
    by_estimator = {name: [errors[i] for errors in found.values()] for i, name in enumerate(ESTIMATORS)}
    levels = {"chance": [chance] * len(found)}
    figure = figure_along("Error by activation", ("activation", ERROR), by_estimator, tuple(found), levels, log_y=True)
    errors = measures_along(found, tuple(ESTIMATORS), meaning=meaning, chance=[chance] * len(ESTIMATORS))
    return Outcome(measures=(*errors, *refused), figures=(figure,))


def _refusal(attack: Stein, release: Gradient, seed: int) -> str | None:
    try:
        attack.run(release, seed=seed)
    except BadInput as refusal:
        return str(refusal)
    return None


def _coefficients(_seed: int, _device: torch.device) -> Outcome:
    identified = {2: "the span, by the paper", 3: "the records", 4: "the records where c_3 vanishes"}
    found = {name: hermite_coefficients(activation()) for name, activation in ACTIVATIONS.items()}
    orders = [
        Measure(name=f"{name}, order", value=identifying_order(ACTIVATIONS[name]()), meaning="of the moment decomposed")
        for name, coefficients in found.items()
        if not (vanishes(3, coefficients) and vanishes(4, coefficients))
    ]
    values = [
        Measure(
            name=f"{name}, c_{k}",
            value=0.0 if vanishes(k, coefficients) else coefficients[k],
            meaning=f"E[s(z) H_{k}(z)], z standard normal, identifies {what}",
        )
        for name, coefficients in found.items()
        for k, what in identified.items()
    ]
    series = tuple(Series(name=f"c_{k}", x=tuple(found), y=tuple(c[k] for c in found.values())) for k in range(5))
    figure = Figure(title="Hermite coefficients", x_label="activation", y_label="c_k", series=series, kind="bars")
    return Outcome(measures=(*orders, *values), figures=(figure,))


def depth(scale: Scale) -> Sequence[Experiment]:
    """Corollary 5.2 (algorithm 2): two records from nets of two to six layers; how the error grows with depth.

    By our exact span: the paper's estimator of the span is refused for more than two layers.
    """
    about = "Two random unit vectors, reconstructed from one gradient of nets with more and more layers."
    return [measured("planted pairs", about, partial(_depth, scale))]


def _depth(scale: Scale, seed: int, device: torch.device) -> Outcome:
    depths, features, repeats = (2, 4) if scale == "smoke" else (2, 3, 4, 5, 6), FEATURES[scale], REPEATS[scale]

    def sent(activation: str, layers: int) -> Iterator[tuple[Tensor, Gradient]]:
        send = partial(gradient_of, activation=ACTIVATIONS[activation], before=(2 * features,) * (layers - 2))
        for i in range(repeats):
            x, labels = (part.to(device) for part in unit_batch(features, seed=derive_seed(seed, "batch", i)))
            yield x, send(x, labels, rows=ROWS[scale], seed=derive_seed(seed, "weights", i))

    found = {
        f"{activation}, {name}": [
            mean_error(reconstructed(attack, sent(activation, layers), seed=seed), seed=seed, position=layers)
            for layers in depths
        ]
        for activation in track(("ReLU", "leaky ReLU", "tanh"), total=3, label="activations")
        for name, attack in (("exact span", SPAN), ("refined", OURS))
    }
    chance = [chance_error(features, seed)] * len(depths)
    meaning = f"mean of {ERROR} at d = {features} over {repeats} draws; chance is {CHANCE}"
    return Outcome(
        measures=measures_along(found, [f"{layers} layers" for layers in depths], meaning=meaning, chance=chance),
        figures=(
            figure_along("Error against depth", ("layers", ERROR), found, depths, {"chance": chance}, log_y=True),
        ),
    )
