"""The demo: small victims on one data set, one attack of each kind.

remanence demo        two CPU cores: about 30 s
expected              most of the 32 records of the gradients found, all of those whose weights the server chose, most
                      of the 100 single records, most of the 30 of a model that came to rest under weight decay, and
                      most of the 20 of one whose start is known too
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import nn

from remanence.attacks import L2, GradientMatching, Search, SimuDy, Stationarity, TotalVariation, with_search
from remanence.auditing.demo_models.presets import attack_experiments
from remanence.data import Split, distinct, load
from remanence.experiments import Experiment, Scale, Victims
from remanence.models import centred_mlp, mlp, torch_params
from remanence.releases import fine_tuned, weights_only
from remanence.training import SGD, Adam, Training
from remanence.types import Data, Params
from remanence_recipes.records import first_of_each_class, shuffled


def digits(scale: Scale) -> Sequence[Experiment]:
    """The demo: small victims on scikit-learn's 8x8 digits, which need no download."""
    search, quick = with_search(GradientMatching(), steps=400, restarts=1), scale == "smoke"
    usual = attack_experiments(partial(load, "digits"), quick=quick, search=search, named="digits")
    return [*usual, _weights_alone(2, 1000) if quick else _weights_alone(3, 2000), _before_and_after(quick=quick)]


def _weights_alone(per_class: int, steps: int) -> Experiment:
    """All records of an MLP that converged under weight decay, from its weights alone; how many is inferred too.

    It subtracts the records' mean, which is released with the weights, as in Buzaglo et al. 2023.
    """

    def split(seed: int) -> Split:
        return _balanced(distinct(load("digits")), per_class, seed)

    def initial(model: nn.Module, seed: int) -> Params:
        return torch_params(model, seed=seed) | {"1.mean": split(seed).private.x.mean(0).flatten()}

    return Experiment(
        label="trained weights alone",
        victims=Victims(
            split=split,
            model=lambda data: centred_mlp(data.shape, data.num_classes, hidden=(200,)),
            training=Training(epochs=1200, weight_decay=0.01, lr_schedule=((720, 0.3), (960, 0.1))),
            initial=initial,
            reveal=weights_only,
        ),
        attack=with_search(Stationarity(), steps=steps, restarts=2),
        tuned_on_truth=True,
    )


def _before_and_after(*, quick: bool) -> Experiment:
    """All records of a short training, from the weights before and after it, without weight decay."""
    per_class = 1 if quick else 2
    return Experiment(
        label="weights before and after training",
        victims=Victims(
            split=lambda seed: _balanced(distinct(load("digits")), per_class, seed),
            model=lambda data: mlp(data.shape, data.num_classes, hidden=(64 if quick else 200,), activation=nn.ReLU),
            training=Training(optimizer=SGD(lr=0.1), epochs=20),
            reveal=fine_tuned,
        ),
        attack=replace(
            SimuDy.paper(candidates=10 * per_class),
            distance=L2(),
            prior=TotalVariation(weight=0.001),
            search=Search(optimizer=Adam(lr=0.05, beta1=0.8, beta2=0.9), steps=100 if quick else 200),
        ),
        tuned_on_truth=True,
    )


def _balanced(data: Data, per_class: int, seed: int) -> Split:
    """As many private records of each class, in the order of the classes; the others are held out."""
    private, others = first_of_each_class(shuffled(data, seed), per_class)
    none = data.take(slice(0, 0))
    return Split(private=private, fixed=none, public=none, test=others)
