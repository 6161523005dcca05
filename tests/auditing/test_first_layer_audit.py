"""What one SVD of a first layer shows: the number of records, but not of a table with fewer features than records."""

from functools import partial

import torch

from remanence.auditing.demo_models.first_layer import span_experiment
from remanence.auditing.demo_models.presets import audit_experiments
from remanence.data import load, split
from remanence.experiments import run_experiment
from remanence.types import Data


def test_the_rank_of_a_narrow_table_is_not_taken_for_its_records() -> None:
    x = torch.rand(300, 6, generator=torch.Generator().manual_seed(0))
    data = Data(x=x, y=(x[:, 0] > 0.5).long(), num_classes=2)
    experiment = span_experiment(lambda seed: split(data, private=20, fixed=0, public=0, test=250, seed=seed))
    outcome = run_experiment(experiment).outcome
    rank = outcome.measures[0].value or 0
    assert 0 < rank < 6  # a gap is clear
    assert [caveat.code for caveat in outcome.caveats] == ["records-outside"]


def test_an_audit_of_an_mlp_tells_the_number_of_its_records() -> None:
    *_, experiment = audit_experiments(partial(load, "digits"), "mlp", None, named="digits")
    outcome = run_experiment(experiment, seed=1).outcome
    found = {measure.name: measure.value for measure in outcome.measures}
    assert found["training records, by the rank"] == 50
    assert found["private records identified"] == found["AUC"] == 1
    assert (found["held-out records taken for private ones"] or 0) < 0.04
    assert not outcome.caveats
