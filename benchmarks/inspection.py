"""False positives and detections of `diagnostics.inspect_model`: honest models of many kinds, and known traps.

    python benchmarks/inspection.py --seed 100 --seeds 20     # one core, five minutes; limits: seeds 0 to 11

Honest: initialisations and architectures that people use, as they are, trained on 8 x 8 digits in several ways, pruned,
quantised, fine-tuned. Traps: the published ones, on honest random weights. It prints, of each check, the largest value
of honest models and the false-positive rate with its 95 % interval (Clopper-Pearson), and of each trap how often it is
flagged, and by what.
"""

import argparse
from collections import Counter, defaultdict
from time import perf_counter

import torch
from inspected_models import TRAPS, TRAPS_OF_A_KIND, honest_models, trap_models
from scipy.stats import binomtest

from remanence.diagnostics.inspection import inspect_model
from remanence.diagnostics.inspection.checks import CHECKS
from remanence.diagnostics.inspection.layers import layers_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1, help="so many honest models of each kind")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start, largest, flagged, count = perf_counter(), defaultdict[str, list[float]](list), Counter[str](), 0
    which = defaultdict[str, list[str]](list)
    for seed in range(given.seed, given.seed + given.seeds):
        for sent in honest_models(seed):
            count += 1
            layers = layers_of(sent.model, sent.weights, sent.shape)
            for check in CHECKS:
                values = [v for layer in layers if (v := check.statistic(layer)) is not None]
                if values:
                    largest[check.code].append(max(values))
                    if max(values) > check.limit / 2:
                        which[check.code].append(f"{sent.kind}: {max(values):.3g}")
            codes = {flag.code for flag in inspect_model(sent.model, sent.weights, sent.shape).flags}
            flagged.update(codes)
            flagged["any"] += bool(codes)
    print(f"| check | limit | largest of honest | 95th percentile | flagged of {count} | rate, 95 % interval |")
    print("|---|---|---|---|---|---|")
    limits = {check.code: f"{check.limit:g}" for check in CHECKS} | {"any": ""}
    for code, limit in limits.items():
        low, high = binomtest(flagged[code], count).proportion_ci()
        values = torch.tensor(largest[code] or [float("nan")])
        shown = ("", "") if code == "any" else (f"{values.max():.3g}", f"{values.quantile(0.95):.3g}")
        rate = f"{flagged[code] / count:.1%} ({low:.1%} to {high:.1%})"
        print(f"| `{code}` | {limit} | {shown[0]} | {shown[1]} | {flagged[code]} | {rate} |")
    for code, kinds in which.items():
        print(f"above half of the limit, {code}: {'; '.join(sorted(set(kinds)))}")
    print(f"{perf_counter() - start:.0f} s\n\n| trap | flagged | by |\n|---|---|---|")
    found, reasons = Counter[str](), defaultdict[str, Counter[str]](Counter)
    for sent in trap_models(given.seed):
        codes = {flag.code for flag in inspect_model(sent.model, sent.weights, sent.shape).flags}
        found[sent.kind] += bool(codes)
        reasons[sent.kind].update(codes)
    for kind in TRAPS:
        by = ", ".join(
            f"`{code}`" + (f" ({n})" if n < TRAPS_OF_A_KIND else "") for code, n in reasons[kind].most_common()
        )
        print(f"| {kind} | {found[kind]} of {TRAPS_OF_A_KIND} | {by} |")
    print(f"{perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
