"""What would help a federated client that trains a transformer: its update sent again with each setting of a sweep.

    rows = sweep_tokens(release, truth, held_out, {"clients": (2, 5), "noise": (0.1, 1)}, budget=450, seed=0)

A defense acts on the update that was sent, after those that the client had already, which all clients have. Other
clients have held-out sequences, as many as the owner's; the mean of gradients is one gradient of all their sequences,
of which those of the owner's client are looked for.
"""

from dataclasses import dataclass, replace
from time import perf_counter
from typing import final

import torch

from remanence.auditing.answer.report import Countermeasure
from remanence.auditing.attempts.reasons import why
from remanence.auditing.attempts.tokens import attempt_tokens
from remanence.auditing.countermeasures.axes import Setting, Sweep, settings
from remanence.auditing.evidence.text_labels import text_labels
from remanence.auditing.evidence.together import together
from remanence.auditing.evidence.tokens import distinct
from remanence.data import Tokens
from remanence.errors import BadInput
from remanence.progress import say, track
from remanence.releases import TransformerUpdate, token_gradient
from remanence.releases.defenses import Defense, defended
from remanence.seeds import derive_seed
from remanence.types import Params

_MAX_OTHERS = 0.5  # of the held-out sequences that other clients may have
_UNDEFENDED = Setting(axis="baseline", value=0.0, words="the update as it is")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Clients:
    """The owner's client, the sequences of others, and those that no client has.

    Sequences are all of a batch, copies included: what was sent is their mean, and each is looked for once.
    """

    sent: TransformerUpdate
    truth: Tokens
    others: Tokens
    held_out: Tokens
    scale: float  # of what was sent, over the defended gradient of the owner's sequences: a learning rate, or one
    seed: int

    @classmethod
    def from_held_out(cls, sent: TransformerUpdate, truth: Tokens, held_out: Tokens, *, seed: int) -> "_Clients":
        """The owner's client, and others whose sequences are sampled from those held out, at most half of them."""
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed)).to(held_out.ids.device)
        half = int(_MAX_OTHERS * len(held_out))
        computed = defended(_sent_part(sent, truth), sent.defenses, seed=seed)
        return cls(
            sent=sent,
            truth=truth,
            others=held_out.take(order[:half]),
            held_out=held_out.take(order[half:]),
            scale=_length(sent.gradient) / max(_length(computed), 1e-30),
            seed=seed,
        )

    def sequences(self, setting: Setting) -> Tokens:
        """The sequences of all clients whose updates are summed, the owner's first."""
        ids, y = ((getattr(self.truth, each), getattr(self.others, each)) for each in ("ids", "y"))
        size = (setting.clients - 1) * len(self.truth)
        return replace(self.truth, ids=torch.cat([ids[0], ids[1][:size]]), y=torch.cat([y[0], y[1][:size]]))

    def update(self, setting: Setting) -> TransformerUpdate:
        """What the server sees: the mean of the updates of so many clients, each after its own defenses; those of the
        client are in what it sent."""
        size = len(self.truth)
        if (needed := (setting.clients - 1) * size) > len(self.others):
            message = (
                f"{setting.clients} clients of {size} sequences need {needed:,} of others, and at most half of the "
                f"held-out ones are taken: hold out {round(needed / _MAX_OTHERS):,} or more"
            )
            raise BadInput(message, code="out-of-range", argument="clients")
        defenses = (*self.sent.defenses, *setting.defenses)
        total = self._defended(self.sent.gradient, setting.defenses, 0)
        for index in range(1, setting.clients):
            batch = self.others.take(slice((index - 1) * size, index * size))
            computed = {name: self.scale * g for name, g in _sent_part(self.sent, batch).items()}
            theirs = self._defended(computed, defenses, index)
            total = {name: g + theirs[name] for name, g in total.items()}
        mean = {name: g / setting.clients for name, g in total.items()}
        count = setting.clients * self.sent.batch_size
        return replace(self.sent, gradient=mean, batch_size=count, defenses=defenses)

    def _defended(self, gradient: Params, defenses: tuple[Defense, ...], client: int) -> Params:
        return defended(gradient, defenses, seed=derive_seed(self.seed, "client", client))


def sweep_tokens(
    release: TransformerUpdate, batch: Tokens, held_out: Tokens, sweep: Sweep, *, budget: float, seed: int
) -> tuple[Countermeasure, ...]:
    """A row for the update as it is and one for each setting of the `sweep`, in about `budget` seconds; `batch` holds
    the sequences of the update, copies included."""
    end, chosen = perf_counter() + budget, [_UNDEFENDED, *settings(sweep)]
    clients = _Clients.from_held_out(release, batch, held_out, seed=derive_seed(seed, "clients"))
    rows = list[Countermeasure]()
    for index, setting in enumerate(track(chosen, total=len(chosen), label="settings", after=1.0)):
        start = perf_counter()
        row = _attacked(clients, setting, (end - start) / (len(chosen) - index))
        rows.append(replace(row, seconds=perf_counter() - start))
        said = f"{row.together.found} of {row.together.records} found" if row.together else f"not tested ({row.reason})"
        say(f"{setting.words}: {said}")
    return tuple(rows)


def _attacked(clients: _Clients, setting: Setting, seconds: float) -> Countermeasure:
    """What the update of this setting shows of the owner's sequences in so many seconds."""
    value = None if setting is _UNDEFENDED else setting.value
    row = Countermeasure(name=setting.axis, setting=setting.words, status="ran", value=value)
    try:
        release = clients.update(setting)
    except Exception as fault:
        status, reason = why(fault)
        return replace(row, status=status, reason=reason)
    tried = attempt_tokens(release, distinct(clients.truth), clients.held_out, seconds=seconds, seed=clients.seed)
    labels = text_labels(
        release, clients.sequences(setting), clients.held_out, seed=derive_seed(clients.seed, "labels")
    )
    row = replace(row, tokens=tried.best and tried.best.recall, labels=labels)
    if tried.test is None:
        skipped = (tried.row.name,) if tried.row.status == "skipped" else ()
        return replace(row, reason=tried.row.reason, no_time=skipped)
    return replace(
        row,
        attack=replace(tried.row, subject="stand-in"),
        together=together([tried.test], seed=derive_seed(clients.seed, "together")),
    )


def _sent_part(sent: TransformerUpdate, batch: Tokens) -> Params:
    """The gradient of another client's `batch`, of the parameters that this one sent; zero for those it has frozen."""
    computed = token_gradient(sent.model, sent.at, batch)
    return {name: computed.get(name, torch.zeros_like(g)) for name, g in sent.gradient.items()}


def _length(gradient: Params) -> float:
    return float(torch.stack([g.double().norm() for g in gradient.values()]).norm())
