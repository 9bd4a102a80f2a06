"""The arithmetic of a replica's memory."""

import pytest

from fastgen_api.names import StartupFailure
from fastgen_api.spec import DType
from fastgen_runtime.models.capacity import cache_bytes, num_blocks_for, resolve_dtype
from fastgen_runtime.startup_error import StartupError

GIB = 1 << 30


def test_auto_is_bfloat16_only_where_the_cpu_multiplies_it() -> None:
    assert resolve_dtype(DType.AUTO, frozenset({"avx2", "avx512f"})) is DType.FLOAT32
    assert resolve_dtype(DType.AUTO, frozenset({"avx512_bf16"})) is DType.BFLOAT16
    assert resolve_dtype(DType.FLOAT16, frozenset({"amx_bf16"})) is DType.FLOAT16
    assert resolve_dtype(DType.AUTO, frozenset(), on_gpu=True) is DType.BFLOAT16
    assert resolve_dtype(DType.FLOAT16, frozenset(), on_gpu=True) is DType.FLOAT16


def test_blocks_fill_what_is_left() -> None:
    assert num_blocks_for(1000, 10, 16, longest=32, most_requests=100) == 100


def test_no_more_blocks_than_all_requests_can_use() -> None:
    assert num_blocks_for(1000, 10, 16, longest=33, most_requests=4) == 12


@pytest.mark.parametrize("available", [19, 0, -5])
def test_too_little_for_one_request(available: int) -> None:
    with pytest.raises(StartupError, match=r"request of 32 tokens needs .* MiB") as raised:
        num_blocks_for(available, 10, 16, longest=32, most_requests=4)
    assert raised.value.reason is StartupFailure.OUT_OF_MEMORY


def test_the_limit_counts_when_it_is_below_what_the_machine_has() -> None:
    limited = cache_bytes(4 * GIB, 100 * GIB, GIB, 100, 0)
    assert cache_bytes(4 * GIB, 50 * GIB, GIB, 100, 0) == limited
    assert cache_bytes(None, 3 * GIB, GIB, 100, 0) == limited
    assert cache_bytes(8 * GIB, 3 * GIB, GIB, 100, 0) == limited
    assert cache_bytes(4 * GIB, 100 * GIB, GIB, 100, 7) == limited - 7
    assert cache_bytes(4 * GIB, 100 * GIB, GIB, 50, 0) == limited - 2 * GIB
