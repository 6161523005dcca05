"""Words from one gradient: where the last two layers are fully connected, Stein reconstructs their input.

The text is the Zen of Python, which every Python holds. A frozen table gives each word its embedding, and a record is
the embeddings of eight consecutive words. The client sends the gradient of the two layers after the table and nothing
of the table itself, whose gradient would name the words at once: its rows are zero but for those that occur.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import embedding

from remanence.attacks import Stein
from remanence.experiments import Experiment, Measure, Outcome, Scale
from remanence.metrics import Interval, hungarian
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import apply
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence_recipes.curves import figure_along, measured, measures_along
from remanence_recipes.wang2023.setting import OURS, gradient_of

LENGTH = 8  # words of a record
WIDTH = 16  # of an embedding
VOCABULARY = 5000  # rows of the table, of which only those of the text occur
CURVES: dict[str, tuple[Stein, Callable[[], nn.Module]]] = {
    "tanh, exact span": (Stein(refine=False, clamp=False), nn.Tanh),
    "tanh, refined": (OURS, nn.Tanh),
    "ReLU, refined": (OURS, nn.ReLU),
}


def stein_embeddings(scale: Scale) -> Sequence[Experiment]:
    """Token embeddings: Stein reconstructs the input of the last two layers, then the nearest words are taken."""
    about = "Batches of eight consecutive words, from the gradient of the two layers after a frozen embedding table."
    return [measured("words in their order", about, partial(_embeddings, scale))]


def _embeddings(scale: Scale, seed: int, device: torch.device) -> Outcome:
    rows, repeats = {"smoke": (1000, 2), "small": (5000, 5), "full": (5000, 20)}[scale]
    sizes, text = (1, 2) if scale == "smoke" else (1, 2, 4, 8), Text.from_python(seed, device)

    def accuracy(name: str, size: int) -> Interval:
        found = torch.tensor([_accuracy(text, size, *CURVES[name], rows, seed, i) for i in range(repeats)])
        return bootstrap_mean(found, seed=derive_seed(seed, "interval", name))

    found = {name: [accuracy(name, b) for b in sizes] for name in track(CURVES, total=len(CURVES), label="curves")}
    nearest, commonest = text.chance(seed), text.commonest
    levels = {"nearest to a random vector": [nearest] * len(sizes), "the commonest word": [commonest] * len(sizes)}
    meaning = (
        f"of the words of a batch, each at its position; mean over {repeats} batches. Chance is the commonest word "
        f"everywhere; the nearest of {VOCABULARY:,} rows to a random vector is right for {nearest:.2%}"
    )
    measures = measures_along(
        found, [f"batches of {b}" for b in sizes], meaning=meaning, chance=levels["the commonest word"]
    )
    figure = figure_along("Words read", ("records in the batch", "fraction"), found, sizes, levels)
    return Outcome(measures=(*measures, _named_by_table(text, seed)), figures=(figure,))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """A text as rows of an embedding table, shape (words,), and the table, shape (vocabulary, width).

    Embeddings are scaled so that a record has about norm one.
    """

    words: Tensor
    table: Tensor

    @classmethod
    def from_python(cls, seed: int, device: torch.device) -> "Text":
        """The Zen of Python, with a random table."""
        with redirect_stdout(StringIO()):  # it prints itself when first imported
            import this
        tokens = re.findall(r"[\w']+|[.,!*-]+", codecs.decode(this.s, "rot13").lower())
        rows = {word: row for row, word in enumerate(dict.fromkeys(tokens))}
        generator = torch.Generator().manual_seed(derive_seed(seed, "table"))
        table = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64) / (LENGTH * WIDTH) ** 0.5
        return cls(words=torch.tensor([rows[word] for word in tokens]).to(device), table=table.to(device))

    def batch(self, records: int, seed: int) -> Tensor:
        """Consecutive words from different positions of the text, shape (records, length)."""
        starts = torch.randperm(len(self.words) - LENGTH, generator=torch.Generator().manual_seed(seed))[:records]
        return torch.stack([self.words[start : start + LENGTH] for start in starts.tolist()])

    def features(self, words: Tensor) -> Tensor:
        """The embeddings of each record in a row, shape (records, length * width)."""
        return embedding(words, self.table).flatten(1)

    def nearest(self, features: Tensor) -> Tensor:
        """The words whose embeddings are nearest, shape (records, length)."""
        return torch.cdist(features.view(-1, LENGTH, WIDTH), self.table).argmin(2)

    @property
    def commonest(self) -> float:
        """The frequency of the commonest word."""
        return float(self.words.bincount().max()) / len(self.words)

    def chance(self, seed: int) -> float:
        """How often the nearest row to a random vector is the right one."""
        generator = torch.Generator().manual_seed(derive_seed(seed, "chance"))
        x = torch.randn(200, LENGTH * WIDTH, generator=generator, dtype=torch.float64).to(self.table)
        truth = self.words[torch.randint(len(self.words), (len(x), LENGTH), generator=generator)]
        return float((self.nearest(x / (LENGTH * WIDTH) ** 0.5) == truth).double().mean())


def _accuracy(
    text: Text, records: int, attack: Stein, activation: Callable[[], nn.Module], rows: int, seed: int, draw: int
) -> float:
    """The fraction of a batch's words that are reconstructed, each at its position."""
    draw_seed = derive_seed(seed, "batch", records, draw)
    words = text.batch(records, draw_seed)
    x, labels = text.features(words), torch.arange(records, device=words.device) % 2
    release = gradient_of(x, labels, activation=activation, rows=rows, seed=draw_seed)
    found = attack.run(release, seed=draw_seed).x
    return float((text.nearest(found[hungarian(found, x)]) == words).double().mean())


def _named_by_table(text: Text, seed: int) -> Measure:
    """The words that the gradient of a trained table would name without any attack."""
    words = text.batch(4, derive_seed(seed, "table's gradient"))
    labels = torch.arange(len(words), device=words.device) % 2
    release = gradient_of(text.features(words), labels, activation=nn.Tanh, rows=1000, seed=seed)

    def loss(table: Tensor) -> Tensor:
        return release.loss(apply(release.model, release.at, embedding(words, table).flatten(1)), labels)

    nonzero, distinct = grad(loss)(text.table).any(1).nonzero().flatten(), words.unique()
    return Measure(
        name="words that the table's own gradient names",
        value=float(torch.isin(nonzero, distinct).sum()) / max(len(nonzero), len(distinct)),
        chance=len(distinct) / len(text.table),
        meaning=(
            "if the table were trained too: the overlap of the batch's words with the rows of its gradient that are "
            "not zero, without their order. The attack is not given it; chance: as many random rows"
        ),
    )
