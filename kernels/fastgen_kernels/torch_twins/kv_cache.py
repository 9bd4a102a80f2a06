"""Writes to the paged cache."""

import torch
from torch import Tensor


def kv_write(
    keys: Tensor,
    values: Tensor,
    cache: Tensor,
    slots: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Puts keys and values [T, kv heads, D] into cache [2, slots, kv heads, D] at slots [T].

    key_scale, value_scale: what they are divided by for a cache of another dtype, where numbers
    beyond its largest become that.
    """
    for part, scale, kept in ((keys, key_scale, cache[0]), (values, value_scale, cache[1])):
        if part.dtype == kept.dtype:
            kept.index_copy_(0, slots, part)
            continue
        largest = torch.finfo(kept.dtype).max
        kept[slots] = (part.float() / scale).clamp(-largest, largest).to(kept.dtype)
