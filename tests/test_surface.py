"""The public surface: few names, each documented, and no module hidden by something else of its name."""

from importlib import import_module
from inspect import getdoc, isclass, isfunction, ismodule
from pkgutil import walk_packages

import pytest

import remanence

HIDDEN = {"remanence.experiments.results.record"}  # by functions of their name
MODULES = sorted(
    {module.name for module in walk_packages(remanence.__path__, "remanence.")} - HIDDEN - {"remanence.__main__"}
)


def test_there_are_few_public_names_in_order() -> None:
    names = remanence.__all__
    assert len(names) <= 45
    assert len(set(names)) == len(names)
    assert [name for name in names if name.islower()] == sorted(name for name in names if name.islower())
    assert names == sorted(names, key=lambda name: (not name.isupper(), name.islower(), name))


@pytest.mark.parametrize("name", remanence.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert getdoc(getattr(remanence, name)), name


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_hidden_by_something_of_its_name(name: str) -> None:
    import_module(name)
    parent, _, last = name.rpartition(".")
    assert ismodule(getattr(import_module(parent), last)), f"{name} is no longer the module"


@pytest.mark.parametrize("name", [name for name in remanence.__all__ if ismodule(getattr(remanence, name))])
def test_every_namespace_offers_documented_names(name: str) -> None:
    module = getattr(remanence, name)
    offered = {each: getattr(module, each) for each in module.__all__}
    assert not [each for each, item in offered.items() if (isclass(item) or isfunction(item)) and not getdoc(item)]
