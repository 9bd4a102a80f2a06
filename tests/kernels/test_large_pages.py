"""Memory of large pages where the kernel has none, and where there is no memory."""

import errno
import mmap

import pytest
import torch

from fastgen_kernels.large_pages import large_pages


def refuse_advice(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mapped(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(number, "refused")

    monkeypatch.setattr(mmap, "mmap", Mapped)


def test_a_kernel_without_large_pages_gives_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_advice(errno.EINVAL, monkeypatch)
    zeros = large_pages((3, 5), torch.bfloat16)
    assert zeros.shape == (3, 5)
    assert torch.equal(zeros, torch.zeros(3, 5, dtype=torch.bfloat16))
    zeros.fill_(1)


def test_other_errors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_advice(errno.EBADF, monkeypatch)
    with pytest.raises(OSError, match="refused"):
        large_pages((3, 5), torch.bfloat16)


def test_more_than_there_is_room_for() -> None:
    """More than any process's addresses reach."""
    with pytest.raises(MemoryError, match="no memory for 4611686018427387904 bytes"):
        large_pages((1 << 60,), torch.float32)
