"""How networks are differentiated and trained, fast: closed forms where there are some, `torch.func` elsewhere."""

from remanence.engine.base import Engine, GenericEngine, batch_gradient, loss_gradient, on_batches, only
from remanence.engine.chooser import engine_for
from remanence.engine.cuda import precision
from remanence.engine.driver import follow, train, train_each, trajectory
from remanence.engine.surrogate import Surrogate
from remanence.engine.unroll import Dynamics, Unrolled, updated_names
from remanence.engine.unroll_mlp import SpanDynamics

__all__ = [
    "Dynamics",
    "Engine",
    "GenericEngine",
    "SpanDynamics",
    "Surrogate",
    "Unrolled",
    "batch_gradient",
    "engine_for",
    "follow",
    "loss_gradient",
    "on_batches",
    "only",
    "precision",
    "train",
    "train_each",
    "trajectory",
    "updated_names",
]
