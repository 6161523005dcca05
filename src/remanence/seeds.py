"""Independent seeds for different purposes, derived from one: what is sampled for one never repeats in another."""

from hashlib import blake2b


def derive_seed(seed: int, *purpose: str | int) -> int:
    """The seed for `purpose`, such as `derive_seed(seed, "shadows", 3)`."""
    words = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(blake2b(words.encode(), digest_size=4).digest())
