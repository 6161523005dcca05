"""What can be measured of a release or a victim without a reconstruction."""

from remanence.diagnostics.forecasting import WeightsForecast, forecast
from remanence.diagnostics.inspection import Flag, Inspection, inspect_model
from remanence.diagnostics.linearity import gradient_linearity
from remanence.diagnostics.memorization import Storage, audit_storage
from remanence.diagnostics.preflight import Preflight, run_preflight
from remanence.diagnostics.span import Span, estimate_span

__all__ = [
    "Flag",
    "Inspection",
    "Preflight",
    "Span",
    "Storage",
    "WeightsForecast",
    "audit_storage",
    "estimate_span",
    "forecast",
    "gradient_linearity",
    "inspect_model",
    "run_preflight",
]
