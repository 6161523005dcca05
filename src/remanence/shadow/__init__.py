from remanence.shadow.bank import ShadowBank, build_bank
from remanence.shadow.rows import Rows, stack_weights
from remanence.shadow.storage import Storage, audit_storage, stored_rows
from remanence.shadow.store import Store

__all__ = [
    "Rows",
    "ShadowBank",
    "Storage",
    "Store",
    "audit_storage",
    "build_bank",
    "stack_weights",
    "stored_rows",
]
