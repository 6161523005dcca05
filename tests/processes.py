"""The processes below one: their numbers and commands, as Linux shows them."""

import os
import signal
import time
from pathlib import Path


def below(process: int) -> dict[int, str]:
    """The commands of all processes that `process` started, directly or not, by their numbers."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found, waiting = dict[int, str](), [process]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = _command(child)
            waiting.append(child)
    return found


def find_below(process: int, word: str, *, seconds: float = 60) -> list[int]:
    """The processes below `process` that have `word` in the first word of their command, as soon as there is one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := [number for number, command in below(process).items() if word in command.split(" ")[0]]:
            return found
        time.sleep(0.05)
    return []


def kill_all(processes: list[int]) -> None:
    """End these processes, by their numbers; those that ended already are left alone."""
    for each in processes:
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
