"""The decode kernel with a clock: when each of its CTAs begins and ends.

It is the kernel itself, called by one that reads the GPU's clock before and after.
"""

# Kernels are no Python: Triton gives their arguments types of its own.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from triton.language.extra.cuda import globaltimer

from fastgen_kernels.triton_kernels.decode_kernel import decode
from fastgen_kernels.triton_kernels.launch import Launch


@triton.jit(do_not_specialize=["group", "block_bits", "table_stride"])
def stamped(
    stamps,
    query,
    keys,
    values,
    out,
    partial,
    partial_lse,
    items,
    bounds,
    tables,
    query_stride,
    out_stride,
    slot_stride,
    table_stride,
    group,
    block_bits,
    scale,
    soft_cap,
    value_scale,
    size: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_size: tl.constexpr,
    tile_keys: tl.constexpr,
    whole_tiles: tl.constexpr,
    capped: tl.constexpr,
):
    """As `decode`. stamps: [CTAs, 2] nanoseconds of the GPU's clock, at the begin and the end."""
    place = stamps + 2 * tl.program_id(0)
    tl.store(place, globaltimer())
    decode(
        query, keys, values, out, partial, partial_lse, items, bounds, tables, query_stride,
        out_stride, slot_stride, table_stride, group, block_bits, scale, soft_cap, value_scale,
        size, tile_rows, tile_size, tile_keys, whole_tiles, capped,
    )  # fmt: skip
    tl.debug_barrier()  # all of the CTA's warps have ended
    tl.store(place + 1, globaltimer())


def stamped_launch(launch: Launch) -> Launch:
    """Of a launch of `decode`; its stamps are among the arguments."""
    stamps = torch.zeros(
        (launch.grid[0], 2), dtype=torch.int64, device=launch.arguments["out"].device
    )
    arguments: dict[str, Any] = {"stamps": stamps, **launch.arguments}
    return Launch(stamped, launch.grid, arguments, launch.num_warps, launch.num_stages)


def stamps_of(launch: Launch, rounds: int) -> list[NDArray[np.int64]]:
    """[CTAs, 2] of each of some runs, after one that compiles."""
    found = []
    for _ in range(1 + rounds):
        launch.run()
        found.append(launch.arguments["stamps"].cpu().numpy().copy())
    return found[1:]
