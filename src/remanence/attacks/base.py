"""The contract: `attack.run(release, seed=...) -> Reconstruction`.

An attack is a frozen dataclass whose fields are its hyper-parameters, so that `repr(attack)` is the call that makes it.
It draws from a generator of its own, follows the device and dtype of the release, and never sees the truth.
"""

from typing import Protocol, TypeVar, runtime_checkable

from remanence.releases import KnowsAllButOne
from remanence.shadow import ShadowBank
from remanence.types import Reconstruction

R_contra = TypeVar("R_contra", contravariant=True)


@runtime_checkable
class Attack(Protocol[R_contra]):
    def run(self, release: R_contra, *, seed: int) -> Reconstruction: ...


@runtime_checkable
class ShadowAttack(Protocol):
    """An attack that learns first; `fit` returns another type, so that "not fitted" is a type error."""

    def fit(self, bank: ShadowBank, *, seed: int) -> Attack[KnowsAllButOne]: ...
