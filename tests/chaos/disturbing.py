"""One trial: a run that is killed several times, its store damaged in between, and then left to end."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, final

from processes import below, find_below, kill_all
from scenarios import SIGNALS, Scenario

DAMAGES = ("flipped bit", "truncated", "changed number")
_CODES = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130}
_PATIENCE = 300.0  # seconds for a run to end


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """The kills that hit a running command, the damages between them, and what was wrong: nothing if all is well."""

    kills: tuple[str, ...]
    damages: tuple[str, ...]
    wrong: str = ""


def undisturbed(scenario: Scenario, folder: Path) -> tuple[dict[str, Any], float]:
    """What the command makes when it is left alone, and the seconds that it takes."""
    scenario.prepare(folder)
    start = time.monotonic()
    code, err = _ended(scenario.start(folder))
    assert code == 0, err
    return scenario.result(folder), time.monotonic() - start


def disturbed(
    scenario: Scenario, folder: Path, expected: Mapping[str, Any], *, random: Random, seconds: float, kills: int
) -> Trial:
    """Kill the command at random moments of its `seconds`, start it again each time, and compare what it makes."""
    scenario.prepare(folder)
    hits, damages, wrong = list[str](), list[str](), ""
    while len(hits) < kills and not wrong and not scenario.finished(folder):
        kind = random.choice(scenario.kills)
        hit, wrong = _killed(scenario, folder, kind, random.uniform(0.2, 0.8) * seconds)
        if not hit:
            break
        hits.append(kind)
        files = scenario.stored(folder)
        if files and random.random() < 0.4:
            damages.append(_damage(random.choice(files), random))
    if not wrong and not scenario.finished(folder):
        code, err = _ended(scenario.start(folder))
        wrong = f"the last run ended with {code}: {err[-500:]}" if code else ""
    return Trial(
        kills=tuple(hits), damages=tuple(damages), wrong=wrong or _difference(scenario.result(folder), expected)
    )


def _killed(scenario: Scenario, folder: Path, kind: str, after: float) -> tuple[bool, str]:
    """Start the command and kill it or a process below it: whether it was hit before its end, and what was wrong."""
    run = scenario.start(folder)
    time.sleep(after)
    found = [] if kind in SIGNALS else find_below(run.pid, kind, seconds=20)[:1]
    others, hit = below(run.pid), run.poll() is None if kind in SIGNALS else bool(found)
    if kind in SIGNALS:
        run.send_signal(signal.Signals[kind])
    kill_all(found)
    code, err = _ended(run)
    _remove(others)
    if code == 0:
        return hit and kind not in SIGNALS, ""  # the death of a worker need not end it
    fine = code == _CODES.get(kind, 1) and "Traceback" not in err and "defect" not in err
    outside = code == -_number(kind)  # while Python itself was starting or ending
    early = kind == "SIGINT" and err.rstrip().endswith("KeyboardInterrupt")
    return hit, "" if fine or outside or early else f"{kind} ended it with {code}: {err[-500:]}"


def _number(kind: str) -> int:
    return signal.Signals[kind] if kind in SIGNALS else 0


def _ended(run: "subprocess.Popen[str]") -> tuple[int, str]:
    try:
        _, err = run.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        run.kill()
        _, err = run.communicate()
        return 124, f"no end within {_PATIENCE:g} seconds; {err}"
    return run.returncode, err


def _remove(processes: Mapping[int, str]) -> None:
    """End what a killed command left behind: the parts of a Ray cluster look after each other, but not at once."""
    for process, command in processes.items():
        try:
            same = (
                Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") == command
            )
        except OSError:
            continue
        if same:
            kill_all([process])


def _damage(path: Path, random: Random) -> str:
    content, kind = bytearray(path.read_bytes()), random.choice(DAMAGES)
    at = random.randrange(len(content)) if content else 0
    match kind:
        case "flipped bit" if content:
            content[at] ^= 1 << random.randrange(8)
        case "truncated":
            del content[at:]
        case "changed number":
            content[at : at + 4] = random.randbytes(4)
    path.write_bytes(content)
    os.sync()
    return kind


def _difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    if more := found.keys() ^ expected.keys():
        return f"files differ: {sorted(more)}"
    other = [name for name in expected if found[name] != expected[name]]
    return f"contents differ: {other}" if other else ""
