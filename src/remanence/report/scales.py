"""The axes of charts: from values to points in a drawing, and round values as marks.

A figure may come from a stranger: any finite number has a place, however large, small or near to the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

_LARGEST, _SMALLEST = 1e300, 1e-290  # beyond, differences overflow and steps vanish
_NEAR = 1e-9  # of a value: what differs less is drawn as the same


@final
@dataclass(frozen=True, kw_only=True)
class Scale:
    """From the values of an axis to points in the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        value = _bounded(value, log=self.log)
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def shows(self, value: float | None) -> bool:
        return can_be_shown(value, log=self.log)

    def within(self, value: float | None, other: float) -> float:
        """The point of a bound; where it cannot be shown, it ends with the axis."""
        return self(other if value is None else max(value, self.low) if self.log else value)

    @property
    def marks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high)


def can_be_shown(value: float | None, *, log: bool) -> bool:
    """Whether a value has a place on an axis, of which a logarithmic one has no zero."""
    return value is not None and (value > 0 or not log)


def scale_over(values: Sequence[float], start: float, end: float, *, log: bool, zero: bool = False) -> Scale:
    """An axis over all values. With `zero`, a plain one begins there and ends with a mark, and a logarithmic one leaves
    the smallest value some length."""
    shown = [value for value in values if can_be_shown(value, log=log)] or [1.0]
    low, high = (_bounded(value, log=log) for value in (min(shown), max(shown)))
    if log:
        differ = high > low * (1 + _NEAR)
        low, high = (low, high) if differ and not zero else (low / 1.5, high * 1.5)
        return Scale(low=low, high=high, start=start, end=end, log=True)
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    largest = max(abs(low), abs(high))
    if high - low <= max(_NEAR * largest, _SMALLEST):
        low, high = low - max(0.5, 0.1 * largest), high + max(0.5, 0.1 * largest)
    marks = ticks(low, high)
    if zero and len(marks) > 1:
        step = marks[1] - marks[0]
        low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return Scale(low=low, high=high, start=start, end=end)


def _bounded(value: float, *, log: bool) -> float:
    return min(max(value, _SMALLEST if log else -_LARGEST), _LARGEST)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between `low` and `high`, in steps of 1, 2 or 5."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = math.floor(math.log10(rough))
    step = next(m * 10.0**power for m in (1, 2, 5, 10) if m * 10.0**power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, max(12, 12 - power)) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two positive values, with 2 and 5 times them where those are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 6))
    steps = (1, 2, 5) if high / low < 50 else (1, 3) if high / low < 500 else (1,)
    marks = [m * 10.0**power for power in range(first, last + 1, every) for m in steps]
    return [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
