"""Draw the pictures of the documentation: plots of committed results, the architecture, the strip of the README.

python docs/plots.py        docs/plots/*.svg, docs/architecture.svg and docs/strip.png
"""

from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from result_rows import read_results

from remanence.experiments.results import Result

DOCS = Path(__file__).parent
OURS, CHANCE, PRINTED = "#1f5fa8", "#8a8a8a", "#c8502d"
mpl.rcParams.update({"svg.hashsalt": "remanence", "svg.fonttype": "none", "font.size": 8, "axes.spines.top": False})
mpl.rcParams.update({"axes.spines.right": False, "legend.frameon": False, "figure.figsize": (4.2, 2.6)})


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def results(file: str, label: str = "") -> list[Result]:
    """The results of a file whose label begins with `label`."""
    return [result for result in dict(read_results())[file] if result.label.startswith(label)]


def score(result: Result, metric: str) -> Any:
    """Mean and interval of a metric."""
    assert result.attack is not None
    return result.attack.scores.metrics[metric]


def null(result: Result, level: str, metric: str) -> float:
    """The mean of a metric at a null level."""
    assert result.attack is not None
    mean = getattr(result.attack.nulls, level).metrics[metric].mean
    assert isinstance(mean, float)
    return mean


def shadows() -> None:
    """RecoNN's error against the number of shadow models."""
    banks = results("ablations/reconn_shadows")
    x = [int(bank.label.split()[0].replace(",", "")) for bank in banks]
    figure, axes = plt.subplots()
    axes.loglog(x, [score(bank, "mse").mean for bank in banks], "o-", color=OURS, label="RecoNN, ours")
    neighbour = [null(bank, "nearest_neighbour", "mse") for bank in banks]
    axes.loglog(x, neighbour, "--", color=CHANCE, label="nearest neighbour")
    axes.plot([59000], [0.0089], "s", color=PRINTED, label="printed (Balle et al. 2022)")
    axes.set(xlabel="shadow models", ylabel="mean squared error", title="One unknown record of 10,001, MNIST")
    axes.legend()
    save(figure, DOCS / "plots" / "shadows.svg")


def privacy() -> None:
    """Records found under differential privacy, and the limit for any attack."""
    points = [(float(result.label.split()[1]), result.attack) for result in results("balle2022/dp_mnist", "epsilon")]
    x = [epsilon for epsilon, _ in points]
    found = [attack.scores.found.fraction for _, attack in points if attack]
    figure, axes = plt.subplots()
    axes.fill_between(x, [each.low for each in found], [each.high for each in found], color=OURS, alpha=0.2)
    axes.semilogx(x, [each.value for each in found], "o-", color=OURS, label="found by RecoNN")
    limits = [attack.limit.bound for _, attack in points if attack and attack.limit]
    axes.semilogx(x, limits, "--", color=PRINTED, label="limit for any attack")
    axes.axhline(0.01, color=CHANCE, linestyle=":", label="chance")
    axes.set(xlabel="epsilon (delta 1e-5)", ylabel="fraction of records", title="DP-GD on MNIST")
    axes.set_ylim(-0.03, 1.28)
    axes.legend(ncols=2, loc="upper left", fontsize=7)
    save(figure, DOCS / "plots" / "privacy.svg")


def images() -> None:
    """SimuDy against the number of images, unwhitened and whitened."""
    metric, sets = "normalised_ssim", results("tian2025/scaling", "MLP, images")
    x = [int(each.label.split()[-1]) for each in sets]
    scores = [score(each, metric) for each in sets]
    figure, axes = plt.subplots()
    axes.fill_between(x, [each.low for each in scores], [each.high for each in scores], color=OURS, alpha=0.2)
    axes.plot(x, [each.mean for each in scores], "o-", color=OURS, label="SimuDy, unwhitened")
    whitened = score(results("tian2025/mlp_500")[0], metric).mean
    axes.plot([500], [whitened], "^", color=OURS, label="SimuDy, whitened, surrogate derivative")
    axes.plot(x, [null(each, "unrelated", metric) for each in sets], "--", color=CHANCE, label="unrelated images")
    axes.plot([100], [0.3374], "s", color=PRINTED, label="printed (Tian et al. 2025)")
    axes.set(xlabel="training images", ylabel="mean SSIM (normalised)", title="MLP 3072-1000-1000-10, fine-tuned")
    axes.set_ylim(-0.03, 1.6)
    axes.legend(loc="upper left", fontsize=7)
    save(figure, DOCS / "plots" / "simudy-images.svg")


def weights_alone() -> None:
    """Fraction of records found from the weights alone against their number."""
    measures = results("buzaglo2023/figure6_cifar100", "found")[0].measures
    figure, axes = plt.subplots()
    for attack, label, colour in (("Stationarity", "Stationarity", OURS), ("KKT", "KKT, shortened", PRINTED)):
        mine = [measure for measure in measures if measure.name.endswith(attack)]
        x = [int(measure.name.split(", ")[1].split()[0]) for measure in mine]
        axes.plot(x, [measure.value for measure in mine], "o-", color=colour, label=label)
    axes.axhline(0.01, color=CHANCE, linestyle=":", label="chance")
    axes.set(xlabel="CIFAR-100 training images", ylabel="fraction found", title="Weights alone, with weight decay")
    axes.legend()
    save(figure, DOCS / "plots" / "weights-alone.svg")


def which_weights() -> None:
    """What Stationarity finds in ordinary MLPs: against epochs, records per neuron and kinds of training."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 2.8), layout="constrained")
    measures = [m for m in results("ablations/ordinary_convergence")[0].measures if m.name.startswith("share found")]
    decays = sorted({float(m.name.split()[-1]) for m in measures})
    for decay, alpha in zip(decays, (0.4, 0.7, 1.0), strict=True):
        line = [(int(m.name.split()[3].rstrip(",")), m.value) for m in measures if float(m.name.split()[-1]) == decay]
        left.plot(*zip(*sorted(line), strict=True), "o-", color=OURS, alpha=alpha, label=f"weight decay {decay:g}")
    left.set(xscale="log", ylim=(0, 1), xlabel="epochs", ylabel="fraction found", title="50 CIFAR-10 images, SGD")
    left.set_xticks((500, 1000, 2000, 4000), ("500", "1,000", "2,000", "4,000"))
    left.minorticks_off()
    left.legend()
    sizes = {m.name: m for m in results("ablations/ordinary_size")[0].measures}
    points = sorted(
        (sizes[name.replace("share found", "records per neuron")].value, m)
        for name, m in sizes.items()
        if name.startswith("share found")
    )
    x, y = [each for each, _ in points], [m.value for _, m in points]
    middle.fill_between(x, [m.low or 0 for _, m in points], [m.high or 0 for _, m in points], color=OURS, alpha=0.2)
    middle.plot(x, y, "o-", color=OURS)
    middle.set(ylim=(0, 1), xlabel="images for each neuron of the first layer", title="50 to 900 images, width 1,000")
    kinds = [
        (each.label, next(m for m in each.measures if m.name == "share found"))
        for each in results("ablations/ordinary_weights")
    ]
    y = range(len(kinds))
    errors = [[m.value - (m.low or 0) for _, m in kinds], [(m.high or 0) - m.value for _, m in kinds]]
    right.barh(y, [m.value for _, m in kinds], xerr=errors, color=OURS, height=0.6, error_kw={"ecolor": CHANCE})
    right.set(yticks=y, yticklabels=[label for label, _ in kinds], xlim=(0, 1), xlabel="fraction found")
    right.set_title("50 images, three victims each")
    right.invert_yaxis()
    save(figure, DOCS / "plots" / "which-weights.svg")


def architecture() -> None:
    """The walk from data to page."""
    figure, axes = plt.subplots(figsize=(8.4, 2.9))
    axes.set(xlim=(0, 8.4), ylim=(0, 2.9))
    axes.axis("off")
    boxes = {
        "Data": (0.1, 1.3, "Data\nsplit"),
        "Training": (1.3, 1.3, "Training\n+ model"),
        "Victim": (2.5, 1.3, "Victim\nknows all"),
        "Release": (3.8, 2.1, "Release\nwhat the\nattacker sees"),
        "Truth": (3.8, 0.5, "Truth\nput aside"),
        "Attack": (5.3, 2.1, "Attack\nobjective + search\n+ engine"),
        "Reconstruction": (6.8, 2.1, "Reconstruction\ncandidates"),
        "evaluate": (5.3, 0.5, "evaluate\nmatching, metrics,\nnull levels"),
        "Result": (6.8, 0.5, "Result → page\nclaims, caveats"),
    }
    width, height = {"Release": 1.3, "Truth": 1.3, "Attack": 1.3, "evaluate": 1.3}, 0.62
    for name, (x, y, text) in boxes.items():
        w = width.get(name, 1.0 if x < 3 else 1.4)
        colour = PRINTED if name == "Truth" else OURS
        axes.add_patch(plt.Rectangle((x, y), w, height, fill=False, edgecolor=colour, linewidth=1.2))
        axes.text(x + w / 2, y + height / 2, text, ha="center", va="center", fontsize=7)

    def arrow(start: tuple[float, float], end: tuple[float, float]) -> None:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#444444"})

    for start, end in (
        ((1.1, 1.61), (1.3, 1.61)),
        ((2.3, 1.61), (2.5, 1.61)),
        ((3.5, 1.7), (3.8, 2.3)),
        ((3.5, 1.5), (3.8, 0.9)),
        ((5.1, 2.41), (5.3, 2.41)),
        ((6.6, 2.41), (6.8, 2.41)),
        ((5.1, 0.81), (5.3, 0.81)),
        ((7.2, 2.1), (6.3, 1.12)),
        ((6.6, 0.81), (6.8, 0.81)),
    ):
        arrow(start, end)
    axes.text(4.45, 1.6, "reveal", fontsize=7, ha="center", style="italic")
    save(figure, DOCS / "architecture.svg")


def strip() -> None:
    """Truth, reconstruction and look-alike of the twelve CIFAR-10 records around the median error, from the committed
    gallery of `balle2022.cifar10`."""
    gallery = plt.imread(DOCS.parent / "results" / "balle2022" / "cifar10-gallery.png")
    side, rows, columns = 96, (757, 948, 1139, 1330), (0, 333, 667)  # where the median records stand in it
    figure, grid = plt.subplots(3, len(rows) * len(columns), figsize=(10.4, 2.3))
    for axes in grid.flat:
        axes.axis("off")
    for index, (y, x) in enumerate(product(rows, columns)):
        for row, offset in enumerate((0, 102, 205)):
            grid[row, index].imshow(gallery[y : y + side, x + offset : x + offset + side])
    for row, caption in enumerate(("training record", "reconstruction", "look-alike")):
        figure.text(0.105, 0.83 - 0.33 * row, caption, ha="right", va="center", fontsize=9)
    figure.subplots_adjust(left=0.115, right=1, top=0.99, bottom=0.01, wspace=0.06, hspace=0.06)
    figure.savefig(DOCS / "strip.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    for draw in (shadows, privacy, images, weights_alone, which_weights, architecture, strip):
        draw()


if __name__ == "__main__":
    main()
