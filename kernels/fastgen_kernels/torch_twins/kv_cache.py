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

    key_scale, value_scale: what they are divided by for a cache of float8_e4m3fn; raises ValueError
    for another. Where the cache's dtype is not theirs, numbers beyond its largest become that.
    """
    check_scales(cache.dtype, key_scale, value_scale)
    for part, scale, kept in ((keys, key_scale, cache[0]), (values, value_scale, cache[1])):
        if part.dtype == kept.dtype:
            kept.index_copy_(0, slots, part)
            continue
        largest = torch.finfo(kept.dtype).max
        kept[slots] = (part.float() / scale).clamp(-largest, largest).to(kept.dtype)


def check_scales(cache_dtype: torch.dtype, key_scale: float, value_scale: float) -> None:
    """Raises ValueError for scales of a cache that holds the numbers themselves."""
    if cache_dtype != torch.float8_e4m3fn and (key_scale, value_scale) != (1.0, 1.0):
        name = str(cache_dtype).removeprefix("torch.")
        raise ValueError(
            f"scales of {key_scale} and {value_scale} for a cache of {name}: only one of "
            "float8_e4m3fn has scales; leave them 1"
        )
