"""The committed results as rows of tables: what a paper prints, what was measured here, and what chance reaches."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from remanence.experiments.results import parse_records

RESULTS = Path(__file__).parents[1] / "results"
UNCLAIMED = 3  # measures of an experiment without claims that a table shows; the JSON holds all


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of one experiment."""

    file: str
    experiment: str
    attack: str
    quantity: str
    where: str
    printed: float | None
    ours: str
    interval: str
    chance: str
    status: str
    budget: str
    seconds: float
    device: str
    seed: int
    commit: str

    @property
    def printed_text(self) -> str:
        return number(self.printed)

    @property
    def page(self) -> str:
        """The page of its attack in docs/methods."""
        return {"GradientMatching": "gradient-matching", "FirstLayer": "first-layer"}.get(
            self.attack, self.attack.lower()
        )


def read_results() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Every committed file, `paper/recipe`, with its results. The only place that knows how they are stored."""
    for path in sorted(RESULTS.glob("*/*.json")):
        text = path.read_text(encoding="utf-8")
        parse_records(text, where=str(path))  # refuses what is damaged
        yield f"{path.parent.name}/{path.stem}", json.loads(text)


def read_rows(*, all_measures: bool = False) -> Iterator[Row]:
    for file, results in read_results():
        for result in results:
            yield from _rows(file, result, all_measures)


def _rows(file: str, result: dict[str, Any], all_measures: bool) -> Iterator[Row]:
    measured = {each["name"]: each for each in _quantities(result)}
    claims = {each["quantity"]: each for each in result["claims"]}
    for name in measured if all_measures else _shown(result, list(claims), list(measured)):
        value, claim = measured.get(name, {}), claims.get(name, {})
        yield Row(
            file=file,
            experiment=result["cell"],
            attack=result.get("attack", "").partition("(")[0] or ("KKT" if name.endswith("KKT") else "Stationarity"),
            quantity=name,
            where=claim.get("where", ""),
            printed=claim.get("printed"),
            ours=value.get("ours") or number(claim.get("measured", value.get("value"))),
            interval=_interval(value.get("low"), value.get("high")),
            chance=value.get("chance_text") or number(value.get("chance")),
            status=_status(claim, value.get("chance")),
            budget=number(result.get("budget")),
            seconds=result["seconds"],
            device=result["hardware"]["device"].removeprefix("NVIDIA ").removesuffix(" CPU"),
            seed=result["seed"],
            commit=result["commit"] or "",
        )


def _shown(result: dict[str, Any], claims: list[str], measured: list[str]) -> list[str]:
    """Of an attack the number of records found, and its claims, or the mean of the primary metric in the same row; of
    other experiments their claims, or the first few measures."""
    if result["kind"] == "attack":
        return ["found", *claims] if claims else [f"found; mean {result['scores']['primary']}"]
    return claims or measured[:UNCLAIMED]


def _quantities(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Name, value, interval and level of chance of all that one experiment measured."""
    if result["kind"] == "study":
        yield from result["measures"]
    if result["kind"] == "attack":
        scores, unrelated = result["scores"], result["nulls"]["unrelated"]["metrics"]
        found, text = scores["found"], f"{scores['found']['count']:,} of {scores['records']:,}"
        interval = {key: found[key] for key in ("low", "high")}
        yield {"name": "found", "ours": text, "chance": found["fpr"], **interval}
        for name, metric in scores["metrics"].items():
            mean, level = number(metric["mean"]), unrelated[name]["mean"]
            yield {"name": f"mean {name}", "ours": mean, "chance": level, "low": metric["low"], "high": metric["high"]}
            level_text = f"{found['fpr']}; {number(level)}"
            yield {"name": f"found; mean {name}", "ours": f"{text}; {mean}", "chance_text": level_text, **interval}


def _status(claim: dict[str, Any], chance: float | None) -> str:
    """`beaten`: better than print by more than a tenth; `reproduced`: no worse than print by more than the claim's
    tolerance; `missed`: worse; `smaller`: measured at a smaller scale, not judged; `no claim`: nothing is printed."""
    printed, measured = claim.get("printed"), claim.get("measured")
    if printed is None:
        target = claim.get("reached")
        return "no claim" if target is None else f"no claim; our target {'reached' if target else 'missed'}"
    if claim["holds"] is None:
        return "smaller"
    if not claim["holds"]:
        return "missed"
    higher = chance is not None and chance < printed
    gain = (measured - printed if higher else printed - measured) / abs(printed)
    return "beaten" if chance is not None and gain > 0.1 else "reproduced"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"
