"""The victims of an experiment: how models are trained, and what of each is released.

`Victims` is the description, `Prepared` what one seed makes of it. Experiments that hold the *same* `Victims` object
share one preparation within a run: the models are trained once, and so are the shadow models of learning attacks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import nn

from remanence.data import Split
from remanence.errors import BadInput
from remanence.execution import Backend
from remanence.models import initial_params, initial_stack, server_params
from remanence.progress import track
from remanence.releases import Case, KnowsFinal, Victim, check_fit, fit_of, train_victim, train_victims
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank, Store, build_bank
from remanence.training import Training
from remanence.types import Caveat, Data, Params


def random_init(model: nn.Module, seed: int) -> Params:
    """The package's default initialisation of `model`."""
    return initial_params(model, seed=seed)


def server_init(norm: float | None, model: nn.Module, seed: int) -> Params:
    """Weights of a server that wants pre-activations of order one for records of this norm; None: of typical images,
    which the server does not see."""
    width = next(layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear))
    return server_params(model, seed=seed, row_std=1 / (norm or 0.5 * width**0.5))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Victims:
    """Models under attack: records, architecture, training, initial weights, and the release each of them makes.

    `split(seed)` divides a data set into private, fixed, public and test records; `model(private)` builds the network;
    `initial(model, seed)` gives the initial weights, one set for all victims. Each victim is trained on the fixed
    records and `per_victim` private ones (None: one victim on all of them). With `init_per_victim` every victim has
    initial weights of its own, drawn by the package's default initialisation. With `shows_public` the release shows the
    public records too: `reveal` takes them as `public`.
    """

    split: Callable[[int], Split]
    model: Callable[[Data], nn.Module]
    training: Training
    reveal: Callable[..., Case[Any]]
    per_victim: int | None = None
    initial: Callable[[nn.Module, int], Params] = random_init
    init_per_victim: bool = False
    shows_public: bool = False

    def __post_init__(self) -> None:
        if self.init_per_victim and (self.per_victim != 1 or self.initial is not random_init):
            message = (
                "`init_per_victim` draws initial weights for each victim of one record: set `per_victim=1` and leave "
                "`initial` out"
            )
            raise BadInput(message, code="conflict", argument="init_per_victim")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """The victims of one seed on one device; each part is made when it is first asked for, and once.

    `cases` pairs each release with the private records it withholds: evaluations open them, attacks get
    `case.release`. With `require_fit` a victim that did not learn is refused; without (smoke runs) it is a caveat.
    """

    victims: Victims
    seed: int
    device: torch.device
    backend: Backend | None = None
    store: Store | None = None
    require_fit: bool = True

    @cached_property
    def split(self) -> Split:
        """The records on the device."""
        return self.victims.split(self.seed).to(self.device)

    @cached_property
    def model(self) -> nn.Module:
        """The victims' network, without values."""
        return self.victims.model(self.split.private)

    @cached_property
    def initial(self) -> Params:
        """The initial weights: one set, or with `init_per_victim` a stack with a leading dimension of victims."""
        if self.victims.init_per_victim:
            purpose = derive_seed(self.seed, "starts of victims")
            initial = initial_stack(self.model, len(self.split.private), seed=purpose)
        else:
            initial = self.victims.initial(self.model, self.seed)
        return {name: p.to(self.split.private.x) for name, p in initial.items()}

    @cached_property
    def trained(self) -> list[Victim]:
        """The trained victims, in the order of the private records."""
        training, fixed, private = self.victims.training, self.split.fixed, self.split.private
        if self.victims.per_victim == 1:
            return train_victims(self.model, training, self.initial, fixed, private, seed=self.seed)
        size = self.victims.per_victim or len(private)
        groups = [private.take(slice(i, i + size)) for i in range(0, len(private), size)]
        return [
            train_victim(self.model, training, self.initial, fixed, group, seed=derive_seed(self.seed, "victim", i))
            for i, group in enumerate(track(groups, total=len(groups), label="victims"))
        ]

    @cached_property
    def cases(self) -> list[Case[Any]]:
        """The release of each victim with the records it withholds."""
        shown = {"public": self.split.public} if self.victims.shows_public else {}
        return [self.victims.reveal(victim, **shown) for victim in self.trained]

    @cached_property
    def caveats(self) -> tuple[Caveat, ...]:
        """What limits conclusions from these victims: that some did not learn, where that is allowed."""
        if not isinstance(self.cases[0].release, KnowsFinal):
            return ()
        privacy = self.victims.training.privacy
        checked = track(self.trained, total=len(self.trained), label="do the victims fit?")
        noisy = privacy is not None and bool(privacy.noise)
        if self.require_fit and not noisy:
            for victim in checked:
                check_fit(victim)
            return ()
        if not (count := sum(not fit_of(victim).learnt for victim in checked)):
            return ()
        cause = "With this much noise" if noisy else "At this small scale"
        text = (
            f"{cause} {count} of {len(self.trained)} victims classify their own records no better than guessing: there "
            "is little to reconstruct, and little to use."
        )
        return (Caveat(code="learnt-nothing", text=text),)

    @cached_property
    def bank(self) -> ShadowBank:
        """Shadow models of the first release, trained on the public records, for attacks that learn from them."""
        release = self.cases[0].release
        return build_bank(release, self.split.public, seed=self.seed, backend=self.backend, store=self.store)
