"""Evaluations of victims that need no attack: accuracy, memorization by rows, the span of the first layer."""

from remanence.experiments.evaluations.accuracy import Accuracy
from remanence.experiments.evaluations.storage import StoredRows

__all__ = ["Accuracy", "StoredRows"]
