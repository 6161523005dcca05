"""The settings of attacks in an audit: those that give the most within minutes on two cores."""

from contextlib import suppress
from dataclasses import replace
from math import exp, log
from typing import Any, cast

from remanence.attacks import (
    KKT,
    ConvStationarity,
    FirstLayer,
    GradientMatching,
    KKTRun,
    NewtonStep,
    Preprocessing,
    RecoNN,
    SimuDy,
    SoftLabels,
    Stationarity,
    with_search,
)
from remanence.attacks.weights.residual import layers_of
from remanence.auditing.checks.outputs import checked_logits
from remanence.auditing.demo_models.presets import RECONSTRUCTOR
from remanence.errors import Diverged
from remanence.models import MLP, input_normalisation, parse
from remanence.models.operations import Normalisation
from remanence.progress import time_limit
from remanence.releases import KnowsFinal, KnowsFixed, KnowsTraining, LocalUpdate
from remanence.training import CrossEntropy, Logistic
from remanence.training.losses import KnownLoss
from remanence.types import Params

_KKT_STEPS = 10_000  # a fifth of the authors': on small nets 5,000 found what 15,000 did
_KKT_FACTORS = (1.0, 0.1, 0.01, 0.001)  # of the learning rates
_KKT_TRIED, _KKT_SECONDS = 101, 3.0  # steps after which a search is first checked, and the time for them
_KKT_NORM = 3.0  # geometric mean of the layers' norms, for which the authors' learning rates were made


def stationarity(release: Any, records: int) -> Stationarity:
    return Stationarity(candidates=records, loss=loss_of(release))


def gradient_matching(release: Any, records: int) -> GradientMatching:
    """With features of the first fully connected layer that was sent, where records do not enter it as they are: their
    closed form is an attack of its own."""
    structure = parse(release.model, release.shape)
    enter = isinstance(structure, MLP) and structure.layers[0].weight in release.sent
    return GradientMatching(features=None if enter else FirstLayer(guesses=False))


def newton_step(release: Any, records: int) -> NewtonStep:
    """The closed form for one record; several are searched for."""
    return NewtonStep() if release.count == 1 else NewtonStep(several=GradientMatching())


def simudy(release: Any, records: int) -> SimuDy:
    """With labels that are optimised where a client sent an update: it seldom has as many records of each class."""
    soft = isinstance(release, LocalUpdate) and isinstance(release.loss, CrossEntropy)
    return SimuDy(candidates=records, labels=SoftLabels() if soft else None)


def conv_stationarity(release: Any, records: int) -> ConvStationarity:
    return ConvStationarity(candidates=records, loss=loss_of(release))


def kkt(release: Any, records: int) -> KKT:
    """Twice as many candidates as records. The authors' learning rates diverge on weights that are much longer than
    theirs: weights are scaled where only their direction counts, otherwise the learning rates are, until a short search
    does not diverge."""
    attack = with_search(KKT(candidates=2 * records), steps=_KKT_STEPS)
    layers = layers_of(release.model, release.final, release.shape)
    homogeneous = layers is not None and all(layer.bias is None for layer in layers[1:])
    if homogeneous and _norm(release.final) > _KKT_NORM:
        return replace(attack, preprocessing=Preprocessing(norm=_KKT_NORM))
    usual = KKTRun()
    for factor in _KKT_FACTORS:
        run = replace(usual, lr=factor * usual.lr, multiplier_lr=factor * usual.multiplier_lr)
        attack = replace(attack, runs=(run,))
        with suppress(Diverged), time_limit(_KKT_SECONDS):
            with_search(attack, steps=_KKT_TRIED).run(release, seed=0)
            break
    return attack


def reconstructor(release: Any, records: int) -> RecoNN:
    """RecoNN, with a dense head where records are normalised before the first layer, whose rows a gated head adds."""
    normalised = any(
        isinstance(step, Normalisation) for step in input_normalisation(release.model, release.shape).steps
    )
    return replace(RECONSTRUCTOR, head="dense") if normalised else RECONSTRUCTOR


def _norm(params: Params) -> float:
    """The geometric mean of the norms of matrices and kernels."""
    logs = [log(max(float(p.norm()), 1e-12)) for p in params.values() if p.is_floating_point() and p.ndim > 1]
    return exp(sum(logs) / len(logs)) if logs else 0.0


def loss_of(release: Any) -> KnownLoss:
    """The loss that the release tells, or the one that its outputs suggest."""
    if isinstance(release, KnowsTraining | KnowsFixed):
        return cast(KnownLoss, release.training.loss)
    return CrossEntropy() if outputs(release) > 1 else Logistic()


def outputs(release: Any) -> int:
    """The number of outputs of the model for one record."""
    params = release.final if isinstance(release, KnowsFinal) else release.at
    like = next(p for p in params.values() if p.is_floating_point())
    return checked_logits(release.model, params, like.new_zeros(2, *release.shape)).shape[1]
