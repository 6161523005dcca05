"""A few kills of real runs: the long version is `python tests/chaos --kills 100`."""

from pathlib import Path
from random import Random

import pytest
from disturbing import disturbed, undisturbed
from scenarios import SCENARIOS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run, searches", "audit model"])
def test_a_run_that_is_killed_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    for folder in ("alone", "killed"):
        (tmp_path / folder).mkdir()
    expected, seconds = undisturbed(SCENARIOS[name], tmp_path / "alone")
    assert expected
    trial = disturbed(SCENARIOS[name], tmp_path / "killed", expected, random=Random(0), seconds=seconds, kills=3)
    assert trial.wrong == ""
    assert trial.kills
