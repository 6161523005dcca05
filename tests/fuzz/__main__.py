"""Fuzzing for as long as one likes: `python -m tests.fuzz --minutes 60`, or of one target, `--target weights`.

Crafted and past failures first, then damaged copies of valid files and hostile ones. What fails is written, as it is,
into the folder `--failures`; the code that makes a small one belongs into `crafted` of its target, where the suite
tries it from then on.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parent))  # for `-m`
sys.path.append(str(Path(__file__).parents[1]))  # what all tests share

from mutation import Edit, damage
from targets import CANARY, Target, past_failures, target_named, target_names
from trial import FAILURES, Outcome
from worker import Worker


def files(target: Target, name: str, *, seed: int) -> Iterator[tuple[str, bytes]]:
    """Past failures, crafted files, and then damaged ones without end."""
    yield from past_failures(name).items()
    yield from target.crafted()
    random, seeds = Random(seed), dict(target.seeds())
    pool = [*seeds.items(), *past_failures(name).items()]
    while True:
        if target.made and random.random() < 0.5:
            yield target.made(random)
            continue
        (file, content), (_, other) = random.choice(pool), random.choice(pool)
        edits = [Edit.sample(random) for _ in range(random.choice((1, 1, 2, 3, 8)))]
        yield file, damage(content, edits, other=other, words=target.words)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=target_names(), action="append", help="only this one (may be repeated)")
    parser.add_argument("--minutes", type=float, default=1.0, help="of all targets together")
    parser.add_argument("--files", type=int, default=None, help="end each target after so many files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder of the files that failed")
    asked = parser.parse_args()
    names, failures = asked.target or target_names(), 0
    for name in names:
        counts, total, failed = fuzz(name, asked.minutes * 60 / len(names), asked.files, asked.seed, asked.failures)
        verdicts = {verdict: counts[verdict] for verdict in ("parsed", "refused", *FAILURES)}
        print(json.dumps({"target": name, "files": sum(counts.values()), **verdicts, **total}), flush=True)
        failures += failed
    return 1 if failures else 0


def fuzz(
    name: str, seconds: float, limit: int | None, seed: int, failures: Path
) -> tuple[Counter[str], dict[str, float], int]:
    """The verdicts of all files, the longest time and the peak of memory, and the number of files that failed."""
    target, counts, failed = target_named(name), Counter[str](), 0
    longest, peak, over, end = 0.0, 0, 0, time.monotonic() + seconds
    with TemporaryDirectory() as folder, Worker(name) as worker:
        for count, (file, content) in enumerate(files(target, name, seed=seed)):
            if count == limit or time.monotonic() > end:
                break
            path = Path(folder) / file
            path.write_bytes(content)
            outcome = worker.try_file(path)
            if CANARY.exists():
                CANARY.unlink()
                outcome = Outcome(verdict="executed", said="the canary was made")
            path.unlink(missing_ok=True)
            counts[outcome.verdict] += 1
            longest, peak = max(longest, outcome.seconds), max(peak, outcome.memory)
            over += outcome.seconds > 5
            if outcome.failed:
                failed += 1
                saved = failures / name / f"{outcome.verdict}-{sha256(content).hexdigest()[:12]}-{path.name}"
                saved.parent.mkdir(parents=True, exist_ok=True)
                saved.write_bytes(content)
                print(f"{outcome.verdict}: {saved}\n{outcome.said}", file=sys.stderr)
    return (
        counts,
        {"over_5_s": over, "longest_seconds": round(longest, 2), "peak_megabytes": round(peak / 2**20, 1)},
        failed,
    )


if __name__ == "__main__":
    sys.exit(main())
