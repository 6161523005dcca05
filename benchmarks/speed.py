"""Several benchmarks in one process, those that decide about the speed targets; one that fails does not stop the rest.

python benchmarks/speed.py shadows layouts
"""

import gc
import runpy
import sys
import traceback
from pathlib import Path
from time import perf_counter

import torch

SECTIONS = {
    "shadows": ("shadow_bank", "--device cuda --variants"),
    "layouts": ("layouts", ""),
    "simudy": ("simudy", "--tf32 --eager 0 --only|closed form|--streams 0 1 2 4 --profile --count 15"),
    "tuned": ("simudy", "--tf32 --eager 0 --only|closed form|--streams 0 2 --tune --profile --count 15"),
    "compiled": ("simudy", "--tf32 --eager 0 --only|closed form, compiled|--compile --tune --count 15"),
    "kkt": ("kkt", "--count 300 --variants --profile"),
    "reconstructor": ("reconstructor", "--profile"),
    "stages": ("reconstructor", "--stages"),
}


def main() -> None:
    begun = perf_counter()
    for name in sys.argv[1:] or list(SECTIONS):
        script, arguments = SECTIONS[name]
        first, *rest = arguments.split("|")
        given = [*first.split(), *rest[:1], *(rest[1].split() if rest[1:] else [])]
        print(f"=== {name}: {script} {' '.join(given)}  (at {perf_counter() - begun:.0f} s)", flush=True)
        start, before = perf_counter(), sys.argv
        try:
            sys.argv = [script, *given]
            runpy.run_path(str(Path(__file__).with_name(f"{script}.py")), run_name="__main__")
        except Exception:
            print("\n".join(traceback.format_exc().splitlines()[-6:]), flush=True)
        sys.argv = before
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(f"=== {name} took {perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
