"""Memory of large pages, which is read faster where it is read from end to end."""

import mmap

import torch
from torch import Tensor


def large_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, of whose memory only pages that somebody writes to are taken."""
    size = torch.Size(shape).numel() * dtype.itemsize
    memory = mmap.mmap(-1, max(1, size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size].view(dtype).view(shape)
