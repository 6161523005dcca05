"""What a federated client that trains a transformer sends: the gradient of a batch of token sequences."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, Protocol, final, runtime_checkable

from torch import Tensor
from torch.func import functional_call, grad

from remanence.data.tokens import Tokens
from remanence.errors import BadInput, check_min
from remanence.models.lora import adapter_names
from remanence.models.transformer import Transformer
from remanence.releases.defenses import Defense, defended
from remanence.seeds import derive_seed
from remanence.types import Params


@runtime_checkable
class KnowsTokenGradient(Protocol):
    """The gradient of a batch of token sequences at known weights of a transformer, and the size of the batch."""

    @property
    def model(self) -> Transformer: ...
    @property
    def at(self) -> Params: ...
    @property
    def gradient(self) -> Params: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def length(self) -> int:
        """The longest sequence that the client may have."""
        ...

    @property
    def defenses(self) -> tuple[Defense, ...]: ...
    @property
    def rounding(self) -> float: ...


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TransformerUpdate:
    """One federated update of a transformer: its gradient after the client's defenses, of adapters alone if it has
    them."""

    withholds: ClassVar[str] = "the sequences of the batch, and their labels"
    model: Transformer
    at: Params
    gradient: Params
    batch_size: int
    length: int
    defenses: tuple[Defense, ...] = ()
    rounding: float = 0.0  # std of errors by the weights' rounding, over the rms entry, where it is a difference of two

    def __post_init__(self) -> None:
        check_min(self, batch_size=1, length=1, rounding=0)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TextCase:
    """A release and the sequences it withholds."""

    release: TransformerUpdate
    truth: Tokens


def transformer_update(
    model: Transformer, at: Params, batch: Tokens, *, seed: int, defenses: tuple[Defense, ...] = ()
) -> TextCase:
    """Release the gradient of the model's loss on `batch` at the weights `at`; withhold the batch."""
    computed = token_gradient(model, at, batch)
    digest = blake2b(batch.ids.cpu().numpy().tobytes(), digest_size=8).hexdigest()
    release = TransformerUpdate(
        model=model,
        at=at,
        gradient=defended(computed, defenses, seed=derive_seed(seed, "client", digest)),
        batch_size=len(batch),
        length=batch.ids.shape[1],
        defenses=defenses,
    )
    return TextCase(release=release, truth=batch)


def token_gradient(model: Transformer, at: Params, batch: Tokens) -> Params:
    """The gradient of the model's loss on `batch` at the weights `at`; of adapters alone if it has them."""
    if not len(batch):
        raise BadInput("`batch` must hold one sequence or more, got none", code="empty", argument="batch")
    trained = adapter_names(model) or [name for name, _ in model.named_parameters()]
    frozen = {name: value for name, value in at.items() if name not in trained}

    def loss(params: Params) -> Tensor:
        value: Tensor = functional_call(model, frozen | params, (batch.ids, batch.y))
        return value

    computed: Params = grad(loss)({name: at[name] for name in trained})
    return computed
