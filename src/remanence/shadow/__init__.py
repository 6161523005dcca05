from remanence.shadow.bank import Rows, ShadowBank, build_bank, stack_weights
from remanence.shadow.store import Store

__all__ = ["Rows", "ShadowBank", "Store", "build_bank", "stack_weights"]
