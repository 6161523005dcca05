"""The claims of the papers: complete, decided by quantities that exist, and explained where they are contradicted."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from smoke import results as smoke_results

from remanence.reproduction import Archive, Decided, Quantity, decide, read_archive
from remanence.reproduction.pooling import estimates
from remanence.reproduction.words import contradiction_words
from remanence_recipes import RECIPES
from remanence_recipes.papers import PAPERS
from remanence_recipes.weights_alone.claims import AT_LENGTH, RAN, TWO

RESULTS = Path(__file__).parents[2] / "results"
CLAIMS = [(paper.name, claim) for paper in PAPERS for claim in paper.claims]
QUANTITIES = list(dict.fromkeys(quantity for _, claim in CLAIMS for quantity in claim.quantities))
OURS = {  # recipes of the papers' packages that no claim of theirs is about, or that others decide at more length
    "wang2023.cifar10",
    "haim2022.cifar10_binary",
    "haim2022.mnist_binary",
    "buzaglo2023.figure2_binary_vs_multiclass",
    "buzaglo2023.figure7_threshold",  # another null level than the one that decides figure 7
    "mnemonist2023.table3",
    "balle2022.figure13_gallery",  # on MNIST, where the paper's are CIFAR-10
    "balle2022.figure15_epochs",
    "balle2022.figure15_stability",
    "tian2025.linearity_grid",
    "tian2025.resnet_20",  # of a fine-tuning that is nearly linear
    "tian2025.resnet_50",
    "tian2025.mlp_500",
}


@cache
def archive() -> Archive:
    return read_archive(RESULTS, RECIPES)


@cache
def decided() -> list[Decided]:
    return decide(PAPERS, archive())


def test_every_recipe_of_the_papers_is_named_by_a_claim() -> None:
    named = {recipe for _, claim in CLAIMS for recipe in claim.recipes}
    papers = {paper.name for paper in PAPERS}
    assert {name for name in RECIPES if name.partition(".")[0] in papers} - named == OURS
    assert named <= RECIPES.keys()
    assert len(CLAIMS) > 90


def test_no_victim_with_a_result_is_left_out() -> None:
    """Where victims decide one by one, those that ran are named."""
    ran = {result.label for label in TWO for result in archive().results(AT_LENGTH, label)}
    assert set(RAN) == ran


def test_every_printed_number_of_a_recipe_is_a_claim() -> None:
    """By where it is printed: several experiments may stand against one number."""
    listed = {(each.recipe, label, each.name.casefold()) for each in QUANTITIES for label in each.experiments}
    stated = [
        (claim, (name, experiment.label, claim.quantity.casefold()) in listed)
        for name in {recipe for _, claim in CLAIMS for recipe in claim.recipes}
        for experiment in RECIPES[name]("full")
        for claim in experiment.claims
        if claim.printed is not None
    ]
    assert {(claim.where, claim.printed) for claim, found in stated} == {
        (claim.where, claim.printed) for claim, found in stated if found
    }


def test_claims_are_told_from_each_other() -> None:
    texts = Counter((paper, claim.where, claim.text, claim.assumes) for paper, claim in CLAIMS)
    assert max(texts.values()) == 1
    assert all(claim.text.endswith(".") for _, claim in CLAIMS)


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda each: f"{each.recipe}, {each.experiments[0]}, {each.name}")
def test_a_quantity_is_of_an_experiment_of_its_recipe(quantity: Quantity) -> None:
    made = {experiment.label for experiment in RECIPES[quantity.recipe]("full")}
    assert quantity.experiments[0] in made
    results = archive().results
    committed = {
        label
        for label in quantity.experiments
        if any(results(quantity.recipe, label, scale=scale) for scale in ("full", "small"))
    }
    assert set(quantity.experiments) <= made | committed  # results of before may have another label


def unrecorded() -> list[Quantity]:
    return [quantity for quantity in QUANTITIES if archive().pooled(quantity) is None]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted({quantity.recipe for quantity in unrecorded()}))
def test_other_quantities_are_measured_at_smoke_scale(recipe: str) -> None:
    names = {shape(name) for result in smoke_results(recipe).values() for name in estimates(result)}
    names |= {name.replace("stationarity", "kkt") for name in names}  # surveys of smoke scale leave KKT out
    assert {shape(quantity.name) for quantity in unrecorded() if quantity.recipe == recipe} <= names


def shape(name: str) -> str:
    """A quantity's name without numbers: those of an axis are others at smoke scale."""
    return re.sub(r"\d[\d.,e+-]*\b", "N", name.casefold())


def test_every_contradiction_has_its_paragraph() -> None:
    contradicted = [each for each in decided() if each.row.status == "contradicted"]
    for each in contradicted:
        assert each.claim.contradiction is not None, each.row
        for part in (each.claim.contradiction.says, contradiction_words(each.claim.contradiction, each.row)):
            assert part.endswith(".")
            assert "{" not in part


def test_what_is_not_run_says_how_long_it_takes() -> None:
    assert not [each.row.where for each in decided() if each.row.status == "not run" and each.row.minutes <= 0]
