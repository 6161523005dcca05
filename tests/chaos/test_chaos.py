"""A few kills of real runs: the long version is `python tests/chaos --kills 100`."""

from pathlib import Path
from random import Random

import pytest
from disturbing import disturbed, undisturbed
from scenarios import SCENARIOS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run, searches", "audit model"])
def test_a_run_that_is_killed_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    expected, seconds = undisturbed(SCENARIOS[name], tmp_path / "alone")
    assert expected
    kills = 0
    for fraction in (1.0, 0.5, 0.2):  # on a machine that is less busy by now, a run may end before its first kill
        folder = tmp_path / f"killed-{fraction}"
        folder.mkdir()
        moments = fraction * seconds
        trial = disturbed(SCENARIOS[name], folder, expected, random=Random(0), seconds=moments, kills=3)
        assert trial.wrong == ""
        kills += len(trial.kills)
        if kills:
            break
    assert kills
