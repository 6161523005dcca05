from remanence.execution.base import Backend
from remanence.execution.local import Local

__all__ = ["Backend", "Local"]
