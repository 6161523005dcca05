"""What a record says, in sentences that a reader without the field's words can repeat."""

from remanence.experiments.results import Record
from remanence.experiments.results.schema import MeasureRecord
from remanence.report.words import DASH, PERCENT, between, number, percent, score

MOST_MEASURES = 4  # in one sentence


def verdict(record: Record) -> str:
    """What was found or measured, in one sentence."""
    if record["kind"] == "refused":
        return f"Refused: {record['refusal']}"
    if record["kind"] == "attack":
        return _found(record)
    return record.get("verdict") or _measured(record)


def _found(record: Record) -> str:
    found, total = record["scores"]["found"], number(record["scores"]["records"])
    if not found["count"]:
        return f"No record was found at this budget (0 of {total}, {_reach(found)})."
    were = "was" if found["count"] == 1 else "were"
    return (
        f"{number(found['count'])} of {total} records {were} found ({_share(found)}) "
        f"where chance finds {percent(found['fpr'])}."
    )


def _measured(record: Record) -> str:
    told = []
    for measure in _largest_leak_first(record["measures"])[:MOST_MEASURES]:
        if measure["value"] is None:
            told.append(f"{measure['name']}: cannot be said")
            continue
        beside = []
        if reach := between(measure["low"], measure["high"]):
            beside.append(f"95{PERCENT} interval {reach}")
        if measure["chance"] is not None:
            beside.append(f"chance {score(measure['chance'])}")
        told.append(f"{measure['name']} {score(measure['value'])}" + (f" ({', '.join(beside)})" if beside else ""))
    if more := len(record["measures"]) - len(told):
        told.append(f"and {more} more")
    return "; ".join(told) + "." if told else "Nothing was measured; see the figures."


def _largest_leak_first(measures: list[MeasureRecord]) -> list[MeasureRecord]:
    """The others in their order: what was found must not be behind "and so many more"."""
    shares = [each for each in measures if each["name"].startswith("share found") and each["value"] is not None]
    largest = max(shares, key=lambda each: each["value"] or 0.0, default=None)
    return sorted(measures, key=lambda each: each is not largest)


def notes(record: Record) -> list[str]:
    """What else the scores of an attack say, where the record has it."""
    scores, told = record["scores"], []
    if closer := scores["closer"]:
        told.append(
            f"{number(closer['count'])} of {number(scores['records'])} records ({_share(closer)}) came back closer "
            f"({scores['primary']}) than their nearest neighbour among the records that the attacker could own."
        )
    if labels := scores["labels"]:
        told.append(
            f"The label was right for {percent(labels['share'])} of the records ({_reach(labels)}); always naming the "
            f"commonest one is right for {percent(labels['chance'])}."
        )
    if scores["objective"] is not None:
        told.append(
            f"The attack ended with its own objective at {score(scores['objective'])}. Lower is better, and it is all "
            "that an attacker sees."
        )
    return told


def _share(said: dict[str, float]) -> str:
    return f"{percent(said['share'])}, {_reach(said)}"


def _reach(said: dict[str, float]) -> str:
    return f"95{PERCENT} interval {percent(said['low']).removesuffix(PERCENT)}{DASH}{percent(said['high'])}"


def limit_sentence(record: Record) -> str:
    """What differential privacy allows, beside what was measured."""
    if (limit := record["limit"]) is None:
        return ""
    privacy = f"epsilon {number(limit['epsilon'])} at delta {number(limit['delta'])}, mu {number(limit['mu'])}"
    return (
        f"The training was differentially private ({privacy}). A guess without the release comes within "
        f"{limit['metric']} {number(limit['threshold'])} of a record at most {percent(limit['prior'])} of the time; "
        f"so no attack on it can do so more than {percent(limit['bound'])} of the time. "
        f"This one did so for {percent(limit['success']['value'])} of the records ({_reach(limit['success'])})."
    )


def limit_flag(record: Record) -> str:
    """A warning where the measured success is above what the theory allows."""
    limit = record["limit"]
    if limit is None or limit["success"]["value"] <= limit["bound"]:
        return ""
    if limit["success"]["low"] <= limit["bound"]:
        return "Above the limit, though no further than chance explains: the interval reaches below it."
    return (
        "Above the limit, and chance does not explain it: there is a bug in the training, the accounting or the count."
    )


def judged(claim: dict[str, object]) -> str:
    """How a measured number stands to the printed one and to our own bar."""
    if claim["measured"] is None:
        return "not measured"
    words = []
    if claim["printed"] is not None:
        words.append({True: "holds", False: "does not hold"}.get(claim["holds"], "other scale"))  # type: ignore[call-overload]
    if claim["target"] is not None:
        words.append({True: "target reached", False: "target missed"}.get(claim["reached"], "other scale"))  # type: ignore[call-overload]
    return ", ".join(dict.fromkeys(words))
