"""What a refusal must be like: a `BadInput` with the code of its fault."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from remanence.errors import BadInput


@contextmanager
def refused(code: str, argument: str | None = None) -> Iterator["pytest.ExceptionInfo[BadInput]"]:
    """Expect the block to raise `BadInput` with this `code` and, where one is given, this `argument`."""
    with pytest.raises(BadInput) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"
    assert argument is None or caught.value.argument == argument, f"{caught.value.argument}: {caught.value}"
