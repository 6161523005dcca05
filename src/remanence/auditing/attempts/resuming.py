"""The steps that an audit chose for its searches, on disk: one that is repeated must choose the same to resume them."""

import json
from hashlib import sha256
from pathlib import Path

from remanence.caching import digest, say_damaged
from remanence.disk import replace_bytes


def searches_of(folder: Path) -> Path:
    """Where the searches of an audit are while it runs: beside its folder, which may be handed on when it is redacted,
    and searches hold reconstructions."""
    return folder.resolve().parent / f"{folder.resolve().name}.searches"


class Steps:
    """How many steps each attack takes, remembered in `folder` where one is given; searches keep their state there."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._chosen: dict[str, int] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._chosen = _read(folder / "steps.json")

    def choose(self, attack: str, steps: int) -> int:
        """The steps that were chosen before for the attack of this `repr`, or `steps`, which are remembered."""
        key = sha256(attack.encode()).hexdigest()[:16]
        self._chosen.setdefault(key, steps)
        if self.folder is not None:
            replace_bytes(self.folder / "steps.json", _text(self._chosen).encode())
        return self._chosen[key]


def _text(chosen: dict[str, int]) -> str:
    return json.dumps({"steps": chosen, "digest": digest([json.dumps(chosen).encode()])})


def _read(path: Path) -> dict[str, int]:
    """What was chosen; nothing where the file is missing, or damaged, which is said."""
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        chosen = json.loads(text)["steps"]
        good = text == _text(chosen) and all(type(value) is int and value > 0 for value in chosen.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if good:
        return dict(chosen)
    say_damaged(path)
    return {}
