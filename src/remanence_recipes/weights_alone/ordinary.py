"""MLPs as people train them, biases in every layer, and what Stationarity finds in their weights alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor, nn

from remanence.attacks import Powers, Rounds, Search, Stationarity
from remanence.diagnostics.forecasting import Fitted, WeightsForecast, fit, forecast
from remanence.engine import GenericEngine, train
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series, Trial
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics import SSIM, Scores, evaluate
from remanence.metrics.exchangeability import FDR
from remanence.metrics.statistics import bootstrap_mean, clustered_proportion
from remanence.models import mlp, normalized, normalized_params, torch_params
from remanence.models.layers import Constants
from remanence.progress import track
from remanence.releases import Victim, check_fit, weights_only
from remanence.seeds import derive_seed
from remanence.training import Adam, CrossEntropy, KnownLoss, Logistic, Training
from remanence.types import Data, Params
from remanence_recipes.curves import figure_along
from remanence_recipes.records import first_of_each_class, shuffled
from remanence_recipes.weights_alone.evaluation import FOUND
from remanence_recipes.weights_alone.target import ANIMALS, HELD_OUT, distinct_images

VICTIMS: Mapping[Scale, int] = {"smoke": 1, "small": 2, "full": 3}
HIDDEN: Mapping[Scale, tuple[int, ...]] = {"smoke": (120,), "small": (200, 100), "full": (512, 256)}
WIDE: Mapping[Scale, tuple[int, ...]] = {"smoke": (160,), "small": (300, 300), "full": (1000, 1000)}
CHANNEL_MEANS, CHANNEL_STDS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10, as everybody uses them
ROW = 10


@final
@dataclass(frozen=True, kw_only=True)
class Shipped:
    """An MLP with biases everywhere, how it was trained, and how long the attack searches."""

    scale: Scale
    per_class: int
    training: Training
    inputs: Literal["unit", "standardised", "centred"] = "standardised"  # "centred": by the mean of its own records
    hidden: tuple[int, ...] | None = None
    activation: type[nn.Module] = nn.ReLU
    one_output: bool = False  # animals against vehicles, or odd digits against even ones
    balanced: bool = True
    known_count: bool = True  # the attacker knows the number of records
    steps: int = 3000  # of the attack, in each level and round
    restarts: int = 4
    first_whitening: float = 0.5  # its power
    rounds: Rounds = Rounds()

    @property
    def records(self) -> int:
        return 10 * self.per_class

    @property
    def loss(self) -> KnownLoss:
        assert isinstance(self.training.loss, CrossEntropy | Logistic)
        return self.training.loss

    def split(self, seed: int) -> tuple[Data, Data]:
        """Private and held-out records; with `one_output` of two classes."""
        source = "digits" if self.scale == "smoke" else "cifar10"
        records = shuffled(distinct_images(source, shrunk=self.scale == "small"), seed)
        if self.balanced:
            private, others = first_of_each_class(records, self.per_class)
        else:
            private, others = records.take(slice(0, self.records)), records.take(slice(self.records, len(records)))
        held_out = others.take(slice(0, max(HELD_OUT[self.scale], self.records)))
        return self._labelled(private), self._labelled(held_out)

    def _labelled(self, data: Data) -> Data:
        if not self.one_output:
            return data
        first = torch.isin(data.y, torch.tensor(ANIMALS)) if data.name == "cifar10" else data.y % 2 == 1
        return replace(data, y=first.long(), num_classes=2)

    def victim(self, private: Data, seed: int) -> Victim:
        """The trained network, with its normalisation as a part of it."""
        hidden, outputs = self.hidden or HIDDEN[self.scale], 1 if self.one_output else private.num_classes
        model: nn.Module = mlp(private.shape, outputs, hidden=hidden, activation=self.activation)
        initial = torch_params(model, seed=derive_seed(seed, "start"))
        if self.inputs != "unit":
            mean, std = self._normalisation(private)
            model = normalized(model, mean, std)
            assert isinstance(model, nn.Sequential)
            initial = normalized_params(model, initial)
        initial = {name: p.to(private.x) for name, p in initial.items()}
        end = train(self.training, model, initial, private, seed=derive_seed(seed, "batches"))
        none = private.take(slice(0, 0))
        victim = Victim(model=model, training=self.training, initial=initial, final=end, fixed=none, private=private)
        check_fit(victim)
        return victim

    def _normalisation(self, private: Data) -> tuple[Constants, Constants]:
        if self.inputs == "centred":
            return private.x.mean(0), 1.0
        if private.shape[0] == 3:
            return CHANNEL_MEANS, CHANNEL_STDS
        return float(private.x.mean()), float(private.x.std())

    def attack(self) -> Stationarity:
        lr = 0.003 if self.scale == "smoke" else 0.006
        search = Search(
            optimizer=Adam(lr=lr, eps=1e-20), steps=self.steps, restarts=self.restarts, tf32=self.scale == "full"
        )
        return Stationarity(
            candidates=self.records if self.known_count else None,
            loss=self.loss,
            search=search,
            whitening=Powers(first=self.first_whitening, inner=1.0),
            rounds=self.rounds,
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked:
    """One victim: what was found in its weights, the forecast, and the condition at the truth."""

    scores: Scores
    forecast: WeightsForecast
    at_truth: tuple[float, ...]  # by layer
    by_chance: tuple[float, ...]  # the same of held-out records
    pictures: dict[str, Tensor]


def attacked(shipped: Shipped, seed: int, device: torch.device) -> Attacked:
    """Train a victim, and reconstruct its records from its weights alone."""
    dtype = torch.float64 if shipped.scale == "smoke" else torch.float32
    private, held_out = (part.to(device, dtype) for part in shipped.split(seed))
    victim = shipped.victim(private, seed)
    found = shipped.attack().run(weights_only(victim).release, seed=seed)
    scores = evaluate(found, private, unrelated=held_out, metrics=(SSIM,), seed=seed)
    best = scores.values[SSIM.name].argsort(descending=True)[:: max(1, len(private) // ROW)][:ROW]
    others = held_out.take(slice(0, len(private)))
    return Attacked(
        scores=scores,
        forecast=forecast(victim.model, victim.final, private.shape, records=len(private)),
        at_truth=unexplained(victim, private),
        by_chance=unexplained(victim, others),
        pictures={"truth": private.x[best], "Stationarity": found.x[scores.index[best]]},
    )


def unexplained(victim: Victim, records: Data) -> tuple[float, ...]:
    """Of each layer the fraction of its norm that the gradient of the loss at these records leaves of its weights, with
    the one factor for all layers that leaves the least."""
    exact: Params = {name: p.double() for name, p in victim.final.items()}
    engine = GenericEngine(model=victim.model, loss=victim.training.loss)
    gradient = engine.gradient(exact, records.x.double(), records.y)
    product = sum(float((exact[name] * -g).sum()) for name, g in gradient.items())
    square = sum(float(g.square().sum()) for g in gradient.values())
    factor = max(product, 0.0) / max(square, 1e-300)
    return tuple(
        float((exact[name] + factor * g).norm() / exact[name].norm()) for name, g in gradient.items() if g.ndim > 1
    )


def study(label: str, about: str, shipped: Shipped, *, victims: int) -> Experiment:
    """Several victims of one kind."""

    def measure(seed: int, device: torch.device) -> Outcome:
        seeds = [derive_seed(seed, "victim", index) for index in range(victims)]
        each = [attacked(shipped, one, device) for one in track(seeds, total=victims, label="victims")]
        return Outcome(
            measures=tuple(_measures(each)),
            pictures=each[0].pictures,
            arrays={
                f"{index}/{key}": x for index, one in enumerate(each) for key, x in one.scores.test.arrays().items()
            },
        )

    return experiment(label, about, measure)


def along(
    label: str, about: str, axis: str, curves: Mapping[str, Mapping[int, Shipped]], *, log: bool = True
) -> Experiment:
    """The fraction found along an axis, one victim for each point."""

    def measure(seed: int, device: torch.device) -> Outcome:
        points = [(name, x, shipped) for name, curve in curves.items() for x, shipped in curve.items()]
        found = {
            (name, x): attacked(shipped, seed, device)
            for name, x, shipped in track(points, total=len(points), label="victims")
        }
        measures = [
            measure
            for (name, x), one in found.items()
            for measure in (_found(f"{axis} {x:g}, {name}", [one]), *_forecasts(f"{axis} {x:g}, {name}", [one]))
        ]
        return Outcome(measures=tuple(measures), figures=tuple(_figures(axis, curves, found, log)))

    return experiment(label, about, measure)


def forecast_study(label: str, about: str, kinds: Sequence[Shipped]) -> Experiment:
    """A forecast fitted on every other victim, and checked on those between, each with records of its own."""

    def measure(seed: int, device: torch.device) -> Outcome:
        seeds = [derive_seed(seed, "victim", index) for index in range(len(kinds))]
        pairs = track(list(zip(kinds, seeds, strict=True)), total=len(kinds), label="victims")
        each = [attacked(shipped, one, device) for shipped, one in pairs]
        features = [one.forecast.features for one in each]
        found = [one.scores.fraction_found.value for one in each]
        weights = [len(one.scores.found) for one in each]
        fitted = fit(features[::2], found[::2], weights[::2])
        expected = [fitted.fraction(row) for row in features[1::2]]
        return Outcome(
            measures=tuple(_checked(fitted, expected, found[1::2], found[::2])),
            figures=(_against(expected, found[1::2]),),
            arrays={"features": torch.tensor(features), "found": torch.tensor(found), "records": torch.tensor(weights)},
        )

    return experiment(label, about, measure)


def _checked(
    fitted: Fitted, expected: Sequence[float], found: Sequence[float], others: Sequence[float]
) -> Iterator[Measure]:
    from scipy.stats import spearmanr

    mean = sum(others) / len(others)
    errors = [abs(a - b) for a, b in zip(expected, found, strict=True)]
    yield Measure(
        name="mean error of the forecast",
        value=sum(errors) / len(errors),
        chance=sum(abs(mean - b) for b in found) / len(found),
        meaning=f"of the fraction found in {len(found)} victims it was not fitted on; chance: the mean of the others",
    )
    yield Measure(
        name="rank correlation of the forecast",
        value=float(spearmanr(expected, found).statistic),
        chance=0.0,
        meaning="with the fraction found in victims that it was not fitted on",
    )
    for name, values in (("centre", fitted.centre), ("scale", fitted.scale), ("coefficient", fitted.coefficients)):
        for index, value in enumerate(values):
            yield Measure(name=f"{name} {index}", value=value, meaning="of the logistic regression")


def _against(expected: Sequence[float], found: Sequence[float]) -> Figure:
    order = sorted(range(len(expected)), key=lambda index: expected[index])
    x = tuple(expected[index] for index in order)
    return Figure(
        title="Found against the forecast",
        x_label="fraction that the weights let expect",
        y_label="fraction found",
        series=(
            Series(name="victims", x=x, y=tuple(found[index] for index in order)),
            Series(name="as expected", x=(0.0, 1.0), y=(0.0, 1.0), role="chance"),
        ),
        kind="points",
    )


def _figures(
    axis: str,
    curves: Mapping[str, Mapping[int, Shipped]],
    found: Mapping[tuple[str, int], Attacked],
    log: bool,
) -> Iterator[Figure]:
    for name, curve in curves.items():
        values = list(curve)
        line = [found[name, x].scores.fraction_found for x in values]
        chance = {"chance": [FDR * each.value for each in line]}
        yield figure_along(f"Found, {name}", (axis, "fraction found"), {name: line}, values, chance, log_x=log)


def experiment(label: str, about: str, measure: Callable[[int, torch.device], Outcome]) -> Experiment:
    """An experiment of these victims, with the caveat about tuned settings."""
    evaluations = (Measurement(measure=measure), _tuned)
    return Experiment(label=label, about=about, evaluations=evaluations)


def _tuned(trial: Trial) -> Outcome:
    caveat = tuned_on_truth(
        "Learning rates and the length of trainings, the attack's learning rate, whitening, rounds, tempering and how "
        "many candidates stand for an unknown number of records were chosen by looking at true records of other seeds."
    )
    return Outcome(caveats=(caveat,))


def _measures(each: Sequence[Attacked]) -> Iterator[Measure]:
    yield _found("", each)
    values = torch.cat([one.scores.values[SSIM.name].double().cpu() for one in each])
    chance = sum(float(one.scores.nulls["unrelated"].values[SSIM.name].mean()) for one in each) / len(each)
    yield Measure.from_interval(
        "mean SSIM, Stationarity",
        bootstrap_mean(values.nan_to_num(), seed=0),
        chance=chance,
        meaning="of the records with their candidates; chance: as many unrelated records",
    )
    for layer in range(len(each[0].at_truth)):
        yield Measure(
            name=f"unexplained at the truth, layer {layer + 1}",
            value=sum(one.at_truth[layer] for one in each) / len(each),
            chance=sum(one.by_chance[layer] for one in each) / len(each),
            meaning="of the norm of its weights, by the gradient at the true records; chance: at held-out records",
        )
    yield from _forecasts("", each)


def _found(suffix: str, each: Sequence[Attacked]) -> Measure:
    counts = [int(one.scores.found.sum()) for one in each]
    total = sum(len(one.scores.found) for one in each)
    found = clustered_proportion(counts, total // len(counts))
    victims = f"{counts[0]}" if len(counts) == 1 else f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"
    p = max(one.scores.test.together for one in each)
    return Measure.from_interval(
        ", ".join(part for part in (FOUND, suffix) if part),
        found,
        chance=FDR * found.value,
        meaning=f"{victims} of {total // len(counts)} records, at a false-discovery rate of {FDR:.0%}; p ≤ {p:.2g}",
    )


def _forecasts(suffix: str, each: Sequence[Attacked]) -> Iterator[Measure]:
    """The forecast and the properties of weights that it is made of, means over victims."""
    parts = {
        "forecast": (
            "the fraction that weights let expect, before any search",
            [one.forecast.fraction for one in each],
        ),
        "imbalance of neurons": (
            "of the norms of incoming and outgoing weights, 0 at a stationary point",
            [one.forecast.imbalance for one in each],
        ),
        "directions above noise": (
            "of as many as records, above what is left of the initial weights",
            [one.forecast.above_noise for one in each],
        ),
        "records per neuron": ("of the first layer", [one.forecast.records / one.forecast.neurons for one in each]),
        "outputs": ("of the network", [float(one.forecast.outputs) for one in each]),
    }
    for name, (meaning, values) in parts.items():
        yield Measure(
            name=", ".join(part for part in (name, suffix) if part),
            value=sum(values) / len(values),
            meaning=meaning,
        )
