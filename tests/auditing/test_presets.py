"""What an audit says of where its attacks' settings come from."""

from functools import partial

import pytest

from remanence.attacks import TrainingInversion
from remanence.auditing.demo_models.presets import attack_experiments, audit_experiments
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


def test_inverting_the_training_is_run_on_request_alone() -> None:
    records = partial(load, "digits")
    asked = audit_experiments(records, "cnn", ["TrainingInversion"], named="digits")
    assert [type(each.attack) for each in asked] == [TrainingInversion]
    assert asked[0].victims is not None
    parts = asked[0].victims.split(0)
    assert len(parts.private) == 3
    assert len(parts.fixed) > 0 == len(parts.public)
    usual = audit_experiments(records, "mlp", None, named="digits")
    assert not any(isinstance(each.attack, TrainingInversion) for each in usual)
