"""JSON of ours with something hostile in one place: a value of another kind, a huge one, a missing or foreign field."""

import json
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e308, -1e308, 5e-324, 10**400, -(10**400), 2**63, 1e-300, 0.1 + 1e-17),
    *("", "\ud800", "\x1b[2J\x1b]0;x\x07\r\n", "<script>alert(1)</script>\"'&", "x" * 100_000, "\u202e\u2028\x00"),
    *([], {}, [[]] * 3, [None], ["a", 1], [0.5] * 20_000, {"a": {"b": []}}, {"\ud800": 1}, {"schema": 1}),
)


def changed(value: Any, random: Random) -> Any:
    """A copy of `value` (parsed JSON) with one to three hostile changes."""
    copy = deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(copy))
        if not places:
            return copy
        inside, key = random.choice(places)
        match random.randrange(8):
            case 0 if isinstance(inside, dict):
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside["\x1b[2J" if random.random() < 0.5 else "field"] = deepcopy(random.choice(VALUES))
            case 2 if isinstance(inside, list):
                inside *= random.choice((0, 2, 300))
            case 3:
                other, name = random.choice(places)
                inside[key] = deepcopy(other[name])
            case 4:
                inside[key] = deepcopy(random.choice(VALUES))
            case _:  # of its own kind, which passes the first checks
                alike = [each for each in VALUES if _alike(each, inside[key])]
                inside[key] = deepcopy(random.choice(alike or VALUES))
    return copy


def _alike(one: Any, other: Any) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    return numbers or type(one) is type(other)


def dumped(value: Any) -> bytes:
    """The file of `value`, with numbers that JSON does not know here and there."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key or index of it; of a long list the first two entries and the last."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = sorted({0, 1, len(value) - 1} & set(range(len(value))))
    else:
        return
    for key in keys:
        yield value, key
        yield from _places(value[key])
