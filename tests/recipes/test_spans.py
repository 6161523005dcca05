"""What one SVD tells of a table with fewer features than records: nothing that may be called their number."""

import torch

from remanence.data import split
from remanence.types import Data
from remanence_recipes.spans import span_study


def test_the_rank_of_a_narrow_table_is_not_taken_for_its_records() -> None:
    x = torch.rand(300, 6, generator=torch.Generator().manual_seed(0))
    data = Data(x=x, y=(x[:, 0] > 0.5).long(), num_classes=2)
    study = span_study("narrow", lambda seed: split(data, private=20, fixed=0, public=0, test=250, seed=seed))
    outcome = study.run(0, torch.device("cpu"))
    rank = next(measure.value for measure in outcome.measures)
    assert 0 < rank < 6  # a gap is clear
    assert [caveat.code for caveat in outcome.caveats] == ["records-outside"]
