"""Token records from files: integer arrays as a tokenizer makes them, and the vocabulary that names them.

    np.savez("batch.npz", input_ids=ids, attention_mask=mask)     # or lengths=..., or ids below zero where nothing is
    np.save("batch.npy", ids)                                     # sequences of one length

Nothing is unpickled.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from remanence.data import Tokens
from remanence.data._parsing import as_tensor, parsing, user_path
from remanence.data.npz import opened_npz, read_npy
from remanence.disk import read_text
from remanence.errors import MAX_NAME, BadInput, listed, printable
from remanence.models.transformer import PADDING, Transformer
from remanence.progress import say
from remanence.releases.loading import load_checkpoint

_IDS = ("input_ids", "ids", "tokens", "x")
_MASKS, _LENGTHS, _LABELS = ("attention_mask", "mask"), ("lengths", "length"), ("y", "labels", "label")
_SUFFIXES = (".npy", ".npz", ".safetensors", ".pt")
_MAX_VOCABULARY = 2**26  # bytes
_BLANK = "\u0120"  # what stands for a blank before a word in the vocabulary of GPT-2


def load_tokens(source: str, model: Transformer, vocabulary: tuple[str, ...], *, argument: str) -> Tokens:
    """The sequences of a file for `model`; of one without special tokens ids become one larger, as 0 is padding."""
    path = user_path(source, argument=argument)
    arrays = _arrays(path)
    ids = _only(path, arrays, argument)
    present = _present(path, ids, arrays, special=model.special, argument=argument)
    ids = torch.where(present, ids + (not model.special), PADDING)
    _check_ids(path, ids, present, model, argument)
    longest = int(present.sum(1).max())
    ids, positions = ids[:, :longest], len(model.positions.weight)
    if longest > positions:
        message = f"{path} has a sequence of {longest} tokens, and the network positions for {positions}: split it"
        raise BadInput(message, code="out-of-range", argument=argument)
    labels, classes = _labels(path, arrays, model, len(ids), argument)
    name = printable(path.stem, MAX_NAME)
    return Tokens(ids=ids, y=labels, vocabulary=vocabulary, num_classes=classes, name=name)


def load_vocabulary(path: Path | None, model: Transformer) -> tuple[str, ...]:
    """The word of each token id of `model`: those of a JSON file (a list, or ids by word) or of the lines of a text;
    their numbers where no file is given, and for ids that it does not name."""
    size = len(model.tokens.weight)
    shift = int(not model.special)
    words = {i: str(i - shift) for i in range(size)} | {PADDING: "<pad>"}
    if path is None:
        return tuple(words.values())
    with parsing(path, "a vocabulary"):
        text = read_text(path, max_bytes=_MAX_VOCABULARY)
        given = json.loads(text) if path.suffix == ".json" else text.splitlines()
    listed_words = given if isinstance(given, list) else []
    named = list(given.items()) if isinstance(given, dict) else [(word, i) for i, word in enumerate(listed_words)]
    if not named or not all(isinstance(word, str) and type(i) is int and i >= 0 for word, i in named):
        message = f"{path} must hold words: a JSON list, a JSON object of ids by word, or a line for each"
        raise BadInput(message, code="wrong-type", argument="vocabulary")
    if (largest := max(i for _, i in named)) + shift >= size:
        message = f"{path} names ids up to {largest}, and the network has {size - shift}, 0..{size - shift - 1}"
        raise BadInput(message, code="out-of-range", argument="vocabulary")
    if (count := len({i for _, i in named})) < size - shift:
        say(f"note: {path} names {count:,} of {size - shift:,} tokens; the others are shown as numbers")
    words |= {i + shift: printable(word.replace(_BLANK, "") or word, MAX_NAME) for word, i in named}
    return tuple(words.values())


def _arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of the file by their names; a single one is called `ids`."""
    if path.suffix not in _SUFFIXES:
        message = f"tokens must be an integer array in {', '.join(_SUFFIXES)}, got {path}: tokenize the text, and save"
        raise BadInput(message, code="unsupported-format", argument="path")
    if path.suffix == ".npy":
        return {"ids": as_tensor(read_npy(path))}
    if path.suffix == ".npz":
        with opened_npz(path) as file:
            return {
                name: as_tensor(array) for name, array in file.load(file.keys).items() if array.dtype.kind in "iufb"
            }
    return load_checkpoint(path, choose=lambda dicts: dict(next(iter(dicts.values()))))


def _only(path: Path, arrays: Mapping[str, Tensor], argument: str) -> Tensor:
    """(n, length): the token ids, which have one of the usual names or are the only array."""
    named = [arrays[name] for name in _IDS if name in arrays] or (list(arrays.values()) if len(arrays) == 1 else [])
    if not named:
        message = f"{path} must hold token ids as `input_ids`, got {listed(list(arrays)) or 'no array'}: rename them"
        raise BadInput(message, code="unknown-name", argument=argument)
    ids = named[0]
    if ids.is_floating_point() or ids.dtype == torch.bool:
        kind = str(ids.dtype).removeprefix("torch.")
        message = f"token ids of {path} must be whole numbers, got {kind}: save the ids of the tokenizer"
        raise BadInput(message, code="wrong-type", argument=argument)
    if ids.ndim != 2 or not ids.numel():
        message = f"token ids of {path} must have the shape (sequences, length), got {tuple(ids.shape)}"
        raise BadInput(message, code="shape-mismatch", argument=argument)
    return ids.long()


def _present(path: Path, ids: Tensor, arrays: Mapping[str, Tensor], *, special: bool, argument: str) -> Tensor:
    """(n, length): where there is a token, by the mask, the lengths, or ids below zero; 0 is padding too where it is a
    special token."""
    present = ids > PADDING if special else ids >= 0
    if mask := [arrays[name] for name in _MASKS if name in arrays]:
        _check_shape(path, "the mask", mask[0], ids.shape, argument)
        present = present & (mask[0] != 0)
    if lengths := [arrays[name] for name in _LENGTHS if name in arrays]:
        _check_shape(path, "the lengths", lengths[0], ids.shape[:1], argument)
        present = present & (torch.arange(ids.shape[1]) < lengths[0][:, None])
    if bool((present[:, 1:] & ~present[:, :-1]).any()) or not bool(present.any(1).all()):
        message = f"{path} must have a token in each sequence, and padding at its end only: pad on the right"
        raise BadInput(message, code="out-of-range", argument=argument)
    return present


def _check_ids(path: Path, ids: Tensor, present: Tensor, model: Transformer, argument: str) -> None:
    size, shift = len(model.tokens.weight), int(not model.special)
    largest = int(ids[present].max())
    if largest >= size:
        message = (
            f"{path} has token ids up to {largest - shift}, and the network {size - shift} tokens, "
            f"0..{size - shift - 1}: give ids of its own tokenizer"
        )
        raise BadInput(message, code="out-of-range", argument=argument)


def _check_shape(path: Path, what: str, given: Tensor, expected: torch.Size, argument: str) -> None:
    if given.shape != expected:
        message = f"{what} of {path} must have the shape {tuple(expected)}, got {tuple(given.shape)}"
        raise BadInput(message, code="shape-mismatch", argument=argument)


def _labels(
    path: Path, arrays: Mapping[str, Tensor], model: Transformer, count: int, argument: str
) -> tuple[Tensor, int]:
    """The labels (n,) that an encoder was trained on, and their number; a decoder has none."""
    if model.head is None:
        return torch.zeros(count, dtype=torch.int64), 1
    classes = len(model.head.bias)
    found = [arrays[name] for name in _LABELS if name in arrays]
    if not found:
        message = f"{path} must hold the labels of its sequences as `y`, which the network classifies: add them"
        raise BadInput(message, code="unknown-name", argument=argument)
    _check_shape(path, "the labels", found[0], torch.Size([count]), argument)
    if found[0].is_floating_point() or not 0 <= int(found[0].min()) <= int(found[0].max()) < classes:
        message = f"the labels of {path} must be whole numbers in 0..{classes - 1}, the classes of the network"
        raise BadInput(message, code="out-of-range", argument=argument)
    return found[0].long(), classes
