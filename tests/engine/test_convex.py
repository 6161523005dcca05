"""L-BFGS on stacks of linear models ends at the minima that scikit-learn finds."""

import dataclasses

import pytest
import torch
from refusals import refused
from sklearn.linear_model import LogisticRegression

from remanence import Training
from remanence.data import Split
from remanence.engine import train, trajectory
from remanence.models import initial_params, mlp
from remanence.releases import train_victims
from remanence.training import QuasiNewton
from remanence.types import Data, Params, concat

TRAINING = Training(optimizer=QuasiNewton(), epochs=2000, weight_decay=1e-2, decay_biases=False)


def zeros(fixed: Data) -> Params:
    model = mlp(fixed.shape, fixed.num_classes, hidden=())
    return {name: torch.zeros_like(p).double() for name, p in initial_params(model, seed=0).items()}


def reference(data: Data) -> torch.Tensor:
    solver = LogisticRegression(C=1 / (len(data) * 1e-2), tol=1e-12, max_iter=10_000)
    return torch.from_numpy(solver.fit(data.x.flatten(1).numpy(), data.y.numpy()).coef_)


@pytest.mark.parametrize("preconditioned", [True, False])
def test_one_model_and_an_ensemble_end_where_scikit_learn_does(parts: Split, preconditioned: bool) -> None:
    fixed, private = (data.to("cpu", torch.float64) for data in (parts.fixed, parts.private.take(slice(0, 3))))
    model = mlp(fixed.shape, fixed.num_classes, hidden=())
    training = dataclasses.replace(TRAINING, optimizer=QuasiNewton(preconditioned=preconditioned))
    alone = train(training, model, zeros(fixed), fixed)
    assert torch.allclose(alone["1.weight"], reference(fixed), atol=1e-5)
    victims = train_victims(model, training, zeros(fixed), fixed, private, seed=0)
    for k, victim in enumerate(victims):
        expected = reference(concat([fixed, private.take([k])]))
        assert torch.allclose(victim.final["1.weight"], expected, atol=1e-5)
        assert not torch.allclose(victim.final["1.weight"], alone["1.weight"], atol=1e-5)


def test_a_loose_tolerance_stops_early(parts: Split) -> None:
    fixed = parts.fixed.to("cpu", torch.float64)
    model = mlp(fixed.shape, fixed.num_classes, hidden=())
    loose = dataclasses.replace(TRAINING, optimizer=QuasiNewton(tolerance=1e-2, preconditioned=False))
    gap = (train(loose, model, zeros(fixed), fixed)["1.weight"] - reference(fixed)).abs().max()
    assert gap > 1e-2
    one = dataclasses.replace(TRAINING, epochs=0)
    assert torch.equal(train(one, model, zeros(fixed), fixed)["1.weight"], zeros(fixed)["1.weight"])


def test_other_models_and_trainings_are_refused(parts: Split) -> None:
    fixed, model = parts.fixed, mlp(parts.fixed.shape, 10)
    with refused("unsupported-training", "optimizer"):
        train(TRAINING, model, initial_params(model, seed=0), fixed)
    linear = mlp(fixed.shape, 10, hidden=())
    for training in (dataclasses.replace(TRAINING, batch_size=10), dataclasses.replace(TRAINING, clip=1.0)):
        with refused("unsupported-training", "optimizer"):
            train(training, linear, initial_params(linear, seed=0), fixed)
    with refused("unsupported-training", "optimizer"):  # which takes its steps one by one
        trajectory(TRAINING, linear, initial_params(linear, seed=0), fixed)
