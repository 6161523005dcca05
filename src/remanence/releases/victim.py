"""The victim: a trained model together with its private records, and how well it fits them."""

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import nn

from remanence.engine import train
from remanence.engine.ensembles.chunked import chunks, stack, train_chunk
from remanence.errors import BadInput, Diverged
from remanence.models import apply
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.training.training import Training
from remanence.types import Data, Params, concat


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Victim:
    """A trained model, how it was trained and all of its records; no attack is ever given one."""

    model: nn.Module
    training: Training
    initial: Params
    final: Params
    fixed: Data
    private: Data


def train_victim(
    model: nn.Module, training: Training, initial: Params, fixed: Data, private: Data, *, seed: int
) -> Victim:
    """Train one model on `fixed` and all of `private`."""
    final_params = train(training, model, initial, concat([fixed, private]), seed=seed)
    return Victim(model=model, training=training, initial=initial, final=final_params, fixed=fixed, private=private)


def train_victims(
    model: nn.Module, training: Training, initial: Params, fixed: Data, private: Data, *, seed: int
) -> list[Victim]:
    """Train for each record of `private` a model on `fixed` and that record, exactly as shadow models are trained.

    `initial` holds one initialisation for all victims, or a stack with one for each.
    """
    victims: list[Victim] = []
    starts = stack(model, initial, torch.arange(len(private), device=private.x.device))
    pieces = chunks(model, fixed, private)
    for chunk in track(pieces, total=len(pieces), label="victims"):
        first = len(victims)
        some = {name: p[first : first + len(chunk)] for name, p in starts.items()}
        noise_seed = derive_seed(seed, "victims", first)
        # victims have a seed of their own for the order of mini-batches, which no release shows
        shuffle = derive_seed(seed, "batches of victims")
        stacked = train_chunk(training, model, some, fixed, chunk, seed=shuffle, noise_seed=noise_seed)
        for k in range(len(chunk)):
            victims.append(
                Victim(
                    model=model,
                    training=training,
                    initial={name: p[k] for name, p in some.items()},
                    final={name: p[k].clone() for name, p in stacked.items()},
                    fixed=fixed,
                    private=chunk.take(slice(k, k + 1)),
                )
            )
    return victims


def check_fit(victim: Victim) -> None:
    """Refuse a victim that did not fit: a reconstruction from it would say nothing about trained models."""
    fit = fit_of(victim)
    if not fit.learnt:
        raise BadInput(
            f"the victim did not fit: its training loss went from {fit.before:.4g} to {fit.after:.4g}, and guessing by "
            f"the classes' frequencies reaches {fit.guessing:.4g}; change the learning rate or train for more epochs",
            code="not-fitted",
            argument="training",
        )


class Fit(NamedTuple):
    """A victim's loss on its records before and after training, and the loss of guessing by the class frequencies."""

    before: float
    after: float
    guessing: float

    @property
    def learnt(self) -> bool:
        return self.after < min(self.before, self.guessing)


def fit_of(victim: Victim) -> Fit:
    """How well the victim fits its records; a victim with weights that are not finite is refused."""
    if not torch.stack([p.isfinite().all() for p in victim.final.values()]).all():
        raise Diverged("the victim diverged (its weights are not finite): lower the learning rate", argument="training")
    # not by concat(), which would check the values of all records again for each of many victims
    x, y = torch.cat([victim.fixed.x, victim.private.x]), torch.cat([victim.fixed.y, victim.private.y])
    frequencies = y.bincount().double() / len(y)
    with torch.no_grad():
        before, after = (
            float(victim.training.loss(apply(victim.model, params, x), y)) for params in (victim.initial, victim.final)
        )
    return Fit(before=before, after=after, guessing=float(-frequencies.xlogy(frequencies).sum()))
