"""Kill real runs at random moments, resume them, and compare what they make: `python tests/chaos --kills 100`.

Some stored files are damaged in between. It prints a table and ends with 1 where anything differs from an undisturbed
run; the folder of such a trial stays.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp

sys.path.append(str(Path(__file__).parents[1]))  # what all tests share

from disturbing import disturbed, undisturbed
from scenarios import SCENARIOS, Scenario


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="of all scenarios together")
    parser.add_argument("--minutes", type=float, default=30.0, help="no trial begins later")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="only this (may be repeated)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chosen = [SCENARIOS[name] for name in asked.scenario or SCENARIOS]
    end, wrong = time.monotonic() + asked.minutes * 60, 0
    print("| run | killed by | kills | same bytes | damaged in between |\n|---|---|---|---|---|", flush=True)
    for index, scenario in enumerate(chosen):
        share = asked.kills * (index + 1) // len(chosen) - asked.kills * index // len(chosen)
        wrong += _disturb(scenario, share, end, Random(f"{asked.seed} {scenario.name}"))
    return 1 if wrong else 0


def _disturb(scenario: Scenario, kills: int, end: float, random: Random) -> int:
    """Trials of one scenario until it was killed so often, a line of the table for each kind; how many went wrong."""
    root = Path(mkdtemp(prefix="remanence-chaos-"))
    (root / "alone").mkdir()
    expected, seconds = undisturbed(scenario, root / "alone")
    tried, same, damages, wrong = Counter[str](), Counter[str](), Counter[str](), 0
    while sum(tried.values()) < kills and time.monotonic() < end:
        folder = Path(mkdtemp(dir=root))
        most = min(random.choice((1, 3, 6, 10)), kills - sum(tried.values()))
        trial = disturbed(scenario, folder, expected, random=random, seconds=seconds, kills=most)
        tried.update(trial.kills)
        damages.update(trial.damages)
        said = f"{trial.wrong} in {folder}" if trial.wrong else "same bytes"
        print(f"{scenario.name}: {trial.kills}, {trial.damages}: {said}", file=sys.stderr, flush=True)
        if trial.wrong:
            wrong += 1
        else:
            same.update(trial.kills)
            rmtree(folder)
    for kind in sorted(tried):
        print(f"| {scenario.name} | {kind} | {tried[kind]} | {same[kind]} | |")
    between = ", ".join(f"{count} {kind}" for kind, count in sorted(damages.items())) or "none"
    print(f"| {scenario.name} | all | {tried.total()} | {same.total()} | {between} |", flush=True)
    if not wrong:
        rmtree(root)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
