"""The preflight of an audit: what stops it, what it warns of, and the numbers that it takes."""

from collections.abc import Callable
from dataclasses import replace
from time import process_time

import pytest
import torch
from auditing.nets import SmallCNN, as_images, fitted, published, seeded, small_mlp, status, weights
from refusals import refused
from torch import Tensor, nn

from remanence.auditing.answer.report import PreflightSummary
from remanence.auditing.attempts.settings import outputs
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.inputs.updates import update_release
from remanence.data import Split, split
from remanence.engine import train
from remanence.releases import FineTuned, WeightsOnly, gradient_at_initial, train_victim
from remanence.training import SGD, Training
from remanence.types import Data


@pytest.fixture(scope="module")
def images(digits: Data) -> Split:
    return split(as_images(digits), private=200, fixed=0, public=300, test=1000, seed=0)


@pytest.fixture(scope="module")
def cnn(images: Split) -> WeightsOnly:
    return published(fitted(seeded(SmallCNN), images.private), images.private)


@pytest.fixture(scope="module")
def tuned(images: Split) -> FineTuned:
    model = fitted(seeded(small_mlp), images.public)
    initial = weights(model)
    final = weights(fitted(model, images.private, epochs=20))
    return FineTuned(
        model=model,
        final=final,
        shape=(1, 8, 8),
        num_classes=10,
        initial=initial,
        training=Training(optimizer=SGD(lr=0.1)),
    )


def stops(summary: PreflightSummary) -> list[str]:
    return [check.name for check in summary.checks if check.status == "stop"]


def test_a_cnn_as_users_have_it_passes_in_seconds(cnn: WeightsOnly, images: Split) -> None:
    start = process_time()  # not found.seconds, which a busy machine makes as many as it likes
    found = preflight(cnn, images.private, images.test)
    assert process_time() - start < 10
    assert found.seconds > 0
    assert not stops(found)
    assert status(found, "normalize") == status(found, "accuracy") == status(found, "labels") == "ok"
    assert status(found, "dropout") == "note"
    assert (found.numbers["private_accuracy"] or 0) > (found.numbers["held_out_accuracy"] or 0) > 0.8
    assert (found.numbers["batchnorm_shift"] or 1) < 0.1
    assert found.numbers["parameters_per_unknown"] == pytest.approx(10026 / (200 * 64))


@pytest.mark.parametrize(
    ("mean", "std", "option"),
    [(0.1307, 0.3081, "--normalize 0.1307,0.3081"), (0.5, 0.5, "--normalize 0.5,0.5"), (0.0, 1 / 255, "0,0.003922")],
)
def test_an_unstated_normalisation_is_named(images: Split, mean: float, std: float, option: str) -> None:
    release = published(fitted(seeded(SmallCNN), images.private, mean=mean, std=std), images.private)
    found = preflight(release, images.private, images.test)
    assert status(found, "normalize") == "warning"
    assert any(option in check.text for check in found.checks)


def test_a_normalisation_that_the_model_holds_is_the_stated_one(images: Split) -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.register_buffer("mean", torch.tensor(0.1307))
            self.register_buffer("std", torch.tensor(0.3081))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner((x - self.mean) / self.std)

    inner = fitted(seeded(SmallCNN), images.private, mean=0.1307, std=0.3081)
    found = preflight(published(Wrapped(inner).eval(), images.private), images.private, images.test)
    assert status(found, "normalize") == "ok"
    raw = fitted(seeded(SmallCNN), images.private)
    wrong = preflight(published(Wrapped(raw).eval(), images.private), images.private, images.test)
    assert status(wrong, "normalize") == "warning"
    assert any("--normalize 0,1" in check.text for check in wrong.checks)


def test_sets_that_are_swapped_stop(images: Split) -> None:
    release = published(fitted(seeded(SmallCNN), images.private, epochs=30), images.private)
    assert stops(preflight(release, images.test, images.private)) == ["held-out"]
    assert not stops(preflight(release, images.private, images.test))


def test_labels_that_are_not_those_of_the_training_are_not_called_swapped_sets(images: Split) -> None:
    release = published(fitted(seeded(SmallCNN), images.private, epochs=30), images.private)
    private, held_out = (replace(data, y=(data.y + 3) % 10) for data in (images.private, images.test))
    found = preflight(release, private, held_out)
    assert not stops(found)
    assert status(found, "accuracy") == "warning"
    found = preflight(release, private, images.test)
    assert stops(found) == ["held-out"]
    assert any("or the private labels are not those of the training" in check.text for check in found.checks)


def test_copies_of_a_few_hard_records_do_not_make_sets_look_swapped(images: Split) -> None:
    """Fifteen records that an unrelated model finds hard are too few to say anything, however often each is given."""
    model = fitted(seeded(small_mlp), images.public)
    losses = nn.functional.cross_entropy(model(images.private.x), images.private.y, reduction="none")
    hard = images.private.take(losses.argsort(descending=True)[28:43])
    many = hard.take(torch.arange(15).repeat(8))
    once, often = (preflight(published(model, hard), data, images.test) for data in (hard, many))
    assert not stops(often)
    assert once.numbers["private_loss"] == pytest.approx(often.numbers["private_loss"])


def test_weights_that_are_swapped_with_their_base_are_noticed(tuned: FineTuned, images: Split) -> None:
    exchanged = replace(tuned, initial=tuned.final, final=tuned.initial)
    found = [check for check in preflight(exchanged, images.private, images.test).checks if check.status == "warning"]
    assert [check.name for check in found] == ["base"]
    assert "swapped (`--weights`" in found[0].text
    assert status(preflight(tuned, images.private, images.test), "base") == "ok"


def test_a_model_that_saw_neither_set_does_not_look_swapped(images: Split) -> None:
    release = published(fitted(seeded(small_mlp), images.public), images.private)
    assert not stops(preflight(release, images.private, images.test))
    assert not stops(preflight(release, images.test, images.private))


def test_records_in_both_sets_stop_and_a_few_warn(cnn: WeightsOnly, images: Split) -> None:
    assert stops(preflight(cnn, images.private, images.private)) == ["held-out"]
    few = replace(images.test, x=images.test.x.clone())
    few.x[:3] = images.private.x[:3]
    found = preflight(cnn, images.private, few)
    assert status(found, "held-out") == "warning"
    assert found.numbers["records_in_both_sets"] == 3


def test_labels_from_one_stop(images: Split) -> None:
    wide = fitted(seeded(lambda: small_mlp(classes=11)), images.private, epochs=30)
    shifted = [Data(x=data.x, y=data.y + 1, num_classes=11) for data in (images.private, images.test)]
    release = WeightsOnly(model=wide, final=weights(wide), shape=(1, 8, 8), num_classes=11)
    assert stops(preflight(release, *shifted)) == ["labels"]
    narrow = replace(release, model=small_mlp(), final=weights(seeded(small_mlp)))
    assert stops(preflight(narrow, *shifted)) == ["labels"]  # beyond the outputs


def test_records_of_one_class_stop_and_a_class_nobody_held_out_warns(cnn: WeightsOnly, images: Split) -> None:
    sevens = [data.take(data.y == 7) for data in (images.private, images.test)]
    assert stops(preflight(cnn, *sevens)) == ["labels"]
    found = preflight(cnn, images.private, images.test.take(images.test.y != 3))
    assert status(found, "labels") == "warning"


def test_weights_and_records_that_do_not_fit_the_model_stop(cnn: WeightsOnly, images: Split) -> None:
    broken = cnn.final | {"head.bias": torch.full((10,), torch.nan)}
    assert stops(preflight(replace(cnn, final=broken), images.private, images.test)) == ["weights"]
    lacking = {name: p for name, p in cnn.final.items() if name != "head.bias"}
    assert stops(preflight(replace(cnn, final=lacking), images.private, images.test)) == ["weights"]
    larger = [replace(data, x=data.x.repeat(1, 1, 2, 2)) for data in (images.private, images.test)]
    assert stops(preflight(replace(cnn, shape=(1, 16, 16)), *larger)) == ["model"]


def test_a_base_that_is_right_wrong_or_the_model_itself(tuned: FineTuned, images: Split) -> None:
    found = preflight(tuned, images.private, images.test)
    assert not stops(found)
    assert status(found, "base") == "ok"
    assert found.updated_layers == ("1", "3")
    other = replace(tuned, initial=weights(seeded(small_mlp, seed=5)))
    assert stops(preflight(other, images.private, images.test)) == ["base"]
    decayed = replace(other, training=replace(tuned.training, weight_decay=0.1))
    assert status(preflight(decayed, images.private, images.test), "base") == "warning"
    assert stops(preflight(replace(tuned, initial=tuned.final), images.private, images.test)) == ["base"]
    wider = replace(tuned, initial=weights(seeded(lambda: small_mlp(hidden=64))))
    assert stops(preflight(wider, images.private, images.test)) == ["base"]


def test_the_layers_that_were_updated_and_a_head_that_was_reset(tuned: FineTuned, images: Split) -> None:
    body = {name: tuned.initial[name] for name in ("1.weight", "1.bias")}
    found = preflight(replace(tuned, final=tuned.final | body), images.private, images.test)
    assert found.updated_layers == ("3",)
    assert status(found, "layers") == "note"
    head = {name: p for name, p in weights(seeded(small_mlp, seed=5)).items() if name.startswith("3")}
    reset = preflight(replace(tuned, initial=tuned.initial | head), images.private, images.test)
    assert status(reset, "base") == "warning"


def test_batchnorm_statistics_that_changed_are_said(cnn: WeightsOnly, images: Split) -> None:
    model = fitted(seeded(SmallCNN), images.public, epochs=5)
    initial = weights(model)
    final = weights(fitted(model, images.private, epochs=2))
    release = FineTuned(
        model=cnn.model, final=final, shape=(1, 8, 8), num_classes=10, initial=initial, training=Training(epochs=2)
    )
    assert status(preflight(release, images.private, images.test), "batchnorm") == "warning"
    statistics = {name: p for name, p in initial.items() if "running" in name or "tracked" in name}
    frozen = replace(release, final=final | statistics)
    assert status(preflight(frozen, images.private, images.test), "batchnorm") == "ok"


def test_weights_that_decay_holds_in_balance_are_stationary(images: Split) -> None:
    private = images.private.take(slice(0, 20)).to("cpu", torch.float64)
    model = small_mlp(hidden=32).double()
    training = Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=800, weight_decay=0.02)
    initial = {name: p.double() for name, p in weights(seeded(lambda: small_mlp(hidden=32))).items()}
    victim = train_victim(model, training, initial, private.take(slice(0, 0)), private, seed=0)
    release = FineTuned(
        model=model, final=victim.final, shape=(1, 8, 8), num_classes=10, initial=initial, training=training
    )
    others = images.test.to("cpu", torch.float64)
    found = preflight(release, private, others).numbers
    assert (found["stationarity_cosine"] or 0) > 0.9
    assert found["gradient_over_decay"] == pytest.approx(1, abs=0.1)
    early = replace(release, final=initial | {"3.bias": initial["3.bias"] + 1e-3})
    assert (preflight(early, private, others).numbers["stationarity_cosine"] or 0) < 0.5


def test_an_update_is_explained_by_its_records_and_not_by_others(images: Split) -> None:
    model, batch = small_mlp(), images.private.take(slice(0, 16))
    initial = weights(seeded(small_mlp))
    victim = train_victim(model, Training(epochs=1), initial, batch.take(slice(0, 0)), batch, seed=0)
    release = gradient_at_initial(victim).release
    found = preflight(release, batch, images.test)
    assert not stops(found)
    assert found.numbers["update_cosine"] == pytest.approx(1, abs=1e-4)
    nothing = replace(release, gradient={name: 0 * g for name, g in release.gradient.items()})
    assert stops(preflight(nothing, batch, images.test)) == ["update"]
    other = preflight(replace(release, at=weights(seeded(small_mlp, seed=3))), batch, images.test)
    assert status(other, "update") == "warning"


@pytest.mark.parametrize(
    ("lr", "batch_size", "expected"),
    [(0.05, None, "ok"), (0.5, None, "warning"), (0.005, None, "warning"), (0.05, 4, "ok"), (0.005, 4, "warning")],
)
def test_an_update_that_is_much_longer_or_shorter_than_its_stated_training_is_warned_of(
    images: Split, lr: float, batch_size: int | None, expected: str
) -> None:
    model, batch = small_mlp(), images.private.take(slice(0, 16))
    before = weights(seeded(small_mlp))
    client = Training(optimizer=SGD(lr=0.05), epochs=1, batch_size=batch_size)
    stated = replace(client, optimizer=SGD(lr=lr))
    made = update_release(
        *(model, before, train(client, model, before, batch, seed=0), stated),
        **{"batch_size": 16, "shape": batch.shape, "num_classes": 10},
    )
    found = preflight(made.release, batch, images.test)
    assert status(found, "update") == expected
    assert (found.numbers["update_cosine"] or 0) > 0.9


@pytest.mark.parametrize(("mean", "expected"), [(0.0, "ok"), (5.0, "warning")])
def test_frozen_batchnorm_that_kept_nothing_yet_says_nothing_of_the_preprocessing(
    images: Split, mean: float, expected: str
) -> None:
    model, batch = seeded(SmallCNN).eval(), images.private.take(slice(0, 16))
    before = {name: p.clone() for name, p in model.state_dict().items()}
    before["norm1.running_mean"] += mean
    after = before | {"head.bias": before["head.bias"] + 0.01}
    stated = Training(optimizer=SGD(lr=0.1), epochs=1)
    made = update_release(model, before, after, stated, batch_size=16, shape=batch.shape, num_classes=10)
    found = preflight(made.release, batch, images.test)
    assert status(found, "normalize") == expected
    assert (found.numbers["batchnorm_shift"] is None) == (expected == "ok")


class Odd(nn.Module):
    """A network around another, whose outputs are changed by `change`."""

    def __init__(self, inner: nn.Module, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x: Tensor) -> object:
        return self.change(self.inner(x))


class TwoInputs(Odd):
    def forward(self, x: Tensor, z: Tensor) -> object:
        return self.change(self.inner(x + z))


ODD: dict[str, tuple[type[Odd], Callable[[Tensor], object]]] = {
    "a dict": (Odd, lambda z: {"logits": z}),
    "a tuple": (Odd, lambda z: (z, z)),
    "images": (Odd, lambda z: z[:, :, None, None]),
    "one row": (Odd, lambda z: z.mean(0, keepdim=True)),
    "two inputs": (TwoInputs, lambda z: z),
}


@pytest.mark.parametrize("case", ODD)
def test_models_that_are_no_classifier_of_one_input_stop_with_a_way_out(
    case: str, tuned: FineTuned, images: Split
) -> None:
    kind, change = ODD[case]
    final = {f"inner.{name}": p for name, p in tuned.final.items()}
    odd = WeightsOnly(model=kind(tuned.model, change).eval(), final=final, shape=(1, 8, 8), num_classes=10)
    found = preflight(odd, images.private, images.test)
    assert stops(found) == ["model"]
    assert "forward(x)" in found.checks[-1].text
    with refused("shape-mismatch" if kind is TwoInputs else "unsupported-model", "model"):
        outputs(odd)


def test_outputs_that_are_probabilities_are_warned_of(tuned: FineTuned, images: Split) -> None:
    final = {f"inner.{name}": p for name, p in tuned.final.items()}
    for change, expected in ((nn.Softmax(1), "warning"), (nn.LogSoftmax(1), None)):
        model = Odd(tuned.model, change).eval()
        release = WeightsOnly(model=model, final=final, shape=(1, 8, 8), num_classes=10)
        assert status(preflight(release, images.private, images.test), "outputs") == expected


def test_probabilities_of_a_model_that_fits_cause_no_other_warning(images: Split) -> None:
    """An accuracy of 0.5 is a logit of 0: the reference is that of the model without its sigmoid."""
    two = [replace(data, y=(data.y > 4).long(), num_classes=2) for data in (images.private, images.test)]
    binary = fitted(seeded(lambda: small_mlp(classes=2)), two[0], epochs=30)
    weight, bias = (weights(binary)[f"3.{name}"].diff(dim=0)[0] for name in ("weight", "bias"))
    one = small_mlp(classes=1)
    params = weights(binary) | {"3.weight": weight[None], "3.bias": bias[None]}
    found = {}
    for name, last in (("logit", nn.Identity()), ("sigmoid", nn.Sigmoid())):
        model = nn.Sequential(*one, last).eval()
        found[name] = preflight(WeightsOnly(model=model, final=params, shape=(1, 8, 8), num_classes=2), *two)
    assert [check.name for check in found["sigmoid"].checks if check.status == "warning"] == ["outputs"]
    assert status(found["sigmoid"], "accuracy") == "ok"
    assert status(found["sigmoid"], "normalize") is None
    for name in ("private_accuracy", "held_out_accuracy", "private_loss", "held_out_loss"):
        assert found["sigmoid"].numbers[name] == pytest.approx(found["logit"].numbers[name], rel=1e-3)


class Brightness(nn.Module):
    """Bright images are of class 1: right on about two thirds of classes that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        z = self.scale * (x.mean((1, 2, 3)) - 0.5)
        return torch.stack([-z, z], dim=1)


def test_records_in_the_order_of_their_classes_are_not_taken_for_another_preprocessing() -> None:
    generator = torch.Generator().manual_seed(0)

    def sorted_images(each: int) -> Data:
        y = torch.arange(2).repeat_interleave(each)  # as from a folder of images
        mean = 0.45 + 0.1 * y + 0.1 * torch.randn(2 * each, generator=generator)
        x = mean[:, None, None, None] + 0.05 * torch.randn(2 * each, 1, 4, 4, generator=generator)
        return Data(x=x.clamp(0, 1), y=y, num_classes=2)

    private, held_out = sorted_images(200), sorted_images(500)
    model = Brightness()
    release = WeightsOnly(model=model, final=model.state_dict(), shape=(1, 4, 4), num_classes=2)
    assert status(preflight(release, private, held_out), "normalize") == "ok"
