"""Shadow models: training a bank of them, storing it, and features of their flat parameter vectors."""

from remanence.shadow.bank import ShadowBank, build_bank
from remanence.shadow.rows import Rows, rows_of_layers, stack_weights
from remanence.shadow.store import Store

__all__ = ["Rows", "ShadowBank", "Store", "build_bank", "rows_of_layers", "stack_weights"]
