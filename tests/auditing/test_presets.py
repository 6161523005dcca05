"""What an audit says of where its attacks' settings come from."""

from functools import partial

import pytest

from remanence.auditing.demo_models.presets import attack_experiments
from remanence.data import load

BATCH, CHOSEN, INFORMED = (
    "gradient of a batch",
    "gradient of a batch, at weights that the server chose",
    "all records but one",
)


@pytest.mark.parametrize(
    ("named", "looked_at"),
    [("digits", {BATCH, INFORMED}), ("cifar10", {CHOSEN}), ("patients.csv", set()), (None, set())],
)
def test_an_experiment_says_whether_its_attack_was_tuned_on_the_truth_of_this_data(
    named: str | None, looked_at: set[str]
) -> None:
    experiments = attack_experiments(partial(load, "digits"), named=named)
    assert {each.label for each in experiments if each.tuned_on_truth} == looked_at
