"""Text as token records, and a corpus that every Python brings: its reference and the docstrings of its library."""

import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput

SPECIAL = ("<pad>", "<end>", "<unk>")  # the first tokens of a vocabulary, by id
_TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[^\sa-z\d]")
_RULE = re.compile(r"(\W)\1{2,}")  # underlines of headings, ellipses
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """Sequences of token ids (n, length), padded with zeros at their end, with labels `y` (n,)."""

    ids: Tensor
    y: Tensor
    vocabulary: tuple[str, ...]  # the token of each id; it begins with SPECIAL
    num_classes: int
    name: str = "text"

    def __post_init__(self) -> None:
        if self.ids.dtype != torch.int64 or self.y.dtype != torch.int64:
            message = f"`ids` and `y` of {self.name} must be int64, got {self.ids.dtype} and {self.y.dtype}"
            raise BadInput(message, code="wrong-type", argument="ids")
        if self.ids.ndim != 2 or self.y.shape != self.ids.shape[:1]:
            shapes = f"{tuple(self.ids.shape)} and {tuple(self.y.shape)}"
            message = f"`ids` of {self.name} must be (n, length) and `y` (n,), got {shapes}"
            raise BadInput(message, code="shape-mismatch", argument="ids")
        if self.ids.numel() and not 0 <= int(self.ids.min()) <= int(self.ids.max()) < len(self.vocabulary):
            message = f"`ids` of {self.name} must lie in 0..{len(self.vocabulary) - 1}, the ids of its vocabulary"
            raise BadInput(message, code="out-of-range", argument="ids")

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Tensor | slice | list[int]) -> "Tokens":
        """The sequences at `index` with their labels."""
        return replace(self, ids=self.ids[index], y=self.y[index])

    def to(self, device: torch.device | str) -> "Tokens":
        """The same sequences on `device`."""
        return replace(self, ids=self.ids.to(device), y=self.y.to(device))

    def texts(self) -> list[str]:
        """The sequences as words with blanks between them, without padding."""
        return decode(self.ids, self.vocabulary)


def decode(ids: Tensor, vocabulary: Sequence[str]) -> list[str]:
    """Token ids (n, length) as words with blanks between them, without padding."""
    return [" ".join(vocabulary[i] for i in row if i) for row in ids.tolist()]


def tokenize(text: str) -> list[str]:
    """Lower-case words, numbers and single signs."""
    return _TOKEN.findall(text.lower())


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TextSplit:
    """Sentences that have none in common: a client's, the attacker's own, and ones that nobody trained on."""

    private: Tokens
    public: Tokens
    test: Tokens


def python_docs(*, length: int, private: int, seed: int, min_length: int | None = None) -> TextSplit:
    """The distinct first `length` tokens of sentences of Python's reference (label 0) and of the docstrings of its
    standard library (label 1), in an order of `seed`: `private` ones, then halves of the others. PSF licence.

    Sentences of fewer than `min_length` tokens (`length` unless given) are left out; the vocabulary is that of the
    whole corpus, nearly 8,000 words and signs, and goes with the version of Python.
    """
    sentences, vocabulary = _corpus()
    number = {word: i for i, word in enumerate(vocabulary)}
    shortest = length if min_length is None else min_length
    rows: dict[tuple[int, ...], int] = {}
    for words, label in sentences:
        if len(words) >= shortest:
            row = [number[word] for word in words[:length]]
            rows.setdefault((*row, *[0] * (length - len(row))), label)
    if not 1 <= private <= len(rows) - 2:
        message = f"`private` must lie in 1..{len(rows) - 2}, the sentences of {shortest} tokens or more, got {private}"
        raise BadInput(message, code="out-of-range", argument="private")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    ids, y = torch.tensor(list(rows)), torch.tensor(list(rows.values()))
    data = Tokens(ids=ids, y=y, vocabulary=vocabulary, num_classes=2, name="python_docs")
    half = private + (len(rows) - private) // 2
    parts = (data.take(order[a:b]) for a, b in ((0, private), (private, half), (half, len(rows))))
    return TextSplit(**dict(zip(("private", "public", "test"), parts, strict=True)))


@cache
def _corpus() -> tuple[list[tuple[list[str], int]], tuple[str, ...]]:
    """Every sentence as words with its label, and the vocabulary, frequent words first."""
    from pydoc_data.topics import topics

    texts = [(text, 0) for _, text in sorted(topics.items())] + [(text, 1) for text in _docstrings()]
    sentences = [(words, label) for text, label in texts for each in _sentences(text) if (words := tokenize(each))]
    counts = Counter(word for words, _ in sentences for word in words)
    return sentences, (*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word)))


def _docstrings() -> Iterator[str]:
    """The docstrings of the top modules of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield text


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        yield from _SENTENCE.split(" ".join(_RULE.sub(" ", paragraph).split()))
