"""Damage to a valid file: a few edits, each of which is given by small numbers, so that a failure can be shrunk."""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import final

KINDS = ("flip", "byte", "delete", "insert", "truncate", "repeat", "splice", "number", "digits", "word")
_BYTES = (0, 1, 0x7F, 0x80, 0xFF, ord("."), ord("R"), ord("{"), ord('"'), ord(","), ord("\n"), 0x1B)
_LENGTHS = (1, 2, 4, 16, 100, 5000)
_NUMBERS = (0, 1, -1, 2**15, 2**31 - 1, 2**32 - 1, 2**40, 2**62, -(2**63))
_DIGITS = (b"0", b"-1", b"1" + b"0" * 400, b"1e308", b"-1e999", b"NaN", b"1.5", b"99999999999999999999", b"null")
_WORDS = (b'"\\ud800"', b"\x1b[2J\x1b]0;x\x07", b"[[[[[[[[", b'{"a":', b"\xff\xfe", b"../../", b"\x00" * 8)


@final
@dataclass(frozen=True, kw_only=True)
class Edit:
    """One change: its kind, where (0 to 1 along the file), and a number from 0 to 255 that settles the details."""

    kind: str
    at: float
    detail: int

    @classmethod
    def sample(cls, random: Random) -> "Edit":
        return cls(kind=random.choice(KINDS), at=random.random(), detail=random.randrange(256))


def damage(content: bytes, edits: Sequence[Edit], *, other: bytes = b"", words: Sequence[bytes] = ()) -> bytes:
    """The content after all edits; `other` is a file to splice with, `words` are pieces to put in."""
    damaged = bytearray(content)
    for edit in edits:
        _apply(damaged, edit, other, (*_WORDS, *words))
    return bytes(damaged)


def _apply(content: bytearray, edit: Edit, other: bytes, words: Sequence[bytes]) -> None:
    at, detail = int(edit.at * max(len(content) - 1, 0)), edit.detail
    length = _LENGTHS[detail % len(_LENGTHS)]
    match edit.kind:
        case "flip" if content:
            content[at] ^= 1 << detail % 8
        case "byte" if content:
            content[at] = _BYTES[detail % len(_BYTES)]
        case "delete":
            del content[at : at + length]
        case "insert":
            content[at:at] = bytes([_BYTES[detail // len(_LENGTHS) % len(_BYTES)]]) * length
        case "truncate":
            del content[at:]
        case "repeat":
            content[at:at] = content[at : at + length] * (1 + detail // 16)
        case "splice":
            content[at:] = other[int(detail / 256 * len(other)) :]
        case "number":
            number = _NUMBERS[detail % len(_NUMBERS)]
            order, width = "<>"[detail // 16 % 2], (2, 4, 8)[detail // 32 % 3]
            packed = struct.pack(f"{order}Q", number % 2**64)
            content[at : at + width] = packed[:width] if order == "<" else packed[-width:]
        case "digits":
            if found := re.compile(rb"-?\d[\d.eE+-]*").search(content, at):
                content[found.start() : found.end()] = _DIGITS[detail % len(_DIGITS)]
        case "word":
            content[at:at] = words[detail % len(words)]
