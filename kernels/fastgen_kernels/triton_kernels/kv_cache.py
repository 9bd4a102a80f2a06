"""Writes to the paged cache."""

from typing import Final

import torch
from torch import Tensor

from fastgen_kernels.torch_twins.kv_cache import check_scales
from fastgen_kernels.triton_kernels.kv_write_kernel import kv_write_rows
from fastgen_kernels.triton_kernels.launch import Launch, check_heads_together

_MOST_TILE: Final = 1024


def kv_write(
    keys: Tensor,
    values: Tensor,
    cache: Tensor,
    slots: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """See the twin; tokens whose slot is negative, or beyond the cache, are not written."""
    kv_write_launch(keys, values, cache, slots, key_scale, value_scale).run()


def kv_write_launch(
    keys: Tensor,
    values: Tensor,
    cache: Tensor,
    slots: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> Launch:
    """Raises ValueError when there are not as many slots as tokens, for heads that are apart, and
    for scales of a cache that has none."""
    check_scales(cache.dtype, key_scale, value_scale)
    if not len(slots) == len(keys) == len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values for {len(slots)} slots")
    for name, tensor in (("keys", keys), ("values", values), ("cache", cache[0])):
        check_heads_together(name, tensor)
    cached_keys, cached_values = cache.unbind()
    width = keys.shape[1] * keys.shape[2]
    tile = min(_MOST_TILE, 1 << (width - 1).bit_length())
    arguments = {
        "keys": keys,
        "values": values,
        "cached_keys": cached_keys,
        "cached_values": cached_values,
        "slots": slots,
        "key_stride": keys.stride(0),
        "value_stride": values.stride(0),
        "slot_stride": cached_keys.stride(0),
        "num_slots": cached_keys.shape[0],
        "key_scale": key_scale,
        "value_scale": value_scale,
        "largest": torch.finfo(cache.dtype).max,
        "width": width,
        "tile": tile,
    }
    return Launch(kv_write_rows, (len(keys), -(-width // tile)), arguments, 4)
