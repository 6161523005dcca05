"""What a result says, in sentences that a reader without the field's words can repeat."""

from collections.abc import Sequence

from remanence.experiments.outcome import Measure
from remanence.experiments.results import AttackSummary, ClaimCheck, Closer, Counted, Result
from remanence.experiments.words import DASH, PERCENT, between, by_chance, number, percent, score
from remanence.metrics import Interval
from remanence.metrics.limit import ASSUMPTIONS

MAX_MEASURES = 4  # in one sentence
POOLED = 0.01  # the false-positive rate by which results without a rank test count records as found


def verdict(result: Result) -> str:
    """What was found or measured, in one sentence."""
    if result.refusal is not None:
        return f"Refused: {result.refusal}"
    return _found(result.attack) if result.attack else result.verdict or _measured(result.measures)


def _found(attack: AttackSummary) -> str:
    found, test = attack.scores.found, attack.scores.test
    of_subjects = test is not None and test.subjects is not None
    total = number(test.subjects if test is not None and of_subjects else attack.scores.records)
    if not found.count:
        return f"No record was found at this budget (0 of {total}, {_reach(found.fraction)})."
    were, noun = "was" if found.count == 1 else "were", "subjects" if of_subjects else "records"
    if test is None:
        chance = f"where chance finds {percent(POOLED)}"
    else:
        chance = f"of which {by_chance(test.false)}; p {number(test.p)} for all together"
    return f"{number(found.count)} of {total} {noun} {were} found ({_fraction(found)}), {chance}."


def _measured(measures: Sequence[Measure]) -> str:
    parts = []
    for measure in _largest_leak_first(measures)[:MAX_MEASURES]:
        if measure.value is None:
            parts.append(f"{measure.name}: cannot be said")
            continue
        context = []
        if reach := between(measure.low, measure.high):
            context.append(f"95{PERCENT} interval {reach}")
        if measure.chance is not None:
            context.append(f"chance {score(measure.chance)}")
        parts.append(f"{measure.name} {score(measure.value)}" + (f" ({', '.join(context)})" if context else ""))
    if more := len(measures) - len(parts):
        parts.append(f"and {more} more")
    return "; ".join(parts) + "." if parts else "Nothing was measured; see the figures."


def _largest_leak_first(measures: Sequence[Measure]) -> list[Measure]:
    """The largest fraction found, then the others in their order: it must not be hidden in "and so many more"."""
    fractions = [each for each in measures if each.name.startswith("share found") and each.value is not None]
    largest = max(fractions, key=lambda each: each.value or 0.0, default=None)
    return sorted(measures, key=lambda each: each is not largest)


def notes(attack: AttackSummary) -> list[str]:
    """What else the scores of an attack say, where the result has it."""
    scores, sentences = attack.scores, []
    if ranks := scores.identification:
        sentences.append(
            f"Ranked among {number(ranks.held_out)} held-out records by likeness to its reconstruction, a record comes "
            f"first for {percent(ranks.top1.value)} of the records (by chance {percent(ranks.chance_top1)}), and among "
            f"the first five for {percent(ranks.top5.value)} ({percent(ranks.chance_top5)})."
        )
    if (test := scores.test) and test.by:
        by = ", ".join(f"{name} ({number(count)})" for name, count in test.by.items())
        sentences.append(f"The records that were found are recognised by {by}; exact copies: {number(test.copies)}.")
    if closer := scores.closer:
        chance = "" if closer.chance is None else f"; of held-out records {percent(closer.chance)} are"
        sentences.append(
            f"{number(closer.count)} of {number(scores.records)} records ({_fraction(closer)}) came back closer "
            f"({scores.primary}) than their nearest neighbour among the records that the attacker could own{chance}."
        )
    if labels := scores.labels:
        sentences.append(
            f"The label was right for {percent(labels.accuracy.value)} of the records ({_reach(labels.accuracy)}); "
            f"always naming the commonest one is right for {percent(labels.chance)}."
        )
    if scores.objective is not None:
        sentences.append(
            f"The attack ended with its own objective at {score(scores.objective)}. Lower is better, and it is all "
            "that an attacker sees."
        )
    return sentences


def _fraction(counted: Counted | Closer) -> str:
    return f"{percent(counted.fraction.value)}, {_reach(counted.fraction)}"


def _reach(interval: Interval) -> str:
    return f"95{PERCENT} interval {percent(interval.low).removesuffix(PERCENT)}{DASH}{percent(interval.high)}"


def limit_sentence(attack: AttackSummary) -> str:
    """What differential privacy allows, and what was measured."""
    if (limit := attack.limit) is None:
        return ""
    mu = f"mu {number(limit.mu)}" if limit.mu is not None else "Poisson samples"
    privacy = f"epsilon {number(limit.epsilon)} at delta {number(limit.delta)}, {mu}"
    return (
        f"The training was differentially private ({privacy}). A guess without the release comes within "
        f"{limit.metric} {number(limit.threshold)} of a record at most {percent(limit.prior)} of the time; "
        f"so no attack on it can do so more than {percent(limit.bound)} of the time. {ASSUMPTIONS} "
        f"This one did so for {percent(limit.success.value)} of the records ({_reach(limit.success)})."
    )


def limit_flag(attack: AttackSummary) -> str:
    """A warning where the measured success is above what the theory allows."""
    limit = attack.limit
    if limit is None or limit.success.value <= limit.bound:
        return ""
    if limit.success.low <= limit.bound:
        return "Above the limit, though no further than chance explains: the interval reaches below it."
    return (
        "Above the limit, and chance does not explain it: there is a bug in the training, the accounting or the count."
    )


def budget_sentence(result: Result) -> str:
    """What the experiment spends of each resource, as a fraction of the paper's."""
    if result.budget is None or not (spent := result.budget.spent()):
        return ""
    parts = (
        f"{number(ours)} {name} of {number(paper)} ({percent(ours / paper)})" for name, (ours, paper) in spent.items()
    )
    return f"Budget, next to the paper's: {'; '.join(parts)}."


def claim_status(claim: ClaimCheck) -> str:
    """How a measured number stands to the printed one and to our own target."""
    if claim.measured is None:
        return "not measured"
    words = []
    if claim.printed is not None:
        words.append({True: "holds", False: "does not hold", None: "other scale"}[claim.holds])
    if claim.target is not None:
        words.append({True: "target reached", False: "target missed", None: "other scale"}[claim.reached])
    return ", ".join(dict.fromkeys(words))
