"""The demo, and the first version of an audit: small victims on one data set, one attack of each kind.

remanence demo        two CPU cores: about 30 s
expected              most of the 32 records of the gradients found, all of those whose weights the server chose, most
                      of the 100 single records, most of the 30 of a model that came to rest under weight decay, and
                      most of the 20 of one whose start is known too
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from remanence.attacks import (
    ATTACKS,
    L2,
    FirstLayer,
    Fitting,
    GradientMatching,
    RecoNN,
    Search,
    SimuDy,
    Stationarity,
    Stein,
    TotalVariation,
    with_search,
)
from remanence.data import Split, distinct, load, split
from remanence.errors import BadInput, unknown_name
from remanence.experiments import Experiment, Reconstructed, Scale, Victims
from remanence.metrics import identity
from remanence.models import centred_mlp, cnn, mlp, torch_params
from remanence.releases import all_but_one, fine_tuned, gradient_at_initial, weights_only
from remanence.training import SGD, Adam, AdamW, SquaredError, Training
from remanence.types import Data, Params
from remanence_recipes.spans import span_study
from remanence_recipes.storage import storage_study
from remanence_recipes.wang2023.images import sent_by_server

NETS = ("mlp", "cnn")
TUNED_ON = {  # the data sets whose true records were looked at when an attack's defaults were chosen
    GradientMatching: ("digits", "mnist"),
    RecoNN: ("digits", "mnist"),
    Stein: ("cifar10",),
}
SPANS = "what the first layer spans"
RECONSTRUCTOR = RecoNN(hidden=(500, 500), fitting=Fitting(optimizer=AdamW(lr=1e-3, weight_decay=1e-2), epochs=100))
QUICK_RECONSTRUCTOR = replace(RECONSTRUCTOR, hidden=(100, 100), fitting=replace(RECONSTRUCTOR.fitting, epochs=20))
ON_REQUEST = ("FirstLayer", "Stein")  # refuse, as of narrow tables, what they cannot read
FEWEST = 200  # below this no part of the split is large enough to say anything


def digits(scale: Scale) -> Sequence[Experiment]:
    """The demo: small victims on scikit-learn's 8x8 digits, which need no download."""
    search, quick = with_search(GradientMatching(), steps=400, restarts=1), scale == "smoke"
    cells = audit_cells(partial(load, "digits"), quick=quick, search=search, named="digits")
    return [*cells, _weights_alone(2, 1000) if quick else _weights_alone(3, 2000), _both_ends(quick=quick)]


def _weights_alone(per_class: int, steps: int) -> Experiment:
    """All records of an MLP that came to rest under weight decay, from its weights; they also tell how many there were.

    It takes the records' mean off, which is released with the weights, as by Buzaglo et al. 2023.
    """

    def cut(seed: int) -> Split:
        return _same_of_each(distinct(load("digits")), per_class, seed)

    def start(model: nn.Module, seed: int) -> Params:
        return torch_params(model, seed=seed) | {"1.mean": cut(seed).private.x.mean(0).flatten()}

    return Experiment(
        label="trained weights alone",
        victims=Victims(
            split=cut,
            model=lambda data: centred_mlp(data.shape, data.num_classes, hidden=(200,)),
            training=Training(epochs=1200, weight_decay=0.01, lr_schedule=((720, 0.3), (960, 0.1))),
            initial=start,
            reveal=weights_only,
        ),
        attack=with_search(Stationarity(), steps=steps, restarts=2),
        tuned_on_truth=True,
    )


def _both_ends(*, quick: bool) -> Experiment:
    """The start and the end of a short training give its records away; weight decay is not needed."""
    per_class = 1 if quick else 2
    return Experiment(
        label="weights before and after training",
        victims=Victims(
            split=lambda seed: _same_of_each(distinct(load("digits")), per_class, seed),
            model=lambda data: mlp(data.shape, data.num_classes, hidden=(64 if quick else 200,), activation=nn.ReLU),
            training=Training(optimizer=SGD(lr=0.1), epochs=20),
            reveal=fine_tuned,
        ),
        attack=SimuDy(
            candidates=10 * per_class,
            distance=L2(),
            prior=TotalVariation(weight=0.001),
            search=Search(optimizer=Adam(lr=0.05, beta1=0.8, beta2=0.9), steps=100 if quick else 200),
        ),
        tuned_on_truth=True,
    )


def _same_of_each(data: Data, per_class: int, seed: int) -> Split:
    """As many private records of each class, in the order of the classes; the rest is held out."""
    data = data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)))
    private = torch.cat([(data.y == label).nonzero()[:per_class, 0] for label in range(data.num_classes)])
    rest, none = torch.ones(len(data), dtype=torch.bool).scatter(0, private, value=False), data.take(slice(0, 0))
    return Split(private=data.take(private), fixed=none, public=none, test=data.take(rest))


def audit_cells(
    source: Callable[[], Data],
    *,
    net: str = "mlp",
    quick: bool = False,
    search: GradientMatching = GradientMatching(),  # noqa: B008
    named: str | None = None,
) -> Sequence[Experiment]:
    """The demo's cells on any data, `named` if it is a set of ours: federated gradients of eight records, at weights
    that nobody or that the server chose, and models with one unknown record."""
    data = _enough(distinct(source()))  # what is wrong with the records ends an audit before any work
    wide, narrow = partial(_net, net, hidden=(256,)), partial(_net, net, hidden=(10,))
    cells = [
        Experiment(
            label="gradient of a batch",
            victims=Victims(
                split=partial(_cut, data, private=8 if quick else 32, public=0),
                model=wide,
                training=Training(epochs=20),
                reveal=gradient_at_initial,
                per_victim=8,
            ),
            attack=with_search(search, steps=200, restarts=1) if quick else search,
            tuned_on_truth=named in TUNED_ON[GradientMatching],
        ),
        Experiment(
            label="all records but one",
            victims=Victims(
                split=partial(_cut, data, private=20 if quick else 100, public=100 if quick else 1000),
                model=narrow,
                training=Training(epochs=20 if quick else 100),
                reveal=all_but_one,
                per_victim=1,
            ),
            attack=QUICK_RECONSTRUCTOR if quick else RECONSTRUCTOR,
            tuned_on_truth=named in TUNED_ON[RecoNN],
            evaluations=(Reconstructed(matching=identity),),
        ),
    ]
    if net == "mlp":
        chosen = replace(_chosen(data, quick=quick), tuned_on_truth=named in TUNED_ON[Stein])
        cells[1:1] = [_first_layer(cells[0]), chosen]
    return cells


def _first_layer(usual: Experiment) -> Experiment:
    """All its records in one batch, by a net with ReLU."""
    return replace(
        usual.with_victims(
            model=lambda data: mlp(data.shape, data.num_classes, hidden=(256,), activation=nn.ReLU), per_victim=None
        ),
        label="gradient of a batch, its first layer",
        attack=FirstLayer(),
        tuned_on_truth=False,
    )


def _chosen(data: Data, *, quick: bool) -> Experiment:
    """The weights are the server's, the layers those that it reads, and the classes numbers from 1 to -1."""
    last = max(1, data.num_classes - 1)
    values = tuple(1 - 2 * k / last for k in range(last + 1))
    return Experiment(
        label="gradient of a batch, at weights that the server chose",
        victims=Victims(
            split=partial(_cut, data, private=4 if quick else 32, public=0),
            model=lambda data: mlp(data.shape, 1, hidden=(1000 if quick else 2000,), activation=nn.Tanh),
            training=Training(epochs=0, loss=SquaredError(values=values)),
            reveal=gradient_at_initial,
            per_victim=4 if quick else 8,
            initial=partial(sent_by_server, None),
        ),
        attack=Stein(),
    )


def audit_attacks(
    records: Callable[[], Data], net: str, wanted: Sequence[str] | None, *, named: str
) -> list[Experiment]:
    """Those that are wanted; where none is named, those that are run unasked, and the studies."""
    if net not in NETS:
        raise unknown_name("net", net, NETS)
    cells = audit_cells(records, net=net, named=named)
    names = [type(cell.attack).__name__ for cell in cells]
    for name in wanted or []:
        if name not in names:
            raise _not_run(name, names, "audit" if net == "mlp" else f"audit --net {net}")
    if wanted:
        return [cell for name, cell in zip(names, cells, strict=True) if name in wanted]
    informed = cells[-1].victims
    studies = [what_stores(informed), what_spans(informed)] if net == "mlp" and informed else []
    return [*(cell for name, cell in zip(names, cells, strict=True) if name not in ON_REQUEST), *studies]


def _not_run(name: str, names: Sequence[str], command: str) -> BadInput:
    if name not in [attack.__name__ for attack in ATTACKS]:
        return unknown_name("attack", name, names)
    return BadInput(
        f"{name} is not run by `{command}`, which runs {', '.join(names)}: build a release in Python "
        "(docs/threat-models.md)"
    )


def what_stores(victims: Victims) -> Experiment:
    """Beside an attack on MLPs with ELU, whose rows store every record: how many do where it is ReLU."""
    last, net = victims.training.epochs, partial(mlp, hidden=(10,), activation=nn.ReLU)
    label = "what stores a record, with ReLU"
    steps = (1, last // 2, last)
    return storage_study(
        label, victims.split, lambda data: net(data.shape, data.num_classes), victims.training, steps=steps
    )


def what_spans(victims: Victims) -> Experiment:
    """Beside attacks on MLPs: what the first layer of one tells without any, if it was trained with weight decay."""
    return span_study(SPANS, victims.split)


def _net(name: str, data: Data, *, hidden: tuple[int, ...]) -> nn.Module:
    if name == "cnn":
        return cnn(data.shape, data.num_classes)
    return mlp(data.shape, data.num_classes, hidden=hidden)


def _enough(data: Data) -> Data:
    if len(data) < FEWEST:
        raise BadInput(f"{data.name} holds {len(data)} different records, an audit needs at least {FEWEST}: add some")
    if len(data.y.unique()) < 2:
        raise BadInput(f"{data.name} holds records of one class only, a victim learns to tell two or more: add another")
    return data


def _cut(data: Data, seed: int, *, private: int, public: int) -> Split:
    """`private` and `public` records and 200 fixed ones, fewer of each from a small data set; the rest is held out."""
    private, fixed, public = min(private, len(data) // 5), min(200, len(data) // 5), min(public, len(data) // 3)
    rest = len(data) - private - fixed - public
    return split(data, private=private, fixed=fixed, public=public, test=min(rest, 2000), seed=seed)
