"""Minimisation of an objective over candidate records: distances, priors, labels, coordinates and the solver."""

from remanence.search.checkpoint import checkpoint_path
from remanence.search.distances import L2, ByProducts, Cosine, Distance, WhitenedLayer, Whitening, between
from remanence.search.labels import SoftLabels, balanced, given, initial_logits, probabilities
from remanence.search.objective import Objective, Variable, Variables
from remanence.search.priors import ImagePrior, Prior, TotalVariation, total_variation
from remanence.search.settings import LBFGS, Constant, CosineAnnealing, MultiStep, Schedule, Search, with_search
from remanence.search.solver import Solution, minimise
from remanence.training import SGD, Adam

__all__ = [
    "L2",
    "LBFGS",
    "SGD",
    "Adam",
    "ByProducts",
    "Constant",
    "Cosine",
    "CosineAnnealing",
    "Distance",
    "ImagePrior",
    "MultiStep",
    "Objective",
    "Prior",
    "Schedule",
    "Search",
    "SoftLabels",
    "Solution",
    "TotalVariation",
    "Variable",
    "Variables",
    "WhitenedLayer",
    "Whitening",
    "balanced",
    "between",
    "checkpoint_path",
    "given",
    "initial_logits",
    "minimise",
    "probabilities",
    "total_variation",
    "with_search",
]
