"""Recipes: one function per figure or table, and the demo. A recipe's first docstring line is what `list` shows.

A recipe is any public function `(scale: Scale) -> Sequence[Experiment]` of the modules below; its name is that of the
paper's package and its own: `balle2022.table3`.
"""

from collections.abc import Sequence
from types import ModuleType

from remanence.experiments import Experiment, Recipe, Scale
from remanence_recipes import bertran2024, demo, federated, haim2022, text
from remanence_recipes.ablations import (
    batch_size,
    convolutions,
    defenses,
    embeddings,
    first_layer_span,
    heads,
    knowledge,
    mnemonist,
    mnemonist_readings,
    ordinary,
    query_point,
    reconn,
    training_inversion,
)
from remanence_recipes.balle2022 import difficulty, on_cifar10, on_mnist, stability, transfer, zero_gradients
from remanence_recipes.buzaglo2023 import figures, published
from remanence_recipes.evidence import attacks, level, power
from remanence_recipes.fedavg import convolutions as convolutional_clients
from remanence_recipes.fedavg import trainings
from remanence_recipes.mnemonist2023 import figures as mnemonist_figures
from remanence_recipes.tian2025 import linearity, mlps, resnets, unknowns
from remanence_recipes.wang2023 import images, planted, rates


def _recipes_of(module: ModuleType) -> dict[str, Recipe]:
    """The recipes that are defined in a module, in its order."""
    signature = {"scale": Scale, "return": Sequence[Experiment]}
    return {
        f"{module.__name__.split('.')[1]}.{name}": function
        for name, function in vars(module).items()
        if getattr(function, "__module__", None) == module.__name__
        and getattr(function, "__annotations__", None) == signature
    }


_PAPERS = (
    *(on_mnist, on_cifar10, transfer, difficulty, stability, zero_gradients, mnemonist_figures, planted, images),
    *(rates, haim2022, figures, published, mlps, linearity, resnets, unknowns, bertran2024),
)
_FEDERATED = (federated, trainings, convolutional_clients, text)
_ABLATIONS = (
    *(first_layer_span, knowledge, mnemonist, reconn, defenses, query_point, batch_size, embeddings, heads),
    *(mnemonist_readings, convolutions, ordinary, training_inversion),
)
RECIPES: dict[str, Recipe] = {
    name: recipe
    for module in (*_PAPERS, *_FEDERATED, level, power, attacks, *_ABLATIONS, demo)
    for name, recipe in _recipes_of(module).items()
}
