"""The sentences of a client and what an attack on text returned, for the page and `sentences.json`: personal data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, final

from torch import Tensor

from remanence.auditing.answer.report import AttackRow, Evidence, Severity
from remanence.auditing.answer.severity import SIGN, undecided_sentence
from remanence.auditing.answer.undecided import LEVEL
from remanence.auditing.answer.words import count
from remanence.disk import read_text
from remanence.errors import BadInput
from remanence.experiments.codec import MAX_BYTES, decode, encode, parse_json
from remanence.experiments.words import by_chance, number
from remanence.metrics.leakage import LeakTest
from remanence.metrics.tokens import TokenScores
from remanence.models.transformer import PADDING
from remanence.types import TokenReconstruction

Mark: TypeAlias = Literal["position", "batch", "missed"]
MAX_SENTENCES = 64  # that are stored and shown


@final
@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A private sequence: each token, and whether it came back at its position, somewhere in the batch, or not; with
    the returned sequence that agrees with it best."""

    tokens: tuple[str, ...]
    marks: tuple[Mark, ...]
    reconstruction: tuple[str, ...]
    found: bool
    exact: bool
    p: float


@final
@dataclass(frozen=True, kw_only=True)
class Sentences:
    """What `sentences.json` holds."""

    sentences: tuple[Sentence, ...]


def sentences_of(
    ids: Tensor, found: TokenReconstruction, test: LeakTest, vocabulary: Sequence[str]
) -> tuple[Sentence, ...]:
    """The private sequences (n, length), those that were found first, the surest of them first."""
    returned, rows = set(found.tokens.tolist()), found.ids.tolist()
    made = list[Sentence]()
    for i, row in enumerate(ids.tolist()):
        nearest = rows[int(test.candidate[i])] if int(test.candidate[i]) >= 0 else [PADDING] * len(row)
        marks = tuple(_mark(token, at, returned) for token, at in zip(row, nearest, strict=True) if token != PADDING)
        made.append(
            Sentence(
                tokens=_words(row, vocabulary),
                marks=marks,
                reconstruction=_words(nearest, vocabulary),
                found=bool(test.found[i]),
                exact=bool(test.copies[i]),
                p=float(test.p[i]),
            )
        )
    return tuple(sorted(made, key=lambda each: (not each.exact, not each.found, each.p))[:MAX_SENTENCES])


def _mark(token: int, nearest: int, returned: set[int]) -> Mark:
    return "position" if token == nearest else "batch" if token in returned else "missed"


def _words(row: Sequence[int], vocabulary: Sequence[str]) -> tuple[str, ...]:
    return tuple(vocabulary[token] for token in row if token != PADDING)


def dump_sentences(sentences: tuple[Sentence, ...]) -> str:
    """The text of `sentences.json`."""
    return json.dumps(encode(Sentences(sentences=sentences)), indent=1, allow_nan=False) + "\n"


def load_sentences(path: Path) -> tuple[Sentence, ...]:
    """What `dump_sentences` made; nothing where there is no such file."""
    if not path.exists():
        return ()
    try:
        stored = decode(Sentences, parse_json(read_text(path, max_bytes=MAX_BYTES)))
    except (BadInput, ValueError) as error:
        message = f"`{path}` is damaged ({error}): make the audit again"
        raise BadInput(message, code="damaged-file", argument="folder") from None
    if any(len(each.tokens) != len(each.marks) for each in stored.sentences) or len(stored.sentences) > MAX_SENTENCES:
        message = (
            f"`{path}` must have a mark for each token, and at most {MAX_SENTENCES} sentences: make the audit again"
        )
        raise BadInput(message, code="damaged-file", argument="folder")
    return stored.sentences


def text_verdict(
    row: AttackRow, scores: TokenScores | None, recall: Evidence | None, step: Severity, why: str = ""
) -> str:
    """The answer of an audit of text in a sentence or two, from the attack and the best reading of tokens; `why` is
    what leaves undecided whether sentences come back."""
    ran = row.status == "ran"
    undecided = undecided_sentence(why, step, ran=ran, noun="sentences") if why else ""
    if scores is None or recall is None:
        return undecided
    tokens = (
        f"{scores.right_tokens:,} of {count(scores.tokens, 'token')} of the batch "
        f"(a guess by frequency has {scores.guessed_tokens:,})"
    )
    if step in ("some-records", "many-records"):
        were = "was" if row.found == 1 else "were"
        return (
            f"{row.found} of {count(row.records or 0, 'sentence')} {were} reconstructed by {row.name}, {row.exact} "
            f"token for token ({by_chance(row.chance)}, p {number(row.p)}), and {tokens}."
        )
    said = f"No sentence was reconstructed beyond chance by {row.name}" if ran else f"{row.name} did not run"
    if step == "membership" and why and ran:
        said = undecided.removesuffix(".")
    if step == "membership" and (recall.p or 0.0) <= LEVEL:
        return f"{said}; the update shows {tokens}."
    if step == "membership":
        nearer = "what it returned is nearer to private than to held-out sentences, all together"
        return f"{said}; {nearer} (p {number(row.p)})."
    by_guess = (recall.p or 0.0) > SIGN
    explained = "which chance explains" if by_guess else f"p {number(recall.p)}, not at the level of this audit"
    return f"{undecided} {said}, and {tokens} were read, {explained}; a stronger attack may find more.".strip()
