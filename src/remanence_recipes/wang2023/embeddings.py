"""Words from one gradient: where only the last two layers are fully connected, what goes into them is read.

The text is the Zen of Python, which every Python holds. A frozen table gives each word its embedding, and a record is
the embeddings of eight words in a row. The client sends the gradient of the two layers behind the table and nothing of
the table itself, whose gradient would name the words at once: its rows are zero but for those that occur.
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
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import Interval, hungarian
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import apply
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence_recipes.wang2023.setting import OURS, gradient_of

LENGTH, WIDTH, WORDS = (
    8,
    16,
    5000,
)  # of a record in words, of an embedding; words in the table, most of which never occur
CURVES: dict[str, tuple[Stein, Callable[[], nn.Module]]] = {
    "tanh, exact span": (Stein(refine=False, clamp=False), nn.Tanh),
    "tanh, refined": (OURS, nn.Tanh),
    "ReLU, refined": (OURS, nn.ReLU),
}


def embeddings(scale: Scale) -> Sequence[Experiment]:
    """Token embeddings: the input of the last two layers is read, then the nearest words of the vocabulary."""
    about = "Batches of eight words in a row, read from the gradient of the two layers behind a frozen table of words."
    return [
        Experiment(
            label="words in their order", about=about, evaluations=(Measurement(measure=partial(_embeddings, scale)),)
        )
    ]


def _embeddings(scale: Scale, seed: int, device: torch.device) -> Outcome:
    rows, repeats = {"smoke": (1000, 2), "small": (5000, 5), "full": (5000, 20)}[scale]
    sizes, text = (1, 2) if scale == "smoke" else (1, 2, 4, 8), Text.of_python(seed, device)
    found: dict[str, list[Interval]] = {}
    for name, (attack, activation) in track(CURVES.items(), total=len(CURVES), label="curves"):
        shares = [[_share(text, b, attack, activation, rows, seed, i) for i in range(repeats)] for b in sizes]
        found[name] = [bootstrap_mean(torch.tensor(s), seed=derive_seed(seed, "interval", name)) for s in shares]
    chance, commonest, x = text.chance(seed), text.commonest, tuple(map(float, sizes))
    levels = (
        Series(name="nearest to a random vector", x=x, y=(chance,) * len(x), role="chance"),
        Series(name="the commonest word", x=x, y=(commonest,) * len(x), role="chance"),
    )
    meaning = (
        f"of the words of a batch, each in its place; mean over {repeats} batches. Chance is the commonest word "
        f"everywhere; the nearest of {WORDS:,} rows to a random vector is right for {chance:.2%}"
    )
    measures = [
        Measure.from_interval(f"{name}, batches of {b}", share, meaning=meaning, chance=commonest)
        for name, shares in found.items()
        for b, share in zip(sizes, shares, strict=True)
    ]
    lines = tuple(Series.from_intervals(name, x, shares) for name, shares in found.items())
    figure = Figure(title="Words read", x_label="records in the batch", y_label="share", series=(*lines, *levels))
    return Outcome(measures=(*measures, text.named_by_the_table(seed)), figures=(figure,))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    words: Tensor  # the text, as rows of the table
    table: Tensor  # (words, width), frozen; rows of such a length that a record has about norm one

    @classmethod
    def of_python(cls, seed: int, device: torch.device) -> "Text":
        with redirect_stdout(StringIO()):  # it prints itself when first imported
            import this
        said = re.findall(r"[\w']+|[.,!*-]+", codecs.decode(this.s, "rot13").lower())
        rows = {word: row for row, word in enumerate(dict.fromkeys(said))}
        generator = torch.Generator().manual_seed(derive_seed(seed, "table"))
        table = torch.randn(WORDS, WIDTH, generator=generator, dtype=torch.float64) / (LENGTH * WIDTH) ** 0.5
        return cls(words=torch.tensor([rows[word] for word in said]).to(device), table=table.to(device))

    def batch(self, records: int, seed: int) -> Tensor:
        """(records, length): words in a row, from places of the text that begin differently."""
        starts = torch.randperm(len(self.words) - LENGTH, generator=torch.Generator().manual_seed(seed))[:records]
        return torch.stack([self.words[start : start + LENGTH] for start in starts.tolist()])

    def features(self, words: Tensor) -> Tensor:
        return embedding(words, self.table).flatten(1)

    def nearest(self, features: Tensor) -> Tensor:
        return torch.cdist(features.view(-1, LENGTH, WIDTH), self.table).argmin(2)

    @property
    def commonest(self) -> float:
        return float(self.words.bincount().max()) / len(self.words)

    def chance(self, seed: int) -> float:
        """How often the nearest row to a random vector is the right one."""
        generator = torch.Generator().manual_seed(derive_seed(seed, "chance"))
        drawn = torch.randn(200, LENGTH * WIDTH, generator=generator, dtype=torch.float64).to(self.table)
        truth = self.words[torch.randint(len(self.words), (len(drawn), LENGTH), generator=generator)]
        return float((self.nearest(drawn / (LENGTH * WIDTH) ** 0.5) == truth).double().mean())

    def named_by_the_table(self, seed: int) -> Measure:
        """What the attack does without."""
        words = self.batch(4, derive_seed(seed, "table's gradient"))
        labels = torch.arange(len(words), device=words.device) % 2
        release = gradient_of(self.features(words), labels, activation=nn.Tanh, rows=1000, seed=seed)

        def loss(table: Tensor) -> Tensor:
            return release.loss(apply(release.model, release.at, embedding(words, table).flatten(1)), labels)

        shown = grad(loss)(self.table).any(1).nonzero().flatten()
        both = float(torch.isin(shown, words.unique()).sum())
        meaning = (
            "if the table were trained too: the share of the batch's different words among the rows of its gradient "
            "that are not zero, and of these rows among the words; without their order. The attack is not given it"
        )
        different = len(words.unique())
        return Measure(
            name="words that the table's own gradient names",
            value=both / max(len(shown), different),
            chance=different / len(self.table),
            meaning=f"{meaning}; chance: as many rows that are drawn",
        )


def _share(
    text: Text, records: int, attack: Stein, activation: Callable[[], nn.Module], rows: int, seed: int, draw: int
) -> float:
    own = derive_seed(seed, "batch", records, draw)
    words = text.batch(records, own)
    x, labels = text.features(words), torch.arange(records, device=words.device) % 2
    found = attack.run(gradient_of(x, labels, activation=activation, rows=rows, seed=own), seed=own).x
    read = text.nearest(found[hungarian(found, x)])
    return float((read == words).double().mean())
