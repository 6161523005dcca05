"""The federation of an owner who has one client, or some whose updates are sent as a sum: other clients are made of
held-out records, as many for each."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

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
    """The update that the owner's clients sent, their records, those of other clients, and those that no client has.

    All clients have the defenses of those that sent the update, before any of a setting.
    """

    sent: LocalUpdate
    truth: Data
    others: Data
    held_out: Data
    seed: int

    @classmethod
    def from_held_out(cls, sent: LocalUpdate, truth: Data, held_out: Data, clients: int, *, seed: int) -> "Federation":
        """A federation of so many `clients`, or of fewer where too few records are held out: records of others are
        sampled from these, one subject after the other, and no longer held out, nor are further ones of the same
        subjects."""
        records = sent.batch_size or len(truth)
        if sent.clients > 1 and (records != len(truth) or records % sent.clients):
            message = (
                f"`truth` must hold the records of all {sent.clients} clients whose mean was sent, equally many of "
                f"each and {records} in all, got {len(truth)}: give them"
            )
            raise BadInput(message, code="shape-mismatch", argument="truth")
        size = len(truth) // sent.clients
        count = size * min(max(clients, CLIENTS, sent.clients) - sent.clients, int(_MAX_OTHERS * len(held_out)) // size)
        order = _sampled(held_out, derive_seed(seed, "other clients"))
        others, remaining = held_out.take(order[:count]), held_out.take(order[count:])
        if others.groups is not None and remaining.groups is not None:
            remaining = remaining.take(~torch.isin(remaining.groups, others.groups))
        if not len(remaining):
            message = (
                "`held_out` must have records of more subjects: those that it has are needed for other clients, and "
                "nobody is left to compare with; hold out records of twice as many subjects"
            )
            raise BadInput(message, code="empty", argument="held_out")
        return cls(sent=sent, truth=truth, others=others, held_out=remaining, seed=seed)

    @property
    def clients(self) -> int:
        return self.sent.clients + len(self.others) // self.size

    @property
    def size(self) -> int:
        """The number of records of each client."""
        return len(self.truth) // self.sent.clients

    def update(self, times: int, defenses: tuple[Defense, ...]) -> Case[LocalUpdate]:
        """What the server sees of so many times as many clients, the owner's among them, which train as it did, and all
        their records; what was sent where nothing is added to it. It holds their labels where it holds those of the
        owner's."""
        if times == 1 and not defenses:
            return Case(release=self.sent, truth=self.truth)
        case = self._round(self.sent.at, times * self.sent.clients, defenses, derive_seed(self.seed, "update"))
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
            needed = (clients - self.sent.clients) * self.size
            message = (
                f"{clients} clients of {self.size} records need {needed:,} records of others, and at most half "
                f"of the held-out ones are taken: hold out {round(needed / _MAX_OTHERS):,} or more"
            )
            raise BadInput(message, code="out-of-range", argument="clients")
        records = concat([self.truth, self.others.take(slice(0, (clients - self.sent.clients) * self.size))])
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
            defenses=(*self.sent.defenses, *defenses),
            batch_norm=self.sent.batch_norm,
            statistics=self.sent.statistics is not None,
            seed=seed,
        )


def _sampled(held_out: Data, seed: int) -> Tensor:
    """The indices of the records in a random order, in which those of a subject follow each other."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(held_out), generator=generator).to(held_out.x.device)
    if held_out.groups is None:
        return order
    subjects, subject = held_out.groups[order].unique(return_inverse=True)
    ranks = torch.randperm(len(subjects), generator=generator).to(subject.device)
    return order[ranks[subject].argsort(stable=True).to(order.device)]
