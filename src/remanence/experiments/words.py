"""Numbers as a reader says them."""

PERCENT, DASH, MINUS = "\N{NO-BREAK SPACE}%", "\N{EN DASH}", "\N{MINUS SIGN}"


def number(value: object) -> str:
    """Three digits for a reader; a value that is missing is a dash, one that is no number stays as it is."""
    if value is None:
        return DASH
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
    return text.replace("-", MINUS)


def score(value: object) -> str:
    """Three digits with their zeros, so that a column of scores can be compared down the page."""
    if isinstance(value, float) and 0 < abs(value) < 100:
        return f"{value:#.3g}".removesuffix(".").replace("-", MINUS)
    return number(value)


def by_chance(count: float | None) -> str:
    """How many of a list are expected to be there by chance, in words."""
    if not count:
        return "none by chance"
    return f"about {count:,.0f} by chance" if count >= 1 else "fewer than one by chance"


def percent(fraction: object) -> str:
    """A fraction as a reader says it, with more digits near nothing and near all, where rounding would mislead."""
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        return number(fraction)
    digits = ".2g" if fraction < 0.1 else ".0f" if fraction <= 0.99 else ".3g"
    return f"{100 * fraction:{digits}}{PERCENT}"


def between(low: object, high: object) -> str:
    """An interval in words; nothing where one end is missing."""
    return "" if low is None or high is None else f"{score(low)} to {score(high)}"
