"""Audits of records that do not lie in [0, 1]: the release's box, the answer and the page's examples."""

from dataclasses import replace
from math import inf

import pytest
import torch
from auditing.nets import seeded, small_mlp, weights
from refusals import refused

from remanence import audit
from remanence.auditing.answer.examples import examples_of
from remanence.auditing.inputs.records import as_data
from remanence.auditing.inputs.updates import update_release
from remanence.experiments.summary import as_pixels, black_and_white
from remanence.releases import Gradient, WeightsOnly, gradient_at_initial, train_victim
from remanence.training import SGD, Training
from remanence.types import Data

FREE = (-inf, inf)


def rows(count: int, seed: int) -> Data:
    x = 3 * torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))
    return Data(x=x, y=torch.arange(count) % 10, num_classes=10, bounds=FREE)


def released(private: Data) -> Gradient:
    model, initial = small_mlp(), weights(seeded(small_mlp))
    victim = train_victim(model, Training(epochs=1), initial, private.take([]), private, seed=0)
    return gradient_at_initial(victim).release


@pytest.mark.slow
def test_standardised_rows_are_found_and_others_are_not() -> None:
    private, others = rows(8, 0), rows(400, 1)
    report = audit(released(private), truth=private, held_out=others, budget=20, attacks=["FirstLayer", "Stein"])
    assert [row.found for row in report.attacks if row.name == "FirstLayer"] == [8]
    clean = audit(released(rows(8, 2)), truth=private, held_out=others, budget=20, attacks=["FirstLayer"])
    assert [row.found for row in clean.attacks] == [0]
    shown = examples_of(report.findings["FirstLayer"], private)
    assert shown.metric == "cosine"
    assert float(shown.same.min()) == 1
    torch.testing.assert_close(shown.truth, private.x[shown.record])


def test_records_outside_of_the_box_of_a_release_are_refused() -> None:
    private = rows(4, 0)
    shown = WeightsOnly(model=small_mlp(), final=weights(seeded(small_mlp)), shape=(64,), num_classes=10)
    with refused("out-of-range", "truth") as refusal:
        as_data(private, shown, "truth")
    assert "bounds=(-inf, inf)" in str(refusal.value)
    with refused("out-of-range"):
        as_data((private.x, private.y), shown, "truth")
    free = replace(shown, bounds=FREE)
    assert as_data((private.x.numpy(), private.y.numpy()), free, "truth").bounds == FREE
    small = Data(x=private.x.clamp(0, 1), y=private.y, num_classes=10)
    assert as_data(small, free, "truth").bounds == FREE  # where attacks search
    assert as_data(replace(small, bounds=FREE), shown, "truth").is_unit


def test_an_update_has_the_box_that_is_given() -> None:
    model, before = small_mlp(), weights(seeded(small_mlp))
    after = {name: p + 0.01 for name, p in before.items()}
    for training in (None, Training(optimizer=SGD(lr=0.1), epochs=1)):
        made = update_release(model, before, after, training, batch_size=4, shape=(64,), num_classes=10, bounds=FREE)
        assert made.release.bounds == FREE


@pytest.mark.parametrize(("bounds", "black", "white"), [((-1.0, 1.0), -1.0, 1.0), (FREE, -2.0, 3.0)], ids=str)
def test_images_are_shown_from_one_side_of_their_box_to_the_other(
    bounds: tuple[float, float], black: float, white: float
) -> None:
    x = torch.linspace(max(bounds[0], -2), min(bounds[1], 3), 6).reshape(1, 1, 2, 3)
    data = Data(x=x, y=torch.tensor([0]), num_classes=1, bounds=bounds)
    assert black_and_white(data) == (black, white)
    assert as_pixels(x, black_and_white(data)).flatten().tolist() == [0, 51, 102, 153, 204, 255]
    beyond = torch.tensor([black - 9, white + 9]).view(1, 1, 1, 2)
    assert as_pixels(beyond, black_and_white(data)).flatten().tolist() == [0, 255]
