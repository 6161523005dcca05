"""The help of every command, its examples, and the completion of the shell."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from command_line import Call

from remanence.cli import app


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group below, with the words that call it."""
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)


PROGRAM = typer.main.get_command(app)
COMMANDS = dict(commands(PROGRAM))


@pytest.fixture(params=COMMANDS, ids=lambda names: " ".join(names) or "program")
def command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    names: tuple[str, ...] = request.param
    return names


def test_the_help_has_no_python_types(call: Call, command: tuple[str, ...]) -> None:
    said = call(*command, "--help")
    assert (said.code, said.err) == (0, "")
    assert not re.search(r"<[a-z]|\b(TEXT|INTEGER|FLOAT|PATH|str|int|float|bool|None)\b|list\[", said.out)


def test_the_help_has_examples_that_can_be_given(call: Call, command: tuple[str, ...]) -> None:
    said = call(*command, "--help").out
    examples = [line.strip() for line in re.split(r"\n  Examples?:\n", said)[1].splitlines()]
    assert examples
    for example in examples:
        program, *words = shlex.split(example.partition(" > ")[0])
        assert (program, tuple(words[: len(command)])) == ("remanence", command)
        names = max((each for each in COMMANDS if tuple(words[: len(each)]) == each), key=len)
        COMMANDS[names].make_context(" ".join(names), words[len(names) :])  # raises what it cannot parse


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("remanence au", ["audit"]),
        ("remanence audit d", ["data"]),
        ("remanence run name --sc", ["--scale"]),
        ("remanence run name --scale s", ["smoke", "small"]),
        ("remanence audit data --net ", ["mlp", "cnn"]),
    ],
)
def test_bash_completes_commands_options_and_values(
    call: Call, monkeypatch: pytest.MonkeyPatch, line: str, offered: list[str]
) -> None:
    monkeypatch.setenv("_REMANENCE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    said = call()
    assert (said.code, said.out.split()) == (0, offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion_script(call: Call, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_REMANENCE_COMPLETE", f"source_{shell}")
    said = call()
    assert said.code == 0
    assert f"_REMANENCE_COMPLETE=complete_{shell}" in said.out
