"""The refusals of model files by kind, and words of a stranger made safe to print."""

from collections.abc import Sequence

from remanence.errors import BadModelFile

_RESAVE = "save the model again, with `safetensors.torch.save_file` or `torch.save(model.state_dict(), path)`"


def damaged(fault: str) -> BadModelFile:
    """The refusal of a file that is truncated or malformed."""
    return BadModelFile(f"{fault}: fetch it again", code="damaged-file")


def unsafe(fault: str) -> BadModelFile:
    """The refusal of a file that asks for more than plain weights need, or that two programs could read differently."""
    return BadModelFile(f"{fault}: {_RESAVE}", code="unsafe-file")


def unsupported(fault: str) -> BadModelFile:
    """The refusal of a file that holds something else than a flat dict of plain tensors."""
    return BadModelFile(f"{fault}: {_RESAVE}", code="unsupported-format")


def shown(text: str | bytes | int | tuple[int, ...]) -> str:
    """A stranger's words for an error message: escaped, so that they cannot steer a terminal, and short."""
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:76]} ..."


def listed(words: Sequence[str], limit: int = 3) -> str:
    """The first `limit` words, and how many more there are."""
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more
