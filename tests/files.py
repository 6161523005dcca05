"""What a folder holds."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by its path from there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
