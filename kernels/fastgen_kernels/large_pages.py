"""Memory of large pages, which is read faster where it is read from end to end."""

import errno
import mmap

import torch
from torch import Tensor


def large_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, of whose memory only pages that somebody writes to are taken.

    Of usual pages where the kernel has no large ones. Raises MemoryError where there is no room.
    """
    size = torch.Size(shape).numel() * dtype.itemsize
    memory = _mapped(max(1, size))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _ask_for_large_pages(memory)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size].view(dtype).view(shape)


def _mapped(size: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"no memory for {size} bytes") from error


def _ask_for_large_pages(memory: mmap.mmap) -> None:
    """Where the kernel was built without them it knows no such advice (EINVAL)."""
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
