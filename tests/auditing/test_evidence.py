"""Evidence of an audit: membership by several scores, the span, labels; nothing in it raises."""

from dataclasses import replace

import pytest
import torch
from auditing.nets import SmallCNN, as_images, fitted, published, seeded, small_mlp, weights

from remanence.auditing.answer.report import Evidence
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.evidence.intervals import auc_of_few, identified_at_fpr
from remanence.auditing.evidence.membership import gather_evidence
from remanence.data import Split, split
from remanence.engine import train
from remanence.metrics.statistics import auc
from remanence.models import initial_params
from remanence.releases import (
    FineTuned,
    FineTunedUnknownRecipe,
    WeightsOnly,
    gradient_at_initial,
    local_update,
    train_victim,
)
from remanence.training import SGD, Adam, AdamW, CrossEntropy, Training
from remanence.types import Data


def by_name(rows: tuple[Evidence, ...]) -> dict[str, Evidence]:
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: row for row in rows}


@pytest.fixture(scope="module")
def faces() -> Data:
    """600 records of 400 features in two classes, fewer of them private than the first layer has inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 400, generator=generator)
    teacher = torch.randn(400, generator=generator)
    return Data(x=x, y=((x - 0.5) @ teacher > 0).long(), num_classes=2)


@pytest.fixture(scope="module")
def tuned(faces: Data) -> FineTuned:
    """An MLP tuned by SGD with momentum and no weight decay on the first 100 records, in mini-batches."""
    model = small_mlp(400, 200, 2)
    training = Training(optimizer=SGD(lr=0.02, momentum=0.9), epochs=20, batch_size=20)
    initial = initial_params(model, seed=0)
    final = train(training, model, initial, faces.take(slice(0, 100)), seed=1)
    return FineTuned(model=model, final=final, shape=(400,), num_classes=2, initial=initial, training=training)


def test_the_span_identifies_the_records_that_an_mlp_was_tuned_on(tuned: FineTuned, faces: Data) -> None:
    rows, figures = gather_evidence(tuned, faces.take(slice(0, 100)), faces.take(slice(100, 600)), seed=0, seconds=0)
    found = by_name(rows)
    assert (found["span: tpr@1%"].value or 0) >= 0.95
    assert (found["span: AUC"].value or 0) > 0.99
    assert found["span: AUC"].p is not None
    assert found["span: AUC"].p < 1e-10
    assert [figure.title for figure in figures] == ["Membership"]


@pytest.mark.parametrize(
    "training",
    [
        Training(optimizer=AdamW(lr=1e-3), epochs=30, batch_size=20),
        Training(optimizer=SGD(lr=0.02, momentum=0.9), epochs=40, batch_size=20, weight_decay=1e-2),
    ],
)
@pytest.mark.parametrize("recipe_is_known", [True, False])
def test_the_span_is_seen_through_adam_and_weight_decay(
    tuned: FineTuned, faces: Data, training: Training, recipe_is_known: bool
) -> None:
    private, held_out = faces.take(slice(0, 100)), faces.take(slice(100, 600))
    final = train(training, tuned.model, tuned.initial, private, seed=1)
    known = replace(tuned, final=final, training=training)
    unknown = FineTunedUnknownRecipe(model=tuned.model, final=final, shape=(400,), num_classes=2, initial=tuned.initial)
    found = by_name(gather_evidence(known if recipe_is_known else unknown, private, held_out, seed=0, seconds=0)[0])
    assert (found["span: tpr@1%"].value or 0) >= 0.95


@pytest.mark.slow
def test_of_a_model_that_never_saw_the_records_nothing_is_evidence(tuned: FineTuned, faces: Data) -> None:
    rows, _ = gather_evidence(tuned, faces.take(slice(100, 200)), faces.take(slice(200, 600)), seed=0, seconds=5)
    found = by_name(rows)
    assert {row.group for row in rows} == {"membership", "span"}
    assert found["membership by likelihood ratio: AUC"].value is not None
    for row in rows:
        assert row.p is None or row.p > 0.001
        if row.name.endswith("AUC"):
            assert 0.4 < (row.value or 0) < 0.6
        else:
            assert (row.low or 0) <= 0.03
            assert (row.value or 0) <= 0.1


def test_the_likelihood_ratio_identifies_members_better_than_the_loss(digits: Data) -> None:
    parts = split(digits, private=60, fixed=0, public=300, test=600, seed=0)
    model = small_mlp(64, 32)
    base = weights(fitted(seeded(lambda: small_mlp(64, 32)), parts.public, epochs=20, lr=3e-3))
    training = Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=20)
    final = train(training, model, base, parts.private)
    release = FineTuned(
        model=model, final=final, shape=parts.private.shape, num_classes=10, initial=base, training=training
    )
    found = by_name(gather_evidence(release, parts.private, parts.test, seed=0, seconds=20)[0])
    ratio = found["membership by likelihood ratio: AUC"]
    assert (ratio.value or 0) > (found["membership by loss: AUC"].value or 1)
    assert found["membership by loss drop: AUC"].value is not None
    assert ratio.p is not None
    assert ratio.p < 1e-3


def test_membership_of_an_overfitted_model_is_read_from_its_losses(digits: Data) -> None:
    parts = split(digits, private=60, fixed=0, public=0, test=600, seed=0)
    release = published(fitted(seeded(lambda: small_mlp(64, 64)), parts.private, epochs=60), parts.private)
    found = by_name(gather_evidence(release, parts.private, parts.test, seed=0)[0])
    assert (found["membership by loss: AUC"].value or 0) > 0.6
    assert found["membership by likelihood ratio: tpr@1%"].value is None
    assert "--recipe" in found["membership by likelihood ratio: tpr@1%"].meaning
    assert found["span: tpr@1%"].value is None or found["span: tpr@1%"].group == "span"


def test_of_a_cnn_there_is_membership_and_a_reason_for_no_span(digits: Data) -> None:
    parts = split(as_images(digits), private=50, fixed=0, public=0, test=200, seed=0)
    release = published(fitted(seeded(SmallCNN), parts.private, epochs=5), parts.private)
    found = by_name(gather_evidence(release, parts.private, parts.test, seed=0)[0])
    assert found["membership by loss: AUC"].value is not None
    assert found["span: tpr@1%"].value is None
    assert "convolution" in found["span: tpr@1%"].meaning


def test_with_few_held_out_records_no_rate_is_stated(tuned: FineTuned, faces: Data) -> None:
    release = WeightsOnly(model=tuned.model, final=tuned.final, shape=(400,), num_classes=2)
    found = by_name(gather_evidence(release, faces.take(slice(0, 100)), faces.take(slice(100, 150)), seed=0)[0])
    assert found["membership by loss: tpr@1%"].value is None
    assert found["membership by loss: AUC"].value is not None


@pytest.mark.parametrize("reveal", [gradient_at_initial, local_update])
def test_updates_show_labels_and_members(parts: Split, reveal: object) -> None:
    batch, model = parts.private.take(slice(0, 16)), small_mlp()
    victim = train_victim(
        model,
        Training(optimizer=SGD(lr=0.1), epochs=2),
        weights(seeded(small_mlp)),
        batch.take(slice(0, 0)),
        batch,
        seed=0,
    )
    case = reveal(victim)
    rows, figures = gather_evidence(case.release, case.truth, parts.test, seed=0)
    found = by_name(rows)
    labels = found["labels"]
    assert (labels.value or 0) >= 0.8 > (labels.chance or 1)
    assert (found["span: tpr@1%"].value or 0) == 1
    assert found["membership by gradient: AUC"].value is not None
    assert ("membership by loss: AUC" in found) == (reveal is local_update)
    assert figures[-1].title == "Labels of the batch"


def test_what_fails_is_a_row_with_the_reason(parts: Split) -> None:
    batch = parts.private.take(slice(0, 8))
    victim = train_victim(
        small_mlp(), Training(epochs=1), weights(seeded(small_mlp)), batch.take(slice(0, 0)), batch, seed=0
    )
    release = replace(gradient_at_initial(victim).release, batch_size=None)
    found = by_name(gather_evidence(release, batch, parts.test, seed=0)[0])
    assert found["labels"].value is None
    assert "batch_size" in found["labels"].meaning
    damaged = replace(release, gradient={name: torch.full_like(g, torch.nan) for name, g in release.gradient.items()})
    for row in gather_evidence(damaged, batch, parts.test, seed=0)[0]:
        assert row.p is None or row.p > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("records", "held_out"), [(1000, 99), (1000, 300), (100, 600)])
def test_rate_at_one_per_cent_allows_for_a_threshold_from_a_sample(records: int, held_out: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def sample(size: int) -> torch.Tensor:
        return torch.rand(size, generator=generator).double()

    above = sum(identified_at_fpr(sample(records), sample(held_out)).low > 0.01 for _ in range(100))
    assert above <= 3  # the binomial interval alone: about 18 of the first
    leaking = identified_at_fpr(2 + sample(records), sample(held_out))
    assert leaking.value == leaking.high == 1.0
    assert leaking.low > (0.9 if held_out >= 600 else 0.2)


def test_auc_of_few_records_has_a_wide_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    others = torch.rand(300, generator=generator).double()
    for records in (1, 3, 10):
        areas = [auc(torch.rand(records, generator=generator).double(), others) for _ in range(200)]
        outside = [area for area in areas if not auc_of_few(area, records).low <= 0.5 <= auc_of_few(area, records).high]
        assert len(outside) <= 10  # a bootstrap of one record: more than half of them
    assert auc_of_few(1.0, 1).low < 0.05
    assert auc_of_few(1.0, 19).low > 0.8


def test_copies_are_no_further_evidence(digits: Data) -> None:
    images = split(as_images(digits), private=100, fixed=0, public=300, test=400, seed=0)
    few = images.private.take(slice(0, 20))
    model = published(fitted(seeded(SmallCNN), images.public), few)
    once, _ = gather_evidence(model, few, images.test, seed=0)
    copied, _ = gather_evidence(model, few.take(torch.arange(20).repeat(10)), images.test, seed=0)
    assert once == copied


@pytest.mark.parametrize("squared", [True, False])
def test_membership_of_a_model_of_one_output_is_measured_by_the_loss_that_trained_it(squared: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(560, 30, generator=generator)
    y = ((x @ torch.randn(30, generator=generator) + 2 * torch.randn(560, generator=generator)) > 0).long()
    data = Data(x=x, y=y, num_classes=2, bounds=(-float("inf"), float("inf")))
    private, others = data.take(slice(0, 60)), data.take(slice(60, 560))
    model = seeded(lambda: small_mlp(30, 200, 1))
    loss = torch.nn.functional.mse_loss if squared else torch.nn.functional.binary_cross_entropy_with_logits
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        loss(model(private.x)[:, 0], private.y.float()).backward()
        optimizer.step()
    release = WeightsOnly(model=model, final=weights(model), shape=(30,), num_classes=2, bounds=data.bounds)
    rows = by_name(gather_evidence(release, private, others, seed=0)[0])
    with torch.no_grad():
        each = [loss(model(part.x)[:, 0], part.y.float(), reduction="none").numpy() for part in (private, others)]
    wins = (each[0][:, None] < each[1]).mean() + (each[0][:, None] == each[1]).mean() / 2
    assert wins > 0.7
    assert rows["membership by loss: AUC"].value == pytest.approx(wins, abs=0.02)
    warned = [check for check in preflight(release, private, others).checks if check.name == "outputs"]
    assert [check.status for check in warned] == (["warning"] if squared else [])


def test_membership_of_a_training_with_label_smoothing_is_measured_by_the_smoothed_loss(digits: Data) -> None:
    parts = split(as_images(digits), private=60, fixed=0, public=0, test=500, seed=0)
    model = seeded(small_mlp)
    initial, optimizer = weights(model), torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(parts.private.x), parts.private.y, label_smoothing=0.3).backward()
        optimizer.step()
    training = Training(loss=CrossEntropy(label_smoothing=0.3), optimizer=Adam(lr=3e-3), epochs=200)
    shown = {"model": model, "initial": initial, "final": weights(model), "shape": (1, 8, 8), "num_classes": 10}
    values = []
    for release in (FineTunedUnknownRecipe(**shown), FineTuned(**shown, training=training)):
        rows = by_name(gather_evidence(release, parts.private, parts.test, seed=0, seconds=1)[0])
        values.append(rows["membership by loss: AUC"].value or 0.0)
    assert values[0] < 0.9 < 0.97 < values[1]
