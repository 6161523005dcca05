"""Recipes: one function per figure or table, and the demo. A recipe's first docstring line is what `list` shows."""

from remanence.experiment import Recipe
from remanence_recipes import balle2022, demo

RECIPES: dict[str, Recipe] = {
    "balle2022.mnist": balle2022.mnist,
    "demo.digits": demo.digits,
}
