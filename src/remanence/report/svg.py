"""What every drawing shares: its frame, and where the marks of an axis lie."""

import math
from html import escape

WIDTH = 420


def drawing(title: str, body: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="figure" viewBox="0 0 {WIDTH} {height:g}" role="img">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def nothing(title: str, height: float = 120) -> str:
    body = f'<text x="{WIDTH / 2}" y="{height / 2:g}" text-anchor="middle">too few scores to draw</text>'
    return drawing(title, body, height)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between `low` and `high`, in steps of 1, 2 or 5."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two positive values, with 2 and 5 times them where those are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 6))
    steps = (1, 2, 5) if high / low < 50 else (1, 3) if high / low < 500 else (1,)
    marks = [m * 10.0**power for power in range(first, last + 1, every) for m in steps]
    return [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
