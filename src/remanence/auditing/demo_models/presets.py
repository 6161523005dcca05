"""The experiments of `remanence audit`: small victims trained on the data given, one attack of each kind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import nn

from remanence.attacks import (
    ATTACKS,
    FirstLayer,
    Fitting,
    GradientMatching,
    RecoNN,
    Stein,
    TrainingInversion,
    with_search,
)
from remanence.auditing.demo_models.first_layer import span_experiment
from remanence.data import Split, distinct, split
from remanence.errors import BadInput, unknown_name
from remanence.experiments import Experiment, Reconstructed, Victims
from remanence.experiments.evaluations import StoredRows
from remanence.experiments.evaluations.storage import ABOUT
from remanence.experiments.victims import server_init
from remanence.metrics import identity
from remanence.models import cnn, mlp
from remanence.releases import all_but_one, gradient_at_initial
from remanence.training import AdamW, SquaredError, Training
from remanence.types import Data

NETS = ("mlp", "cnn")
TUNED_ON = {  # the data sets whose true records were looked at when an attack's defaults were chosen
    GradientMatching: ("digits", "mnist"),
    RecoNN: ("digits", "mnist"),
    Stein: ("cifar10",),
}
RECONSTRUCTOR = RecoNN(hidden=(500, 500), fitting=Fitting(optimizer=AdamW(lr=1e-3, weight_decay=1e-2), epochs=100))
QUICK_RECONSTRUCTOR = replace(RECONSTRUCTOR, hidden=(100, 100), fitting=replace(RECONSTRUCTOR.fitting, epochs=20))
# The first two refuse what they cannot reconstruct, such as narrow tables; the third takes a minute for each record.
ON_REQUEST = ("FirstLayer", "Stein", "TrainingInversion")
MIN_RECORDS = 200  # with fewer no part of the split is large enough to say anything


def audit_experiments(
    records: Callable[[], Data], net: str, wanted: Sequence[str] | None, *, named: str
) -> list[Experiment]:
    """The experiments of the attacks that are wanted; where none is named, those that need no request, and what can be
    measured of an MLP without an attack."""
    if net not in NETS:
        raise unknown_name("net", net, NETS)
    experiments = attack_experiments(records, net=net, named=named)
    informed = experiments[-1]
    offered = [*experiments, _inverted(informed)]
    by_attack = {type(experiment.attack).__name__: experiment for experiment in offered}
    for name in wanted or []:
        if name not in by_attack:
            raise _not_run(name, list(by_attack), "audit" if net == "mlp" else f"audit --net {net}")
    if wanted:
        return [experiment for name, experiment in by_attack.items() if name in wanted]
    victims = informed.victims
    measured = [storage_experiment(victims), span_experiment(victims.split)] if net == "mlp" and victims else []
    return [*(experiment for name, experiment in by_attack.items() if name not in ON_REQUEST), *measured]


def _not_run(name: str, names: Sequence[str], command: str) -> BadInput:
    if name not in [attack.__name__ for attack in ATTACKS]:
        return unknown_name("attack", name, names)
    return BadInput(
        f"{name} is not run by `{command}`, which runs {', '.join(names)}: build a release in Python (docs/library.md)",
        code="unknown-name",
        argument="--attack",
    )


def attack_experiments(
    source: Callable[[], Data],
    *,
    net: str = "mlp",
    quick: bool = False,
    search: GradientMatching = GradientMatching(),  # noqa: B008
    named: str | None = None,
) -> Sequence[Experiment]:
    """One experiment for each attack, on any data, `named` if it is a set of ours: federated gradients of eight
    records, at random weights and at weights that the server chose, and models with one unknown record."""
    data = _enough(distinct(source()))  # what is wrong with the records ends an audit before any work
    wide, narrow = partial(_net, net, hidden=(256,)), partial(_net, net, hidden=(10,))
    experiments = [
        Experiment(
            label="gradient of a batch",
            victims=Victims(
                split=partial(_split, data, private=8 if quick else 32, public=0),
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
                split=partial(_split, data, private=20 if quick else 100, public=100 if quick else 1000),
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
        experiments[1:1] = [_first_layer(experiments[0]), chosen]
    return experiments


def _inverted(usual: Experiment) -> Experiment:
    """Few of the models with one unknown record, whose training is inverted without public records."""
    assert usual.victims
    all_parts = usual.victims.split

    def few(seed: int) -> Split:
        parts = all_parts(seed)
        return replace(parts, private=parts.private.take(slice(0, 3)), public=parts.public.take(slice(0, 0)))

    return replace(
        usual.with_victims(split=few),
        label="all records but one, the training inverted",
        attack=TrainingInversion(),
        tuned_on_truth=False,
    )


def _first_layer(usual: Experiment) -> Experiment:
    """The first layer of one gradient of all records, from a net with ReLU."""
    return replace(
        usual.with_victims(
            model=lambda data: mlp(data.shape, data.num_classes, hidden=(256,), activation=nn.ReLU), per_victim=None
        ),
        label="gradient of a batch, its first layer",
        attack=FirstLayer(),
        tuned_on_truth=False,
    )


def _chosen(data: Data, *, quick: bool) -> Experiment:
    """Gradients at weights that the server chose, of a net with one output whose targets are numbers from 1 to -1."""
    last = max(1, data.num_classes - 1)
    values = tuple(1 - 2 * k / last for k in range(last + 1))
    return Experiment(
        label="gradient of a batch, at weights that the server chose",
        victims=Victims(
            split=partial(_split, data, private=4 if quick else 32, public=0),
            model=lambda data: mlp(data.shape, 1, hidden=(1000 if quick else 2000,), activation=nn.Tanh),
            training=Training(epochs=0, loss=SquaredError(values=values)),
            reveal=gradient_at_initial,
            per_victim=4 if quick else 8,
            initial=partial(server_init, None),
        ),
        attack=Stein(),
    )


def storage_experiment(informed: Victims) -> Experiment:
    """How many rows of an MLP with ReLU store a record, on the records of victims with ELU, whose rows store all."""

    def relu(data: Data) -> nn.Module:
        return mlp(data.shape, data.num_classes, hidden=(10,), activation=nn.ReLU)

    last = informed.training.epochs
    return Experiment(
        label="what stores a record, with ReLU",
        about=ABOUT,
        victims=replace(informed, model=relu),
        evaluations=(StoredRows(steps=(1, last // 2, last)),),
    )


def _net(name: str, data: Data, *, hidden: tuple[int, ...]) -> nn.Module:
    if name == "cnn":
        return cnn(data.shape, data.num_classes)
    return mlp(data.shape, data.num_classes, hidden=hidden)


def _enough(data: Data) -> Data:
    if len(data) < MIN_RECORDS:
        message = f"{data.name} holds {len(data)} different records, an audit needs at least {MIN_RECORDS}: add some"
        raise BadInput(message, code="out-of-range", argument="--data")
    if len(data.y.unique()) < 2:
        message = f"{data.name} holds records of one class only, a victim learns to tell two or more: add another"
        raise BadInput(message, code="out-of-range", argument="--data")
    return data


def _split(data: Data, seed: int, *, private: int, public: int) -> Split:
    """`private` and `public` records and 200 fixed ones, fewer from a small data set; the others are held out."""
    private, fixed, public = min(private, len(data) // 5), min(200, len(data) // 5), min(public, len(data) // 3)
    remaining = len(data) - private - fixed - public
    return split(data, private=private, fixed=fixed, public=public, test=min(remaining, 2000), seed=seed)
