"""Every parser of files from outside parses or refuses: no traceback, nothing executed, no endless message."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutation import KINDS, Edit, damage
from targets import CANARY, Target, past_failures, target_named, target_names
from trial import try_file

EDITS = st.lists(
    st.builds(Edit, kind=st.sampled_from(KINDS), at=st.floats(0, 1, width=16), detail=st.integers(0, 255)), max_size=6
)


def assert_handled(target: Target, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    outcome = try_file(target, path)
    assert not outcome.failed, f"{outcome.verdict}: {outcome.said}"
    assert outcome.seconds < target.max_seconds
    assert not CANARY.exists()


@pytest.mark.parametrize("name", target_names())
def test_valid_files_are_parsed(name: str, tmp_path: Path) -> None:
    target = target_named(name)
    for file, content in target.seeds().items():
        (tmp_path / file).write_bytes(content)
        outcome = try_file(target, tmp_path / file)
        assert outcome.verdict == "parsed", f"{file}: {outcome.said}"


@pytest.mark.parametrize(("name", "file"), [(name, file) for name in target_names() for file in past_failures(name)])
def test_past_failures_are_handled(name: str, file: str, tmp_path: Path) -> None:
    assert_handled(target_named(name), tmp_path / file, past_failures(name)[file])


@pytest.mark.slow
@pytest.mark.parametrize("name", target_names())
def test_crafted_files_are_handled(name: str, tmp_path: Path) -> None:
    target = target_named(name)
    for file, content in target.crafted():
        assert_handled(target, tmp_path / file, content)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in target_names() if target_named(name).made])
def test_hostile_files_that_fit_the_format_are_handled(name: str, tmp_path: Path) -> None:
    target, random = target_named(name), Random(0)
    assert target.made
    for _ in range(100):
        file, content = target.made(random)
        assert_handled(target, tmp_path / file, content)


@pytest.mark.slow
@pytest.mark.parametrize("name", target_names())
def test_damaged_files_are_handled(name: str, tmp_path: Path) -> None:
    target = target_named(name)
    seeds = target.seeds()

    @settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(seeds)), st.sampled_from(sorted(seeds)), EDITS)
    def handled(file: str, other: str, edits: list[Edit]) -> None:
        damaged = damage(seeds[file], edits, other=seeds[other], words=target.words)
        assert_handled(target, tmp_path / file, damaged)

    handled()
