"""Training records from the weights before and after training, by simulating the training.

Tian et al., "Simulating Training Dynamics to Reconstruct Training Data from Deep Neural Networks" (SimuDy, ICLR 2025).
Candidates are trained on from the known initial weights, by the known recipe, and optimised until their training ends
at the victim's weights. Nothing is linearised, so that deep networks can be attacked.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.attacks.finetuning.simulation import Auto, Simulation
from remanence.bounds import Bounds, clamp, sample_about_centre
from remanence.engine import Dynamics, SpanDynamics, Surrogate, Unrolled, precision
from remanence.errors import BadInput, Diverged, check_min
from remanence.progress import track
from remanence.releases import KnowsFixed, KnowsTraining, require
from remanence.releases.checks import check_endpoints
from remanence.search import (
    L2,
    Adam,
    Cosine,
    CosineAnnealing,
    Distance,
    Prior,
    Search,
    SoftLabels,
    TotalVariation,
    Variable,
    Variables,
    WhitenedLayer,
    Whitening,
    balanced,
    between,
    checkpoint_path,
    given,
    initial_logits,
    minimise,
    probabilities,
)
from remanence.seeds import derive_seed
from remanence.types import Params, Reconstruction, float_like


@final
@dataclass(frozen=True, kw_only=True)
class SimuDy:
    """Candidates in the records' box are optimised until a training on them updates the weights as the victim's did.

    By default with our additions: images at several scales; for MLPs whitened layers; for ReLU a surrogate derivative.
    The defaults were chosen by the error on true CIFAR-10 images.
    """

    candidates: int = 100  # as many as records, besides known ones
    labels: tuple[int, ...] | SoftLabels | None = None  # None: as many of each class, in an order by the seed
    distance: Distance | None = None  # None: L2() where layers are whitened, otherwise Cosine()
    prior: Prior | None = TotalVariation(weight=0.005)  # added to the distance: how images look
    search: Search = Search(optimizer=Adam(lr=0.03, beta1=0.8, beta2=0.9), steps=2000, scales=4)
    init_std: float = 0.1  # of the initial candidates' pixels, around the middle
    whitening: Whitening | Auto | None = "auto"  # of layers, where updates are compared; auto: of MLPs that allow it
    surrogate: Surrogate | Auto | None = "auto"  # in place of ReLU's derivative; auto: where the network allows it
    start: "SimuDy | None" = None  # whose candidates are the initial ones, such as one that simulates fewer epochs
    simulation: Simulation = Simulation()

    @classmethod
    def paper(cls, *, candidates: int = 100) -> "SimuDy":
        """The search of Tian et al.: single pixels, ReLU's derivative, cosine distance, 30,000 steps at a learning rate
        that falls and rises every 200.

        In pixels in place of normalised ones, whose standard deviation is taken as 0.2. Their code simulates 8 of 20
        epochs (`Simulation(training=...)`), and clips gradients of a norm above 20 in its first steps.
        """
        return cls(
            candidates=candidates,
            distance=Cosine(),
            search=Search(
                optimizer=Adam(lr=0.002, beta1=0.8, beta2=0.9), steps=30_000, schedule=CosineAnnealing(period=100)
            ),
            whitening=None,
            surrogate=None,
            simulation=Simulation(clip=None),
        )

    def __post_init__(self) -> None:
        check_min(self, candidates=1, init_std=0)
        if not isinstance(self.labels, SoftLabels):
            check_min(self, labels=0)
        if self.start is not None and self.start.candidates != self.candidates:
            message = (
                f"`start` must have as many candidates as the search that it initialises, {self.candidates}, got "
                f"{self.start.candidates}"
            )
            raise BadInput(message, code="conflict", argument="start")

    def run(self, release: KnowsTraining, *, seed: int) -> Reconstruction:
        require(release, KnowsTraining, by=type(self).__name__)
        check_endpoints(release)
        check_min(self.simulation.training or release.training, epochs=1)
        seeds = [seed, *(derive_seed(seed, "restart", index) for index in range(1, self.search.restarts))]
        restarts = track(seeds, total=len(seeds), label="restarts") if len(seeds) > 1 else seeds
        return min((self._run(release, each) for each in restarts), key=lambda found: found.objective or 0.0)

    def _run(self, release: KnowsTraining, seed: int) -> Reconstruction:
        x, labels = self._initial(release, seed)
        with precision(tf32=self.search.tf32):
            objective = self._objective(release, x, labels, seed)
            objective.check_divergence()
            found = minimise(
                objective,
                replace(self.search, restarts=1),
                checkpoint=checkpoint_path(self.search.checkpoints, self, release, seed),
                label=f"simulated training ({objective.unrolled.describe()})",
            )
            return objective.reconstruction(found.variables)

    def _initial(self, release: KnowsTraining, seed: int) -> tuple[Tensor, Tensor]:
        """The initial candidates and their labels."""
        like = float_like(release.final)
        if self.start is not None:
            folder = self.search.checkpoints or self.start.search.checkpoints
            start = replace(self.start, search=replace(self.start.search, checkpoints=folder))
            found = start.run(release, seed=seed)
            assert found.y is not None
            return found.x.to(like), found.y.to(like.device)
        generator, count, classes = torch.Generator().manual_seed(seed), self.candidates, release.num_classes
        known = self.labels.initial if isinstance(self.labels, SoftLabels) else self.labels
        if known is not None:
            labels = given(known, count, classes)
        else:
            labels = balanced(count, classes)[torch.randperm(count, generator=generator)]
        x = sample_about_centre(count, *release.shape, bounds=release.bounds, std=self.init_std, generator=generator)
        return x.to(like), labels.to(like.device)

    def _objective(self, release: KnowsTraining, x: Tensor, labels: Tensor, seed: int) -> "_MatchUpdate":
        unrolled = self.simulation.unrolled(
            release,
            x,
            labels,
            distance=self.distance,
            in_basis="auto" if self.whitening == "auto" else self.whitening is not None,
            surrogate=self.surrogate,
            seed=seed,
        )
        known, known_labels = x[:0], labels[:0]
        if isinstance(release, KnowsFixed):
            known, known_labels = release.fixed.x, release.fixed.y
        whitened = self._whitened_layers(unrolled.dynamics, len(known) + self.candidates)
        initial = {"x": x[None]}
        if isinstance(self.labels, SoftLabels):
            favoured = labels if self.labels.initial or self.start else None
            loss = (self.simulation.training or release.training).loss
            initial["label_logits"] = initial_logits(favoured, len(labels), release.num_classes, loss, like=x)[None]
        return _MatchUpdate(
            unrolled=unrolled,
            distance=self.distance or (L2() if whitened else Cosine()),
            prior=self.prior,
            whitened=whitened,
            known=known,
            known_labels=known_labels,
            labels=labels,
            classes=release.num_classes,
            initial=initial,
            bounds=release.bounds,
        )

    def _whitened_layers(self, dynamics: Dynamics, records: int) -> dict[str, WhitenedLayer]:
        """Of all layers but the last, which has the rank of the classes; none where layers are not compared so."""
        if not isinstance(dynamics, SpanDynamics) or dynamics.basis is None:
            return {}
        power = self.whitening.power if isinstance(self.whitening, Whitening) else Whitening().power
        return {
            name: WhitenedLayer.from_matrix(dynamics.update[name], power=power, rank=records)
            for name in dynamics.hidden
        }


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _MatchUpdate:
    """distance(victim's update, simulated update) + prior, over candidates x (1, n, ...) and maybe label logits."""

    unrolled: Unrolled
    distance: Distance
    prior: Prior | None
    whitened: dict[str, WhitenedLayer]  # with any, layers are compared one by one
    known: Tensor  # records that are trained on besides the candidates
    known_labels: Tensor
    labels: Tensor
    classes: int
    initial: Variables
    bounds: Bounds
    capturable: bool = True

    def init(self) -> dict[str, Variable]:
        variables = {name: Variable(init=value) for name, value in self.initial.items()}
        return variables | {"x": Variable(init=self.initial["x"], bounds=self.bounds, multiscale=True)}

    def set_progress(self, progress: float) -> None:
        self.unrolled.dynamics.set_progress(progress)

    def select(self, restarts: Tensor) -> "_MatchUpdate":
        return self

    @torch.enable_grad()
    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        leaves = {name: value[0].detach().requires_grad_() for name, value in v.items()}
        value = self.value(leaves)
        grads = torch.autograd.grad(value, list(leaves.values()))
        return value.detach()[None], {name: grad[None] for name, grad in zip(leaves, grads, strict=True)}

    def value(self, v: Variables) -> Tensor:
        """Of candidates x (n, ...)."""
        weights, inputs = self.unrolled(torch.cat([self.known, v["x"]]), self._labels(v))
        if self.whitened:
            value = self._whitened(weights, inputs)
        else:
            value = between(self.distance, self.unrolled.dynamics.compare(weights, inputs))
        return value if self.prior is None else value + self.prior(self.unrolled.dynamics.project(v["x"]))

    def _labels(self, v: Variables) -> Tensor:
        if "label_logits" not in v:
            return torch.cat([self.known_labels, self.labels])
        known = one_hot(self.known_labels, self.classes).to(v["x"])
        return torch.cat([known, probabilities(v["label_logits"])])

    def _whitened(self, weights: Params, inputs: tuple[Tensor, ...]) -> Tensor:
        """The sum of the distances of all layers and biases."""
        dynamics, distances = self.unrolled.dynamics, []
        assert isinstance(dynamics, SpanDynamics)
        for name, update in dynamics.layers(weights, inputs).items():
            target = dynamics.update[name]
            if name in self.whitened:
                target, update = self.whitened[name].target, self.whitened[name](update)
            distances.append(self.distance(target.flatten(), update.flatten()))
        return torch.stack(distances).sum()

    def check_divergence(self) -> None:
        """Refuse a training that diverges on the initial candidates."""
        initial = {name: value[0] for name, value in self.initial.items()}
        step = self.unrolled.diverges_at(torch.cat([self.known, initial["x"]]), self._labels(initial))
        if step is not None:
            message = (
                f"the simulated training diverges at its step {step} of {len(self.unrolled.batches)} on random "
                "records: is its learning rate that of the victim?"
            )
            raise Diverged(message, code="diverged", argument="training")

    @torch.no_grad()
    def reconstruction(self, v: Variables) -> Reconstruction:
        found = {name: value[0] for name, value in v.items()}
        found["x"] = clamp(self.unrolled.dynamics.project(found["x"]), self.bounds)
        labels = found["label_logits"].argmax(-1) if "label_logits" in found else self.labels
        return Reconstruction(x=found["x"], y=labels, objective=float(self.value(found)))
