"""Stand-ins: where no attack can read the released file, what would be possible with its architecture and recipe.

A stand-in is of the released architecture, begins with the base where that is known and otherwise with new initial
weights, and is trained here on a few of the private records. Attacks on it say what a federated update or a model tuned
on few records would show; they say nothing of the released file, and never make the headline.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, final

import torch

from remanence.auditing.answer.report import AttackRow
from remanence.auditing.answer.words import count
from remanence.auditing.attempts.applicability import WEIGHTS, Applicability, applicable
from remanence.auditing.attempts.resuming import Steps
from remanence.auditing.attempts.running import Attempt, attempt
from remanence.auditing.checks.outputs import endpoints, logits_of, losses, released_loss, unknown_layers
from remanence.engine import loss_gradient, train
from remanence.errors import BadInput
from remanence.progress import OutOfTime, say, time_limit
from remanence.releases import FineTuned, Gradient, KnowsFinal
from remanence.seeds import derive_seed
from remanence.training import SGD, CrossEntropy, Logistic, Training
from remanence.types import Data, Params

RECORDS = 8  # private records of a stand-in
_EPOCHS = 10
_RATES = (0.1, 0.01, 0.001)  # the first that lowers the loss


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class StandIn:
    """A release of a model that was trained here, its private records, and what it stands for."""

    label: str
    about: str
    attacks: tuple[str, ...]  # the strongest on such a release
    release: Gradient | FineTuned
    truth: Data


def shows_weights_alone(release: Any, tried: Sequence[Attempt]) -> bool:
    """Whether there was nothing but trained weights for attacks to read, or none of them could."""
    return isinstance(release, KnowsFinal) and all(one.finding is None or one.row.knowledge == WEIGHTS for one in tried)


def awaits_stand_ins(release: Any, asked: Sequence[Applicability]) -> bool:
    """Whether attacks on the release may leave the question to stand-ins, so that these need a part of the time."""
    return isinstance(release, KnowsFinal) and all(one.status == "refused" or one.knowledge == WEIGHTS for one in asked)


def attack_stand_ins(
    release: Any, private: Data, others: Data, deadline: float, steps: Steps, seed: int
) -> list[Attempt]:
    """What ran on stand-ins before the `deadline`, which the first has half of the time to."""
    tried = list[Attempt]()
    with suppress(BadInput, RuntimeError, OutOfTime), time_limit(max(deadline - perf_counter(), 0.0)):
        for position, each in enumerate(stand_ins(release, private, seed=derive_seed(seed, "stand-in"))):
            asked = applicable(each.release, records=len(each.truth), attacks=each.attacks, seed=seed)
            waiting = [one for one in asked if one.status != "refused"]
            end = deadline if position else (perf_counter() + deadline) / 2
            for done, one in enumerate(waiting):
                allowed = (end - perf_counter()) / (len(waiting) - done)
                found = attempt(one, each.truth, others, allowed, steps, seed)
                if found.finding is not None:
                    tried.append(replace(found, row=_labelled(found.row, each)))
                    say(f"{tried[-1].row.name}: ran on a stand-in")
    return tried


def _labelled(row: AttackRow, stand_in: "StandIn") -> AttackRow:
    reason = "; ".join(filter(None, (stand_in.about, row.reason)))
    return replace(row, name=f"{row.name} ({stand_in.label})", subject="stand-in", reason=reason)


def stand_ins(release: Any, private: Data, *, seed: int) -> Iterator[StandIn]:
    """The gradient of a small batch, and a model tuned on it for a few epochs; none for a release of an update."""
    if not isinstance(release, KnowsFinal):
        return
    generator = torch.Generator().manual_seed(derive_seed(seed, "records of a stand-in"))
    truth = private.take(torch.randperm(len(private), generator=generator)[:RECORDS])
    initial, begins = endpoints(release)[0], "the base"
    if initial is None:
        known, layers = getattr(release, "initial", {}), unknown_layers(release)
        initial = new_weights(release, seed=derive_seed(seed, "weights of a stand-in")) | known
        begins = f"the base, with a new `{'`, `'.join(layers)}`" if layers else "new initial weights"
    loss = released_loss(release) or _usual_loss(release, initial, truth)
    yield StandIn(
        label=f"gradient of {count(len(truth), 'record')}",
        about=f"a stand-in of the same architecture at {begins}: one gradient of {count(len(truth), 'private record')}",
        attacks=("FirstLayer", "GradientMatching"),
        release=Gradient(
            model=release.model,
            at=initial,
            gradient=loss_gradient(release.model, initial, truth.x, truth.y, loss=loss),
            labels=None,
            batch_size=len(truth),
            shape=truth.shape,
            bounds=truth.bounds,
            loss=loss,
        ),
        truth=truth,
    )
    if trained := _tuned(release, initial, truth, loss, seed=derive_seed(seed, "training of a stand-in")):
        training, final_params = trained
        yield StandIn(
            label=f"tuned on {count(len(truth), 'record')}",
            about=(
                f"a stand-in of the same architecture: {training.epochs} epochs on {len(truth)} private records from "
                f"{begins}, which the attacker has"
            ),
            attacks=("SimuDy",),
            release=FineTuned(
                model=release.model,
                final=final_params,
                shape=truth.shape,
                bounds=truth.bounds,
                num_classes=release.num_classes,
                initial=initial,
                training=training,
            ),
            truth=truth,
        )


def new_weights(release: KnowsFinal, *, seed: int) -> Params:
    """Initial weights as the modules of the architecture sample them; what they do not initialise, such as the mean and
    standard deviation of inputs, is that of the release. Modules of users sample from the global generator alone, whose
    state is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too, which are not put back
        model = deepcopy(release.model).to_empty(device="cpu")
        model.load_state_dict(release.final, strict=False)
        for module in model.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    sampled = model.state_dict()
    return {name: sampled[name].detach().to(p) if name in sampled else p for name, p in release.final.items()}


def _usual_loss(release: KnowsFinal, params: Params, data: Data) -> Any:
    return CrossEntropy() if logits_of(release.model, params, data.x[:1]).shape[1] > 1 else Logistic()


def _tuned(
    release: KnowsFinal, initial: Params, truth: Data, loss: Any, *, seed: int
) -> tuple[Training, Params] | None:
    """The recipe of the release, or a usual one for a few epochs, and the weights that it leads to; None where no
    learning rate lowers the loss."""
    stated = getattr(release, "training", None)
    usual = Training(optimizer=SGD(lr=_RATES[0], momentum=0.9), epochs=_EPOCHS, loss=loss)
    begin = float(losses(release.model, initial, truth, loss).mean())
    recipes = [usual] if stated is None else [replace(stated, epochs=min(stated.epochs, _EPOCHS), batch_size=None)]
    recipes += [replace(usual, optimizer=SGD(lr=lr, momentum=0.9)) for lr in _RATES]
    for training in recipes:
        trained = train(training, release.model, initial, truth, seed=seed)
        if float(losses(release.model, trained, truth, loss).mean()) < begin:
            return training, trained
    return None
