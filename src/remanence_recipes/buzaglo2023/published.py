"""KKT as published, at the published length: the authors' victims, their runs, and runs sampled from their ranges.

Victims are trained by plain gradient descent for 1,000,000 epochs in float64, from a first layer of standard deviation
1e-4 and without weight decay. Every run searches for 50,000 iterations: the authors end those after 5,000 that are far
from the true images, which no attacker could. On a CUDA device products of the search are in TF32. With `--store`
training and search resume after an interruption, and the scores of all runs stay in the folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from remanence.attacks import KKT, KKTRun, with_search
from remanence.attacks.weights.kkt import ExplainedWeights, Multipliers
from remanence.caching import read_tensors, words, write_tensors
from remanence.engine.span import SpanTraining
from remanence.experiments import Budget, Claim, Experiment, Scale, Trial
from remanence.experiments.outcome import Outcome
from remanence.models import centred_mlp
from remanence.progress import track
from remanence.releases import Victim, weights_only
from remanence.releases.loading import save_weights
from remanence.search import checkpoint_path, minimise
from remanence.seeds import derive_seed
from remanence.training import SGD, CrossEntropy, Logistic, Training
from remanence.types import Data, Params
from remanence_recipes.buzaglo2023.published_scores import ABOVE, Attacked, measured, score_rows, score_runs
from remanence_recipes.weights_alone.evaluation import ACCURACY
from remanence_recipes.weights_alone.target import BINARY, FULL, HIDDEN, Target, sampled_runs

TEN, TWO, DIGITS = "ten classes", "two groups", "odd and even digits"
LR: Mapping[str, float] = {TEN: 0.5, TWO: 0.01, DIGITS: 0.01}
ACCURACIES: Mapping[str, float] = {TWO: 0.77, TEN: 0.32}  # that are printed
SQUARED = f"{TWO}, a² + minimum"  # the learning rate of the multipliers of ten classes diverges with it
MULTICLASS = (  # the first from the authors' sweep: the file that is called its run holds a binary one
    KKTRun(lr=2.41981e-4, multiplier_lr=0.951276, min_multiplier=0.0401179, alpha=326.466, init_std=3.60519e-4),
    KKTRun(),
)
SAVE_EVERY = 50_000  # epochs


@final
@dataclass(frozen=True, kw_only=True)
class Length:
    """How long victims are trained and attacked; the sampled runs are of the first victim alone."""

    records: int
    epochs: int
    iterations: int
    sampled: int
    victims: int


LENGTHS: Mapping[Scale, Length] = {
    "smoke": Length(records=20, epochs=1000, iterations=100, sampled=3, victims=2),
    "small": Length(records=50, epochs=20_000, iterations=1000, sampled=4, victims=2),
    "full": Length(records=500, epochs=1_000_000, iterations=50_000, sampled=30, victims=3),
}


def published(scale: Scale) -> Sequence[Experiment]:
    """KKT at its own length: 1,000,000 epochs, 50,000 iterations, the published runs and sampled ones."""
    length = LENGTHS[scale]
    return [
        *(
            _experiment(
                Published(scale=scale, kind=kind, victim=victim, sampled=0 if victim else length.sampled),
                label=f"{kind}, victim {victim + 1}" if victim else kind,
            )
            for victim in range(length.victims)
            for kind in (TWO, TEN)
        ),
        _experiment(Published(scale=scale, kind=DIGITS), label=DIGITS),
        _experiment(Published(scale=scale, kind=TWO, multipliers="squared"), label=SQUARED),
    ]


def _experiment(published: "Published", *, label: str) -> Experiment:
    length, kind, sampled = LENGTHS[published.scale], published.kind, published.sampled
    runs = f"the two published runs and {sampled} sampled ones" if sampled else "the two published runs"
    claims = [
        Claim(quantity=ACCURACY, higher_is_better=True, printed=printed, where="section 4, test accuracy")
        for name, printed in ACCURACIES.items()
        if name == kind
    ]
    if kind == TWO:
        where = "the notebook of Haim et al. (2022) for CIFAR-10, two runs pooled, read off its picture"
        claims.append(Claim(quantity=f"{ABOVE}, published runs", higher_is_better=True, printed=17, where=where))
    return Experiment(
        label=label,
        about=f"{length.records} records of {kind}, {length.epochs:,} epochs from a small first layer without weight "
        f"decay; {runs} of {length.iterations:,} iterations.",
        evaluations=(published,),
        claims=tuple(claims),
        budget=Budget(
            epochs=(length.epochs, 1_000_000),
            iterations=(length.iterations, 50_000),
            restarts=(2 + sampled, 100),
            records=(length.records, 500),
        ),
    )


@final
@dataclass(frozen=True, kw_only=True)
class Published:
    """Evaluation: one victim of a kind, all runs on its weights, their scores against private and held-out images."""

    scale: Scale
    kind: str
    victim: int = 0
    sampled: int = 0  # runs, with the published ones
    multipliers: Multipliers = "penalised"  # as in the authors' code; the paper writes a² + minimum
    tf32: bool = True  # of the search on a CUDA device; the authors' is in float64

    def __call__(self, trial: Trial) -> Outcome:
        folder = None if trial.store is None else trial.store.folder.parent
        seed = victim_seed(trial.seed, self.victim)
        victim, held_out = trained(self.scale, self.kind, seed, trial.device, folder)
        release, length = weights_only(victim).release, LENGTHS[self.scale]
        runs = (*_published(self.kind), *sample_runs(self.sampled, trial.seed, self.kind))
        cuda = self.tf32 and trial.device.type == "cuda"
        usual = KKT(candidates=2 * len(victim.private), runs=runs, multipliers=self.multipliers)
        attack = with_search(usual, steps=length.iterations, tf32=cuda)
        objective = ExplainedWeights.from_release(attack, release, seed=seed)
        checkpoint = checkpoint_path(folder, attack, release, seed)
        solution = minimise(objective, attack.search, checkpoint=checkpoint, label="KKT conditions")
        found = score_runs(attack, release, solution, victim, held_out)
        rows = score_rows(attack, release, victim, held_out)
        published = len(_published(self.kind))
        attacked = Attacked(victim=victim, held_out=held_out, runs=found, published=published, rows=rows)
        if trial.store is not None:
            trial.store.folder.mkdir(parents=True, exist_ok=True)
            save_weights(trial.store.folder / "scores.safetensors", attacked.arrays())
            save_weights(trial.store.folder / "candidates.safetensors", attacked.candidates())
        return measured(attacked, seed)


def victim_seed(seed: int, victim: int) -> int:
    """The first victim has the seed of the run."""
    return derive_seed(seed, "victim", victim) if victim else seed


def _published(kind: str) -> tuple[KKTRun, ...]:
    return MULTICLASS if kind == TEN else BINARY["mnist" if kind == DIGITS else "cifar10"]


def sample_runs(count: int, seed: int, kind: str) -> list[KKTRun]:
    """Runs from the ranges of the authors' random search, which has the multipliers' learning rate for ten classes
    alone."""
    return [run if kind == TEN else replace(run, multiplier_lr=1e-4) for run in sampled_runs(count, seed)]


def trained(scale: Scale, kind: str, seed: int, device: torch.device, folder: Path | None) -> tuple[Victim, Data]:
    """A victim of a kind and the records held out from it; from `folder` where a training was saved there."""
    length, classes = LENGTHS[scale], 10 if kind == TEN else 2
    target = Target(
        scale=scale,
        per_class=length.records // classes,
        classes=classes,
        effort=FULL[scale],
        decay=0.0,
        small_first=True,
        source="mnist" if kind == DIGITS else "cifar10",
        loss=CrossEntropy() if kind == TEN else Logistic(),
    )
    private, held_out = (part.to(device, torch.float64) for part in target.split(seed))
    model = centred_mlp(private.shape, 10 if kind == TEN else 1, hidden=HIDDEN[scale])
    training = Training(optimizer=SGD(lr=LR[kind]), epochs=length.epochs, loss=target.loss)
    initial = target.initial(model, private, seed)
    (final,) = _train(SpanTraining(training, model, [initial], [private]), kind, seed, folder)
    none = private.take(slice(0, 0))
    victim = Victim(model=model, training=training, initial=initial, final=final, fixed=none, private=private)
    return victim, held_out


def _train(training: SpanTraining, kind: str, seed: int, folder: Path | None) -> list[Params]:
    made_of = words(repr(training.training), kind, str(seed), str(tuple(training.inputs.shape)))["digest"]
    path = None if folder is None else folder / f"victims-{made_of}.safetensors"
    state = None if path is None else read_tensors(path, belongs_to=path.name)
    if state is not None:
        training.load(state, int(state["done"]))
    epochs = range(training.done, training.training.epochs, SAVE_EVERY)
    for start in track(epochs, total=len(epochs), label=f"training, {kind}"):
        training.advance(min(SAVE_EVERY, training.training.epochs - start))
        if path is not None:
            write_tensors(path, training.state | {"done": torch.tensor(training.done)}, belongs_to=path.name)
    return training.weights()
