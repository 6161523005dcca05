"""The forecast of what Stationarity finds, fitted on committed results and checked on others.

python benchmarks/forecast.py      prints the fit that `remanence.diagnostics.forecasting` ships, and its errors

Fitted on the victims of `ablations.ordinary_forecast` and `ordinary_size`, 10 to 900 records; checked on those of
`ordinary_weights`, `ordinary_two_groups`, `ordinary_many` and `ordinary_convergence`, means over three where there are
as many.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file
from scipy.stats import spearmanr

from remanence.diagnostics.forecasting import Fitted, WeightsForecast, fit

RESULTS = Path(__file__).parents[1] / "results" / "ablations"
CHECKED = ("ordinary_weights", "ordinary_two_groups", "ordinary_many", "ordinary_convergence")
MAX_WEIGHT = 60  # of a victim: one of 900 records counts as one of 60

Point = tuple[tuple[float, ...], float, int]  # features, fraction found, records


def victims() -> Iterator[Point]:
    """Those of `ordinary_forecast`."""
    stored = load_file(RESULTS / "ordinary_forecast-evidence.safetensors")
    for features, found, records in zip(
        stored["0/features"].tolist(), stored["0/found"].tolist(), stored["0/records"].tolist(), strict=True
    ):
        yield tuple(features), found, records


def points(file: str) -> Iterator[Point]:
    """What was found in the victims of a recipe, next to the properties of their weights."""
    for result in json.loads((RESULTS / f"{file}.json").read_text()):
        measures = {each["name"]: each for each in result["measures"]}
        for name, found in measures.items():
            if not name.startswith("share found"):
                continue
            suffix = name.removeprefix("share found")
            of = re.search(r"of ([\d,]+) records", found["meaning"])
            assert of is not None
            records = int(of[1].replace(",", ""))
            made = WeightsForecast(
                imbalance=measures["imbalance of neurons" + suffix]["value"],
                above_noise=measures["directions above noise" + suffix]["value"],
                records=records,
                neurons=round(records / measures["records per neuron" + suffix]["value"]),
                outputs=round(measures["outputs" + suffix]["value"]),
            )
            yield made.features, found["value"], records


def fitted() -> Fitted:
    """The fit on all victims that are not checked."""
    features, found, records = zip(*victims(), *points("ordinary_size"), strict=True)
    return fit(features, found, [min(count, MAX_WEIGHT) for count in records])


def main() -> None:
    made = fitted()
    print(made)
    others = [point for file in CHECKED for point in points(file)]
    expected, found = [made.fraction(features) for features, *_ in others], [found for _, found, _ in others]
    known = [found for _, found, _ in (*victims(), *points("ordinary_size"))]
    mean = sum(known) / len(known)
    error = sum(abs(a - b) for a, b in zip(expected, found, strict=True)) / len(found)
    guess = sum(abs(mean - b) for b in found) / len(found)
    correlation = float(spearmanr(expected, found).statistic)
    print(f"fitted on {len(known)} victims; on {len(found)} others:")
    print(f"mean error {error:.3f} (guessing the mean of the fitted: {guess:.3f}), rank correlation {correlation:.2f}")


if __name__ == "__main__":
    main()
