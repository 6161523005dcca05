"""How networks are differentiated and trained, fast: closed forms where there are some, `torch.func` elsewhere."""

from remanence.engine.base import Engine, on_batches
from remanence.engine.chooser import engine_for
from remanence.engine.driver import train, train_each, trajectory
from remanence.engine.generic import GenericEngine, loss_gradient

__all__ = ["Engine", "GenericEngine", "engine_for", "loss_gradient", "on_batches", "train", "train_each", "trajectory"]
