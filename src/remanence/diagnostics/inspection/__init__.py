"""Does a model that a server sent look like a trap for the records of its clients?"""

from remanence.diagnostics.inspection.inspector import Flag, Inspection, inspect_model

__all__ = ["Flag", "Inspection", "inspect_model"]
