"""Where work runs: in this process, or on the workers of a Ray cluster."""

from remanence.execution.base import Backend, Local
from remanence.execution.ray import Ray

__all__ = ["Backend", "Local", "Ray"]
