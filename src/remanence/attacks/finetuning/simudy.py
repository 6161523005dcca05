"""Training records from the weights before and after training, by simulating the training.

Tian et al., "Simulating Training Dynamics to Reconstruct Training Data from Deep Neural Networks" (SimuDy, ICLR 2025).
Dummy records are trained on from the known start, by the known recipe, and moved until their training ends where the
victim's did. Nothing is linearised, so deep networks can be read.
"""

from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from remanence.attacks._convolved import Convolved
from remanence.attacks._ends import check_ends, check_training
from remanence.attacks._gates import Gates
from remanence.attacks._reasons import why_not_smooth
from remanence.attacks._simulation import Simulation, Whole, segment_of
from remanence.attacks._spanned import Spanned
from remanence.engine.cuda import precision
from remanence.errors import BadInput, Diverged, check_above, check_between, check_min
from remanence.releases import KnowsFixed, KnowsTraining, require
from remanence.search.checkpoint import file_of
from remanence.search.distances import Cosine, Distance
from remanence.search.labels import balanced, given, initial_logits, probabilities
from remanence.search.priors import total_variation
from remanence.search.solver import search_in_place
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, Optimizer, Training
from remanence.training.decay import remaining_fraction
from remanence.types import Params, Reconstruction


@final
@dataclass(frozen=True, kw_only=True)
class SimuDy:
    """Pixels are moved, where the authors move normalised ones: `spread` and `tv` are theirs for a standard deviation
    of 0.2. Their rate would be 0.002, with six times the steps."""

    candidates: int = 100
    labels: tuple[int, ...] | None = None  # None: as many of each class, in an order by the seed
    soft_labels: bool = False  # moved with the records, from all classes alike or leaning to `labels`; not in the paper
    distance: Distance = Cosine()
    tv: float = 0.005
    steps: int = 5000  # the authors: 30,000, with a rate that rises and falls every 200
    optimizer: Optimizer = Adam(lr=0.01, beta1=0.8, beta2=0.9)  # at the start; its rate falls on a half cosine
    spread: float = 0.1  # of the first candidates' pixels, around the middle
    octaves: int = 0  # coarser parts of the images that are moved beside their pixels; not in the paper
    whitening: float = 0.0  # by which power of their singular values layers are compared evenly; MLPs, not in the paper
    sharpness: tuple[float, float] | None = None  # of gates in place of ReLU's steps, first and last; not in the paper
    restarts: int = 1  # from other first candidates; those with the lowest objective count
    start: "SimuDy | None" = None  # whose candidates the search begins with, such as one that simulates fewer epochs
    training: Training | None = None  # simulated; None: the victim's. The authors' code takes 8 of its 20 epochs
    clip: float | None = None  # simulated gradients are cut to so many of `mean_gradient`; at first they explode
    segment: int | None = None  # simulated steps to a graph; None: by free memory
    tf32: bool = False  # products on a CUDA device with factors of ten bits
    checkpoints: Path | None = field(default=None, repr=False, compare=False)  # where a stopped search goes on

    def __post_init__(self) -> None:
        check_min(self, candidates=1, labels=0, tv=0, steps=1, spread=0, octaves=0, whitening=0, restarts=1, segment=1)
        check_above(self, clip=0)
        if self.sharpness is not None:
            check_between(self, "sharpness", 0, inf, count=2)
        if self.training is not None:
            check_training(self.training)
        if self.start is not None and self.start.candidates != self.candidates:
            raise BadInput(
                f"`start` must have as many candidates as the search that goes on from it, {self.candidates}, got "
                f"{self.start.candidates}"
            )

    def run(self, release: KnowsTraining, *, seed: int) -> Reconstruction:
        require(release, KnowsTraining, by=type(self).__name__)
        check_ends(release)
        check_min(self.training or release.training, epochs=1)
        seeds = [seed, *(derive_seed(seed, "restart", place) for place in range(1, self.restarts))]
        return min((self._run(release, each) for each in seeds), key=lambda found: found.objective or 0.0)

    def _run(self, release: KnowsTraining, seed: int) -> Reconstruction:
        like = next(iter(release.final.values()))
        x, labels = (part.to(like.device) for part in self._begun(release, seed))
        x = x.to(like)
        with precision(tf32=self.tf32):
            simulation = self._simulation(release, x, labels, seed)
            x, labels, objective = self._searched(release, simulation, x, labels, seed)
        return Reconstruction(x=x, y=labels, objective=objective)

    def _begun(self, release: KnowsTraining, seed: int) -> tuple[Tensor, Tensor]:
        """The first candidates and their labels."""
        if self.start is not None:
            kept = replace(self.start, checkpoints=self.checkpoints or self.start.checkpoints)
            begun = kept.run(release, seed=seed)
            assert begun.y is not None
            return begun.x, begun.y
        generator = torch.Generator().manual_seed(seed)
        labels = self._labels(release, generator)
        pixels = 0.5 + self.spread * torch.randn(self.candidates, *release.shape, generator=generator)
        return pixels.clamp(0, 1), labels

    def _labels(self, release: KnowsTraining, generator: torch.Generator) -> Tensor:
        count, classes = self.candidates, release.num_classes
        if self.labels is not None:
            return given(self.labels, count, classes)
        return balanced(count, classes)[torch.randperm(count, generator=generator)]

    def _simulation(self, release: KnowsTraining, x: Tensor, labels: Tensor, seed: int) -> Simulation:
        """Begun with these candidates."""
        if isinstance(release, KnowsFixed):
            x, labels = torch.cat([release.fixed.x, x]), torch.cat([release.fixed.y, labels])
        count, like = len(labels), next(iter(release.final.values()))
        training = self._steadied(_without_noise(self.training or release.training), release, count)
        batches = tuple(b if b is None else b.to(like.device) for b in training.batches(count, seed))
        largest = min(training.batch_size or count, count)
        copies = 1 + len(training.optimizer.init({}))
        parts = release.model, training, release.initial, release.final, labels, self.distance
        smooth = bool(self.whitening or self.sharpness)
        if not self.whitening and (convolved := Convolved.of(*parts, shape=release.shape)):
            convolved = convolved.gated(self.sharpness, x) if self.sharpness else convolved
            sizes = {"steps": len(batches), "batch": largest, "copies": copies}
            fitted, segment = convolved.fitted(release.shape, segment=self.segment, **sizes)
            return Simulation(training=training, coordinates=fitted, batches=batches, segment=segment)
        segment = self.segment or segment_of(
            release.model, release.shape, steps=len(batches), batch=largest, copies=copies, like=like
        )
        whole = Whole(
            model=release.model,
            training=training,
            initial=release.initial,
            final=release.final,
            y=labels,
            distance=self.distance,
        )
        spanned = Spanned.of(*parts)
        coordinates = self._smoothed(release, training, count, spanned, seed) if smooth else spanned or whole
        return Simulation(training=training, coordinates=coordinates, batches=batches, segment=segment)

    def _steadied(self, training: Training, release: KnowsTraining, records: int) -> Training:
        """With gradients cut; those of a training that cuts its own are cut as it does."""
        if self.clip is None or training.clip is not None:
            return training
        return replace(training, clip=self.clip * mean_gradient(release, training, records=records))

    def _smoothed(
        self, release: KnowsTraining, simulated: Training, count: int, spanned: Spanned | None, seed: int
    ) -> Spanned:
        victim = release.training
        if spanned is not None and self.whitening:
            steps = len(list(victim.batches(count, seed))) if victim.weight_decay else 0
            spanned = spanned.whitened(self.whitening, shrunk=remaining_fraction(victim, steps, records=count))
        if spanned is None:
            what, whitened = "whitening" if self.whitening else "sharpness", bool(self.whitening)
            why = why_not_smooth(release.model, simulated, self.distance, count, whitened=whitened)
            raise BadInput(f"`{what}` cannot be used here, leave it out: {why}")
        like = next(iter(release.final.values()))
        return replace(spanned, gates=Gates.of(self.sharpness, like.new_ones(()))) if self.sharpness else spanned

    def _searched(
        self, release: KnowsTraining, simulation: Simulation, start: Tensor, labels: Tensor, seed: int
    ) -> tuple[Tensor, Tensor, float]:
        known = release.fixed.x if isinstance(release, KnowsFixed) else start[:0]
        coordinates, leaning = simulation.coordinates, self._leaning(release, labels, start)
        sure = one_hot(coordinates.y[: len(known)], release.num_classes).to(start)

        def labelled() -> Tensor | None:
            return torch.cat([sure, probabilities(leaning[0])]) if leaning else None

        def objective(x: Tensor) -> Tensor:
            return simulation(torch.cat([known, x]), labelled()) + self.tv * total_variation(coordinates.within(x))

        # whitened, a bias that hardly moved would count as much as all other weights
        plain = replace(coordinates, whitenings={}) if isinstance(coordinates, Spanned) else coordinates
        checked = replace(simulation, coordinates=plain)
        if (place := checked.diverges_at(torch.cat([known, start]), labelled())) is not None:
            raise Diverged(
                f"the simulated training diverges at its step {place} of {len(simulation.batches)} on random records: "
                "is its learning rate that of the victim?"
            )
        x = nn.Parameter(start)
        search_in_place(
            objective,
            x,
            leaning,
            optimizer=self.optimizer,
            steps=self.steps,
            octaves=self.octaves,
            label=f"simulated training ({simulation.told()})",
            kept=file_of(self.checkpoints, self, release, simulation.training, seed),
            prepare=coordinates.prepare,
        )
        coordinates.prepare(1.0)
        with torch.no_grad():
            found = coordinates.within(x).clamp(0, 1)
            return found, leaning[0].argmax(-1) if leaning else labels, float(objective(found))

    def _leaning(self, release: KnowsTraining, labels: Tensor, like: Tensor) -> list[nn.Parameter]:
        """Of each record to the classes, where labels are moved."""
        if not self.soft_labels:
            return []
        sizes, known = (len(labels), release.num_classes), labels if self.labels or self.start else None
        return [nn.Parameter(initial_logits(known, *sizes, (self.training or release.training).loss, like=like))]


def mean_gradient(release: KnowsTraining, training: Training, *, records: int) -> float:
    """The norm of the mean gradient with which the steps of `training` would go as far as the victim's weights went."""
    if not isinstance(training.optimizer, SGD):
        raise BadInput(f"`clip` of SimuDy is for trainings by SGD, got {training.optimizer}: leave it out")

    def one(params: Params, _batch: Tensor | None) -> Params:
        return {name: torch.ones_like(p) for name, p in params.items()}

    plain, steps = replace(training, privacy=None, weight_decay=0.0), list(training.batches(records, 0))
    unit = plain.descend(one, {"": torch.zeros((), dtype=torch.float64)}, steps, records=records, noise_seed=0)[""]
    trained = [name for name, _ in release.model.named_parameters()]
    way = torch.cat([(release.final[name] - release.initial[name]).flatten() for name in trained])
    if not unit:
        raise BadInput("`clip` of SimuDy is for trainings that move the weights, got one with a rate of 0")
    return float(way.norm()) / float(-unit)


def _without_noise(training: Training) -> Training:
    """The noise of DP-GD is the victim's own: the clipped steps are simulated without it."""
    return replace(training, privacy=replace(training.privacy, noise=0.0)) if training.privacy else training
