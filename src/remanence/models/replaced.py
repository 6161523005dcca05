"""Which layers of a model its base does not have: a tuned model often has a new head, of other classes."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Shapes: TypeAlias = Mapping[str, Sequence[int]]


def layer_of(name: str) -> str:
    """The path of the layer that holds a tensor of a state dict; of one that the model itself holds, its name."""
    return name.rpartition(".")[0] or name


def replaced_layers(base: Shapes, model: Shapes) -> tuple[str, ...]:
    """The layers of a model that its base lacks or has in another shape, where they are the last ones of the model and
    matrices of weights come before them; none where the base is of another network. Given are the shapes of both state
    dicts."""
    layers = list(dict.fromkeys(layer_of(name) for name in model))
    differing = {
        layer_of(name) for name, shape in model.items() if name not in base or tuple(base[name]) != tuple(shape)
    }
    last = layers[len(layers) - len(differing) :]
    remaining = any(len(shape) > 1 and layer_of(name) not in differing for name, shape in model.items())
    return tuple(last) if remaining and differing == set(last) else ()
