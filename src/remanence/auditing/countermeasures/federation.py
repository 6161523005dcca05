"""The federation of an owner who has one client: other clients are made of held-out records, as many for each."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

import torch

from remanence.auditing.checks.outputs import is_correct, logits_of
from remanence.errors import BadInput, Diverged
from remanence.metrics import Interval
from remanence.metrics.statistics import binomial_proportion
from remanence.releases import Case, LocalUpdate, Victim, local_update
from remanence.releases.defenses import Defense
from remanence.seeds import derive_seed
from remanence.types import Data, Params, concat

CLIENTS = 10  # that a federated training has, or more where a sum of more is asked for
_MAX_OTHERS = 0.5  # of the held-out records that other clients may have


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """The update that the owner's client sent, its records, those of other clients, and those that no client has."""

    sent: LocalUpdate
    truth: Data
    others: Data
    held_out: Data
    seed: int

    @classmethod
    def from_held_out(cls, sent: LocalUpdate, truth: Data, held_out: Data, clients: int, *, seed: int) -> "Federation":
        """A federation of so many `clients`, or of fewer where too few records are held out: records of others are
        sampled from these, and no longer held out, nor are further ones of the same subjects."""
        size = len(truth) * min(max(clients, CLIENTS) - 1, int(_MAX_OTHERS * len(held_out)) // len(truth))
        generator = torch.Generator().manual_seed(derive_seed(seed, "other clients"))
        order = torch.randperm(len(held_out), generator=generator).to(held_out.x.device)
        others, remaining = held_out.take(order[:size]), held_out.take(order[size:])
        if others.groups is not None and remaining.groups is not None:
            remaining = remaining.take(~torch.isin(remaining.groups, others.groups))
        return cls(sent=sent, truth=truth, others=others, held_out=remaining, seed=seed)

    @property
    def clients(self) -> int:
        return 1 + len(self.others) // len(self.truth)

    def update(self, clients: int, defenses: tuple[Defense, ...]) -> Case[LocalUpdate]:
        """What the server sees of so many clients, the owner's among them, which train as it did; and all their
        records. It holds their labels where it holds those of the owner's."""
        case = self._round(self.sent.at, clients, defenses, derive_seed(self.seed, "update"))
        return case if self.sent.labels is None else replace(case, release=replace(case.release, labels=case.truth.y))

    def train(self, defenses: tuple[Defense, ...], rounds: Iterable[int]) -> tuple[Params, int]:
        """The weights after so many rounds in which every client takes part, from those that the server sent; and how
        many rounds there were. Clients have the same mini-batches whatever their defenses."""
        weights, done = self.sent.at, 0
        for index in rounds:
            case = self._round(weights, self.clients, defenses, derive_seed(self.seed, "round", index))
            weights = weights | {name: weights[name] + u for name, u in case.release.update.items()}
            weights = weights | (case.release.statistics or {})
            done += 1
        if not all(bool(p.isfinite().all()) for p in weights.values()):
            raise Diverged("the federated training diverges: lower the learning rate or the noise", argument="local")
        return weights, done

    def accuracy(self, weights: Params) -> Interval:
        """The fraction of the records that no client has that are classified correctly."""
        data = self.held_out
        correct = is_correct(logits_of(self.sent.model, weights, data.x), data.y, self.sent.loss)
        return binomial_proportion(int(correct.sum()), len(correct))

    @property
    def commonest(self) -> float:
        """The accuracy of naming the commonest class."""
        return float(self.held_out.y.bincount().max()) / len(self.held_out)

    def _round(self, at: Params, clients: int, defenses: tuple[Defense, ...], seed: int) -> Case[LocalUpdate]:
        if clients > self.clients:
            needed = (clients - 1) * len(self.truth)
            message = (
                f"{clients} clients of {len(self.truth)} records need {needed:,} records of others, and at most half "
                f"of the held-out ones are taken: hold out {round(needed / _MAX_OTHERS):,} or more"
            )
            raise BadInput(message, code="out-of-range", argument="clients")
        records = concat([self.truth, self.others.take(slice(0, (clients - 1) * len(self.truth)))])
        victim = Victim(
            model=self.sent.model,
            training=self.sent.training,
            initial=at,
            final=at,
            fixed=self.truth.take(slice(0, 0)),
            private=records,
        )
        return local_update(
            victim,
            clients=clients,
            names=tuple(self.sent.update),
            defenses=defenses,
            batch_norm=self.sent.batch_norm,
            statistics=self.sent.statistics is not None,
            seed=seed,
        )
