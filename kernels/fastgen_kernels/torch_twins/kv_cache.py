"""Writes to the paged cache."""

from torch import Tensor


def kv_write(keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Puts keys and values [T, kv heads, D] into cache [2, slots, kv heads, D] at slots [T]."""
    cache[0].index_copy_(0, slots, keys)
    cache[1].index_copy_(0, slots, values)
