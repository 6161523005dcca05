"""The steps that an audit chose for its searches, on disk: one that is repeated must choose the same to resume them."""

import json
from hashlib import sha256
from pathlib import Path


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
            (self.folder / "steps.json").write_text(json.dumps(self._chosen), encoding="utf-8")
        return self._chosen[key]


def _read(path: Path) -> dict[str, int]:
    """What was chosen; nothing where the file is missing or damaged."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    good = isinstance(given, dict) and all(type(value) is int and value > 0 for value in given.values())
    return dict(given) if good else {}
