"""How far a training is from linear, by width and architecture: why linearised attacks fail on deep nets."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from remanence.data import Split
from remanence.diagnostics.linearity import gradient_linearity, linearity_caveat
from remanence.experiments import Claim, Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics.statistics import bootstrap_mean
from remanence.releases import train_victim
from remanence.seeds import derive_seed
from remanence.types import Data, Params
from remanence_recipes.tian2025.resnets import NETS, built, started
from remanence_recipes.tian2025.setting import PAPERS, cut, images_of, torch_start, wide

PRINTED = {"MLP 200": 0.9134, "MLP 500": 0.9165, "MLP 2000": 0.9306, "MLP 4000": 0.9535, "ResNet": 0.5988}
MEANING = "mean cosine of a record's gradients at any two epochs, over the records; chance: unrelated directions"


def table_linearity(scale: Scale) -> Sequence[Experiment]:
    """The linearity index of MLPs by their width, and of ResNet-18."""
    widths = {"smoke": (16, 64), "small": (200, 500), "full": (200, 500, 2000, 4000)}[scale]
    records, images, net = {"smoke": 10, "small": 20, "full": 100}[scale], images_of(scale), NETS[scale]
    alone = partial(cut, scale, records)
    beside = partial(cut, scale, min(records, 20), public=net.public, side=net.side)
    start = started(net, images, beside)
    wides = {f"MLP {width}": (wide(width), torch_start(images), alone) for width in widths}
    nets = wides | {"ResNet": (built(net), lambda _, seed: start(seed), beside)}
    about = (
        "Whether every epoch pulls a record's way: at one, training is linear and attacks that linearise it can work."
    )
    claims = [
        Claim(quantity=name, higher_is_better=None, printed=printed, where="table of M_lin", rtol=0.03)
        for name, printed in PRINTED.items()
        if scale == "full"
    ]
    return [
        Experiment(
            label="linearity",
            about=about,
            evaluations=(Measurement(measure=partial(_indices, nets)),),
            claims=tuple(claims),
        )
    ]


Net = tuple[Callable[[Data], nn.Module], Callable[[nn.Module, int], Params], Callable[[int], Split]]


def _indices(nets: dict[str, Net], seed: int, device: torch.device) -> Outcome:
    found = {
        name: bootstrap_mean(_index(net, seed, device), seed=derive_seed(seed, name)) for name, net in nets.items()
    }
    names = tuple(found)
    series = [Series.from_intervals("ours", names, list(found.values()))]
    if printed := tuple(name for name in names if name in PRINTED):
        series.append(Series(name="printed", x=printed, y=tuple(PRINTED[n] for n in printed), role="printed"))
    return Outcome(
        measures=tuple(Measure.from_interval(name, each, meaning=MEANING, chance=0.0) for name, each in found.items()),
        figures=(Figure(title="Linearity", x_label="net", y_label="M_lin", series=tuple(series), kind="bars"),),
        caveats=tuple(
            replace(turns, text=f"{name}: {turns.text}")
            for name, each in found.items()
            if (turns := linearity_caveat(each.value))
        ),
    )


def _index(net: Net, seed: int, device: torch.device) -> torch.Tensor:
    make, begin, parts = net
    private = parts(seed).private.to(device)
    model = make(private)
    initial = {name: p.to(private.x) for name, p in begin(model, seed).items()}
    return gradient_linearity(train_victim(model, PAPERS, initial, private.take(slice(0, 0)), private, seed=seed))
