"""Two versions of a model give the record between them away: against scikit-learn's own solutions, and sums by hand."""

import dataclasses
from typing import Any

import pytest
import torch
from refusals import refused
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from remanence import DPGD, SGD, AdamW, Data, Logistic, SquaredError, Training, audit, train_victim
from remanence.attacks import FirstLayer, GradientMatching, NewtonStep, with_search
from remanence.auditing.answer.documentation import questions
from remanence.data import Split
from remanence.models import initial_params, mlp, normalized, normalized_params
from remanence.releases import BeforeAndAfter, Gradient, before_and_after
from remanence.training import QuasiNewton

CONVERGED = Training(optimizer=QuasiNewton(tolerance=1e-11), epochs=2000, weight_decay=1e-2)
EXACT = NewtonStep(shrinkage=0)


def double(data: Data) -> Data:
    return data.to("cpu", torch.float64)


def scikit_learn(data: Data, weight_decay: float) -> dict[str, Tensor]:
    """The minimum of mean cross-entropy + weight_decay / 2 |W|^2 by scikit-learn, intercepts not decayed."""
    solver = LogisticRegression(C=1 / (len(data) * weight_decay), tol=1e-12, max_iter=10_000)
    solver.fit(data.x.flatten(1).numpy(), data.y.numpy())
    return {"1.weight": torch.from_numpy(solver.coef_), "1.bias": torch.from_numpy(solver.intercept_)}


def versions(fixed: Data, target: Data, public: Data | None, *, added: bool = False) -> BeforeAndAfter:
    """Both versions by scikit-learn: nothing of ours was trained."""
    together = Data(x=torch.cat([fixed.x, target.x]), y=torch.cat([fixed.y, target.y]), num_classes=fixed.num_classes)
    present, missing = scikit_learn(together, 1e-2), scikit_learn(fixed, 1e-2)
    return BeforeAndAfter(
        model=mlp(fixed.shape, fixed.num_classes, hidden=()),
        before=missing if added else present,
        final=present if added else missing,
        shape=fixed.shape,
        num_classes=fixed.num_classes,
        training=Training(weight_decay=1e-2, decay_biases=False),
        records=len(fixed) + (not added),
        change="added" if added else "deleted",
        public=public,
    )


@pytest.mark.parametrize("added", [False, True])
def test_the_record_between_two_models_of_scikit_learn_is_exact_with_the_records_that_stayed(
    parts: Split, added: bool
) -> None:
    fixed, target = double(parts.fixed), double(parts.private.take(slice(0, 1)))
    found = EXACT.run(versions(fixed, target, fixed, added=added), seed=0)
    assert (found.x - target.x).abs().max() < 1e-3
    assert found.y is not None
    assert found.y.tolist() == target.y.tolist()
    assert found.objective is not None
    assert found.objective < 1e-3


def test_public_records_take_the_place_of_those_that_stayed(parts: Split) -> None:
    fixed, public = double(parts.fixed), double(parts.public)
    errors, nearest, without = [], [], []
    for k in range(10):
        target = double(parts.private.take(slice(k, k + 1)))
        release = versions(fixed, target, public)
        errors.append(float((NewtonStep().run(release, seed=0).x - target.x).square().mean()))
        alone = NewtonStep().run(dataclasses.replace(release, public=None), seed=0).x
        assert torch.equal(alone, NewtonStep(curvature="decay").run(release, seed=0).x)
        without.append(float((alone - target.x).square().mean()))
        nearest.append(float((public.x - target.x).square().flatten(1).mean(1).min()))
    assert sum(e < n for e, n in zip(errors, nearest, strict=True)) >= 8
    assert sum(errors) < sum(without) / 2


def test_without_public_records_strong_weight_decay_leaves_the_records_direction(parts: Split) -> None:
    """Where decay outweighs the curvature, the difference of the versions is the gradient itself."""
    fixed, model = double(parts.fixed), mlp(parts.fixed.shape, 10, hidden=())
    initial = {name: torch.zeros_like(p).double() for name, p in initial_params(model, seed=0).items()}
    training = dataclasses.replace(CONVERGED, weight_decay=10.0)
    for k in range(5):
        target = double(parts.private.take(slice(k, k + 1)))
        found = NewtonStep().run(
            before_and_after(train_victim(model, training, initial, fixed, target, seed=0)).release, seed=0
        )
        assert cosine_similarity(found.x.flatten(1), target.x.flatten(1)) > 0.97
        assert found.y is not None
        assert found.y.tolist() == target.y.tolist()


def test_several_records_leave_the_sum_of_their_gradients(parts: Split) -> None:
    """By a loop over records, and with a hidden layer by the attacks on gradients that are given."""
    fixed, private = double(parts.fixed), double(parts.private.take(slice(0, 3)))
    model = mlp(fixed.shape, fixed.num_classes, hidden=())
    initial = {name: torch.zeros_like(p).double() for name, p in initial_params(model, seed=0).items()}
    victim = train_victim(model, CONVERGED, initial, fixed, private, seed=0)
    release = before_and_after(victim, public=fixed).release
    assert (release.records, release.count) == (len(fixed) + 3, 3)
    at = release.before
    total = {name: torch.zeros_like(p) for name, p in at.items()}
    for k in range(3):
        logits = private.x[k].flatten() @ at["1.weight"].T + at["1.bias"]
        errors = logits.softmax(0)
        errors[private.y[k]] -= 1
        total["1.weight"] += errors[:, None] * private.x[k].flatten() / 3
        total["1.bias"] += errors / 3
    estimated = EXACT.gradient(release)
    assert isinstance(estimated, Gradient)
    assert estimated.batch_size == 3
    for name, expected in total.items():
        assert torch.allclose(estimated.gradient[name], expected, atol=1e-6)
    with refused("not-enough-knowledge", "several"):
        NewtonStep().run(release, seed=0)
    found = NewtonStep(shrinkage=0, several=with_search(GradientMatching(), steps=30)).run(release, seed=0)
    assert found.x.shape == private.x.shape


def test_one_record_of_a_network_near_a_minimum(parts: Split) -> None:
    fixed, public = double(parts.fixed), double(parts.public)
    model = mlp(fixed.shape, fixed.num_classes, hidden=(16,), activation=nn.ReLU)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    training = Training(optimizer=SGD(lr=0.2, momentum=0.9), epochs=1000, weight_decay=1e-2)
    errors, levels = [], []
    for k in range(5):
        target = double(parts.private.take(slice(k, k + 1)))
        release = before_and_after(train_victim(model, training, initial, fixed, target, seed=0), public=public).release
        found = NewtonStep().run(release, seed=0)
        alike = FirstLayer().run(NewtonStep().gradient(release), seed=0)  # the division of an attack on gradients
        assert torch.allclose(found.x, alike.x, atol=1e-6)
        errors.append(float((found.x - target.x).square().mean()))
        levels.append(float((public.x.mean(0) - target.x).square().mean()))
    assert sum(errors) < sum(levels) / 2


@pytest.mark.parametrize("loss", [Logistic(), SquaredError(values=(0.0, 3.0))])
def test_one_output_and_normalised_records(loss: Logistic | SquaredError) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(61, 5, generator=generator, dtype=torch.float64)
    data = Data(x=x, y=(x[:, 0] + 0.3 * torch.rand(61, generator=generator) > 0.6).long(), num_classes=2)
    fixed, target = data.take(slice(0, 60)), data.take(slice(60, 61))
    plain = mlp(data.shape, 1, hidden=())
    model = normalized(plain, x.mean(0), x.std(0))
    initial = normalized_params(model, {name: p.double() for name, p in initial_params(plain, seed=0).items()})
    training = dataclasses.replace(CONVERGED, weight_decay=0.05, decay_biases=False, loss=loss)
    release = before_and_after(train_victim(model, training, initial, fixed, target, seed=0), public=fixed).release
    found = EXACT.run(release, seed=0)
    assert (found.x - target.x).abs().max() < 1e-4
    assert found.y is not None
    assert found.y.tolist() == target.y.tolist()
    if isinstance(loss, SquaredError):  # as scikit-learn solves it
        inputs = ((fixed.x - x.mean(0)) / x.std(0)).numpy()
        ridge = Ridge(alpha=60 * 0.05 / 2, solver="svd").fit(inputs, 3.0 * fixed.y.numpy())
        weight = next(p for name, p in release.final.items() if name.endswith("weight"))
        assert torch.allclose(weight[0], torch.from_numpy(ridge.coef_), atol=1e-8)


def test_what_it_cannot_treat_is_refused(parts: Split) -> None:
    release = versions(double(parts.fixed), double(parts.private.take(slice(0, 1))), double(parts.public))

    def changed(**fields: Any) -> BeforeAndAfter:
        return dataclasses.replace(release, **fields)

    for training in (Training(privacy=DPGD(clip=1.0, noise=1.0)), Training(optimizer=AdamW())):
        with refused("unsupported-training", "release"):
            NewtonStep().run(changed(training=training), seed=0)
    with refused("not-enough-knowledge", "public"):
        NewtonStep().run(changed(public=None, training=Training()), seed=0)
    with torch.device("meta"):
        headless = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    with refused("unsupported-model", "release"):
        NewtonStep().run(changed(model=headless), seed=0)
    with refused("out-of-range", "count"):
        changed(count=release.records)
    with refused("unknown-name", "change"):
        changed(change="edited")
    with refused("out-of-range", "shrinkage"):
        NewtonStep(shrinkage=-1)


def test_versions_of_one_fixed_set_share_their_retraining(parts: Split) -> None:
    model = mlp(parts.fixed.shape, parts.fixed.num_classes, hidden=())
    initial = initial_params(model, seed=0)
    training = Training(epochs=3)
    first, second = (
        before_and_after(train_victim(model, training, initial, parts.fixed, parts.private.take([k]), seed=0)).release
        for k in range(2)
    )
    assert first.final is second.final
    other = initial_params(model, seed=1)
    third = before_and_after(train_victim(model, training, other, parts.fixed, parts.private.take([0]), seed=0)).release
    assert not torch.equal(third.final["1.weight"], first.final["1.weight"])
    x, y = parts.fixed.x.flatten(1), parts.fixed.y
    params = {name: p.clone().requires_grad_() for name, p in initial.items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.2, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(x @ params["1.weight"].T + params["1.bias"], y).backward()
        optimizer.step()
    assert torch.allclose(first.final["1.weight"], params["1.weight"], atol=1e-5)


def test_an_audit_of_two_versions_runs_it(parts: Split) -> None:
    fixed, target = double(parts.fixed), double(parts.private.take(slice(0, 1)))
    release = versions(fixed, target, double(parts.public))
    report = audit(release, truth=target, held_out=double(parts.test), attacks=["NewtonStep"], budget=60)
    row = next(row for row in report.answer.attacks if row.name == "NewtonStep")
    assert (row.status, row.knowledge, row.found) == ("ran", "two versions", 1)
    assert "several releases of one model together" in "".join(each.answer for each in questions(report.answer))
