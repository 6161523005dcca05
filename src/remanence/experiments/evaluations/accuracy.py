"""How well the victims classify records that nobody trained on."""

from dataclasses import dataclass
from typing import Literal, final

import torch

from remanence.experiments.experiment import Trial
from remanence.experiments.outcome import Measure, Outcome
from remanence.metrics.statistics import binomial_proportion
from remanence.models import apply
from remanence.types import Data, Params

_BATCH = 500  # records at a time: deep nets need the memory


@final
@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Evaluation: the accuracy on the test records of the victims' initial weights, or of the first trained victim."""

    weights: Literal["initial", "final"] = "final"
    name: str = "test accuracy"
    meaning: str = "fraction of held-out records that are classified correctly; chance is the commonest class"

    def __call__(self, trial: Trial) -> Outcome:
        victims = trial.victims
        params: Params = victims.initial if self.weights == "initial" else victims.trained[0].final
        return Outcome(measures=(self.measure(victims.model, params, victims.split.test),))

    def measure(self, model: torch.nn.Module, params: Params, test: Data) -> Measure:
        """The accuracy of a model with these weights on `test`; one output is a decision by its sign."""
        with torch.no_grad():
            logits = torch.cat([apply(model, params, x) for x in test.x.split(_BATCH)])
        predicted = logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
        found = binomial_proportion(int((predicted == test.y).sum()), len(test))
        commonest = float(test.y.bincount().max()) / len(test)
        return Measure.from_interval(self.name, found, meaning=self.meaning, chance=commonest)
