"""What data protection authorities ask to be documented about tests of a model, answered from an audit.

EDPB Opinion 28/2024 (17 December 2024) names as what a supervisory authority looks at: structured tests against the
state of the art of attacks (membership, reconstruction, ...), how, when and to what extent they were run, the threat
model, the size of the model beside its data, the likelihood of success. CNIL (22 July 2025) asks providers to test
whether training data can be got out by means reasonably likely to be used, and to write the analysis down. The
questions are in our words; the answers are no legal assessment.
"""

from dataclasses import dataclass
from typing import Final, final

from remanence.auditing.answer.report import Answer
from remanence.auditing.answer.threats import TEXT, threats_asked, threats_not_asked
from remanence.auditing.answer.words import attack_words, count, evidence_words, interval_words, ranked
from remanence.experiments.words import number


@final
@dataclass(frozen=True, kw_only=True)
class Reference:
    """Where an attack was published."""

    text: str
    year: int


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """One thing to be documented, and what this audit says about it."""

    question: str
    answer: str


REFERENCES: Final[dict[str, Reference]] = {
    "FirstLayer": Reference(
        text="Phong et al. 2018; Geiping et al., NeurIPS 2020; Boenisch et al., EuroS&P 2023", year=2023
    ),
    "DAGER": Reference(text="Petrov et al., NeurIPS 2024, with pursuit and an order of our own", year=2024),
    "SPEAR": Reference(text="Dimitrov et al., NeurIPS 2024", year=2024),
    "RGAP": Reference(text="Zhu, Blaschko, ICLR 2021", year=2021),
    "Stein": Reference(text="Wang, Lee, Lei, AISTATS 2023, with an exact span of our own", year=2023),
    "GradientMatching": Reference(text="Zhu et al., NeurIPS 2019; Geiping et al., NeurIPS 2020", year=2020),
    "Differencing": Reference(text="Denning, Denning, Schwartz, ACM TODS 1979, on a scaler's mean", year=1979),
    "GLM": Reference(text="Balle, Cherubin, Hayes, IEEE S&P 2022, convex models", year=2022),
    "NewtonStep": Reference(text="Bertran et al., NeurIPS 2024", year=2024),
    "RecoNN": Reference(text="Balle, Cherubin, Hayes, IEEE S&P 2022", year=2022),
    "TrainingInversion": Reference(
        text="the adversary of Balle, Cherubin, Hayes, IEEE S&P 2022, by simulation after Tian et al., ICLR 2025",
        year=2025,
    ),
    "Mnemonist": Reference(text="Shahin Shamsabadi et al., UAI 2023", year=2023),
    "KKT": Reference(text="Haim et al., NeurIPS 2022; Buzaglo et al., NeurIPS 2023", year=2023),
    "Stationarity": Reference(text="after Buzaglo et al., NeurIPS 2023, with multipliers of our own", year=2023),
    "ConvStationarity": Reference(text="after Buzaglo et al., NeurIPS 2023, through known convolutions", year=2023),
    "Linearised": Reference(text="Loo et al. 2023; Buzaglo et al., NeurIPS 2023", year=2023),
    "SimuDy": Reference(text="Tian et al., ICLR 2025", year=2025),
}


def questions(answer: Answer) -> tuple[Question, ...]:
    """The questions with what the audit answers to each."""
    answered = {
        "What was tested, by whom, when and how?": _what(answer),
        "Which means was the attacker assumed to have?": _means(answer),
        "Which attacks were run, and at which state of the art?": _attacks(answer),
        "With which likelihood do they succeed?": _likelihood(answer),
        "How large is the model beside its data?": _size(answer),
        "What was not tested?": _not_tested(answer),
        "What follows, and what does not?": _follows(answer),
    }
    return tuple(Question(question=question, answer=text) for question, text in answered.items())


def _what(answer: Answer) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
    return (
        f"A release of the kind {answer.release.kind} ({answer.release.model}), SHA-256 {answer.digests.model[:16]}…, "
        f"on {answer.date[:10]}, by its owner, with {versions}, seed {answer.seed}; "
        f"{count(answer.records, 'private record')} beside {answer.held_out:,} held out; {answer.seconds:,.0f} of "
        f"{answer.budget:,.0f} seconds of the budget were used."
    )


def _means(answer: Answer) -> str:
    shown = ", ".join(answer.release.shows)
    asked = "; ".join(threats_asked(answer.release.kind)) or "none of those known to this tool"
    return f"Threat model: {asked}. The attacker sees {shown}; withheld: {answer.release.withholds}."


def _attacks(answer: Answer) -> str:
    ran = ranked(answer.attacks)
    if not ran:
        return "No reconstruction attack ran on this release."
    named = "; ".join(f"{row.name} ({_reference(row.name)})" for row in ran)
    evidence = sorted({row.group for row in answer.evidence})
    also = f" Beside them: {', '.join(evidence)}." if evidence else ""
    newest = max((REFERENCES[row.name].year for row in ran if row.name in REFERENCES), default=None)
    state = f" The newest was published in {newest}; later attacks are not covered." if newest else ""
    return f"{count(len(ran), 'reconstruction attack')}: {named}.{also}{state}"


def _reference(name: str) -> str:
    published = name.partition(" (")[0]  # on a stand-in the name says which
    return REFERENCES[published].text if published in REFERENCES else "not published"


def _likelihood(answer: Answer) -> str:
    found = [f"{row.name}: {attack_words(row)}, 95 % interval {interval_words(row)}" for row in ranked(answer.attacks)]
    measured = [evidence_words(row) for row in answer.evidence if row.group != "other"]
    said = "; ".join([*found, *measured]) or "Nothing was measured: inconclusive"
    return f"{said}. {answer.correction}"


def _size(answer: Answer) -> str:
    ratio = answer.release.parameters / max(1, answer.records)
    return (
        f"{answer.release.parameters:,} parameters and {count(answer.records, 'private record')}: {number(ratio)} "
        "parameters for each record."
    )


def _not_tested(answer: Answer) -> str:
    left = [row.name for row in answer.attacks if row.status != "ran"]
    attacks = f"Attacks that did not run, each with its reason in the table: {', '.join(left)}." if left else ""
    threats = "; ".join(threats_not_asked(answer.release.kind))
    outside = "" if answer.release.kind == TEXT else "Text and language models were not tested."
    return f"{attacks} Threat models not asked about: {threats}. {outside}".strip()


def _follows(answer: Answer) -> str:
    return (
        f"{answer.verdict} What was found is a lower bound: another attack, a longer search or more knowledge can find "
        "more. Whether the remaining likelihood is insignificant, all means reasonably likely considered, is for the "
        "controller to decide and to write down; this audit does not decide it."
    )
