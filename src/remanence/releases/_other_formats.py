"""What a file is that holds no weights as safetensors or as a torch zip, by its first bytes, and the way out."""

from remanence.errors import BadModelFile
from remanence.releases._refusals import shown, unsupported

_LEGACY = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")  # torch's old format begins with a pickle of this number
_UNREAD = "opening it can run code, so it is refused unread"
_RESAVE = (
    "where you trust it, save it again, with `torch.save(torch.load(path, weights_only=True), new_path)`, or, if it is "
    "a whole model, with `safetensors.torch.save_file(model.state_dict(), new_path)`"
)
_BY_HEAD = {
    b"version https://git-lfs": "it is a pointer of Git LFS, not the file: fetch that with `git lfs pull`",
    b"<": "it is a web page or XML, expected weights: fetch the file itself, perhaps after logging in",
    b"\x1f\x8b": "it is compressed by gzip: unpack it",
    b"\x28\xb5\x2f\xfd": "it is compressed by zstd: unpack it",
    b"BZh": "it is compressed by bzip2: unpack it",
    b"\xfd7zXZ": "it is compressed by xz: unpack it",
    b"7z\xbc\xaf": "it is a 7z archive: unpack it",
    b"GGUF": "it is GGUF, whose weights are quantised: give the weights that it was made from, saved by "
    "`safetensors.torch.save_file`",
    b"{": "it is JSON, expected weights: give the folder of sharded weights, or its .index.json, to `audit model`, and "
    "one file of `safetensors.torch.save_file` to `load_weights`",
}


def other_format(head: bytes) -> BadModelFile:
    """The refusal of a file that begins with `head`."""
    for start, fault in _BY_HEAD.items():
        if head.startswith(start):
            return BadModelFile(fault, code="unsupported-format")
    if _LEGACY in head:
        return BadModelFile(f"it is in torch's old format; {_UNREAD}: {_RESAVE}", code="unsupported-format")
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return unsupported(f"it is a bare pickle; {_UNREAD}")
    return unsupported(f"it begins with {shown(head[:9])}, neither as safetensors nor as a torch zip")
