"""Fuzzing for as long as one likes: `python tests/fuzz --minutes 60 --target weights`.

Crafted and past failures first, then damaged copies of valid files. What fails is written, as it is, into the folder
`--failures`; a small one belongs into `tests/fuzz/corpus/TARGET/`, where the suite tries it from then on.
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
        (file, content), (_, other) = random.choice(pool), random.choice(pool)
        edits = [Edit.sample(random) for _ in range(random.choice((1, 1, 2, 3, 8)))]
        yield file, damage(content, edits, other=other, words=target.words)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=target_names(), required=True)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--files", type=int, default=None, help="end after so many files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder of the files that failed")
    asked = parser.parse_args()
    counts, total, failed = fuzz(asked.target, asked.minutes * 60, asked.files, asked.seed, asked.failures)
    verdicts = {verdict: counts[verdict] for verdict in ("parsed", "refused", *FAILURES)}
    print(json.dumps({"target": asked.target, "files": sum(counts.values()), **verdicts, **total}))
    return 1 if failed else 0


def fuzz(
    name: str, seconds: float, limit: int | None, seed: int, failures: Path
) -> tuple[Counter[str], dict[str, float], int]:
    """The verdicts of all files, the longest time and the peak of memory, and the number of files that failed."""
    target, counts, failed = target_named(name), Counter[str](), 0
    longest, peak, end = 0.0, 0, time.monotonic() + seconds
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
            if outcome.failed:
                failed += 1
                saved = failures / name / f"{outcome.verdict}-{sha256(content).hexdigest()[:12]}-{path.name}"
                saved.parent.mkdir(parents=True, exist_ok=True)
                saved.write_bytes(content)
                print(f"{outcome.verdict}: {saved}\n{outcome.said}", file=sys.stderr)
    return counts, {"longest_seconds": round(longest, 2), "peak_megabytes": round(peak / 2**20, 1)}, failed


if __name__ == "__main__":
    sys.exit(main())
