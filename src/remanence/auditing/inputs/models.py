"""The model that is audited: its architecture, imported from the user's own code, and its weights, from a file.

    model = load_model("mymodel:MyCNN")
    weights = load_release_weights("cnn.safetensors", model)
    WeightsOnly(model=model, final=weights.params, ...)

The user's module is imported, so its code runs; nothing in a weights file is ever executed.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from remanence.auditing.inputs.weights import ReleaseWeights, load_release_weights
from remanence.errors import BadInput, unknown_name

__all__ = ["ReleaseWeights", "load_model", "load_release_weights"]


def load_model(spec: str) -> nn.Module:
    """The network that ``package.module:name`` gives, imported with the working directory first.

    `name` is a class or a function that takes no arguments, or a module itself; dots go to attributes of it.
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        message = f"`model` must be given as `package.module:callable`, such as `mymodel:MyCNN`, got `{spec}`"
        raise BadInput(message, code="wrong-type", argument="model")
    with torch.random.fork_rng(devices=[]):  # initial weights are sampled, and not used
        made = _called(spec, _attribute(_imported(module_name, spec), attribute, spec))
    if isinstance(made, nn.Module):
        return made
    message = f"`{spec}` must give an nn.Module, got {type(made).__name__}: name a class or a function that returns one"
    raise BadInput(message, code="wrong-type", argument="model")


def _imported(name: str, spec: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    name = name.removesuffix(".py").strip("./").replace("/", ".") if name.endswith(".py") else name
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            message = (
                f"there is no module `{name}` in {here!r} or among the installed packages (from `{spec}`): run this in "
                f"the folder that holds `{name.partition('.')[0]}.py`, or install the package"
            )
            raise BadInput(message, code="missing-file", argument="model") from None
        message = f"`{name}` was found, but it imports `{error.name}`, which is not installed: install it"
        raise BadInput(message, code="missing-file", argument="model") from error
    except Exception as error:  # the user's module may raise anything
        raise _raised(f"importing `{name}`", error) from error


def _attribute(module: Any, path: str, spec: str) -> Any:
    found = module
    for name in path.split("."):
        if not hasattr(found, name):
            known = [each for each in dir(found) if not each.startswith("_") and callable(getattr(found, each))]
            raise unknown_name(f"attribute of `{spec.partition(':')[0]}`", name, known, argument="model")
        found = getattr(found, name)
    return found


def _called(spec: str, found: Any) -> Any:
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        message = f"`{spec}` must be a class, a function or an nn.Module, got {type(found).__name__}"
        raise BadInput(message, code="wrong-type", argument="model")
    if needed := _required(found):
        names = ", ".join(f"`{name}`" for name in needed)
        message = (
            f"`{spec}` needs the arguments {names}: write a function without arguments that returns the model, "
            f"`def make_net(): return {spec.rpartition('.')[2].rpartition(':')[2]}(...)`, and name it"
        )
        raise BadInput(message, code="wrong-type", argument="model")
    try:
        return found()
    except Exception as error:  # as above
        raise _raised(f"calling `{spec}`", error) from error


def _required(found: Callable[..., Any]) -> list[str]:
    """The arguments without defaults of a callable, where it says which it takes."""
    try:
        parameters = signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in variable]


def _raised(doing: str, error: Exception) -> BadInput:
    said = str(error).partition("\n")[0]
    return BadInput(
        f"{doing} raised {type(error).__name__}: {said}: correct it, and try again", code="bad-input", argument="model"
    )
