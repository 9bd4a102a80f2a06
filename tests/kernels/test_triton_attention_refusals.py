"""What attention's kernels would read or compute wrongly is refused by name."""

import pytest
import torch
from attention_cases import make_case
from interpreted_attention import CPU

from fastgen_kernels.gpu_limits import check
from fastgen_kernels.heads import Heads
from fastgen_kernels.torch_twins import kv_cache as twin
from fastgen_kernels.triton_kernels.attention import Scales, launches
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.kv_cache import kv_write
from fastgen_kernels.triton_kernels.tiling import Gpu


def test_heads_that_lie_apart_are_refused() -> None:
    case = make_case([(3, 1)], 10, kv_heads=2, group=2, head_dim=16)
    apart = torch.empty(1, 16, 4).transpose(1, 2)
    plan = make_plan(case.batch, case.heads, CPU, Gpu(90, 2))
    with pytest.raises(ValueError, match="query: heads must be side by side"):
        launches(apart, case.cache, plan, torch.empty(case.query.shape))


@pytest.mark.parametrize(
    ("heads", "block_size", "dtype", "words"),
    [
        (Heads(8, 8, 64), 48, torch.bfloat16, "a block of 48 tokens"),
        (Heads(8, 8, 264), 64, torch.bfloat16, "heads of size 264"),
        (Heads(8, 8, 20), 64, torch.bfloat16, "heads of size 20"),
        (Heads(256, 1, 64), 64, torch.bfloat16, "groups of 256"),
        (Heads(128, 1, 256), 64, torch.bfloat16, "groups of 128"),
        (Heads(8, 8, 64), 64, torch.float32, "the dtype float32: on GPUs"),
    ],
)
def test_what_no_kernel_is_made_for_is_refused(
    heads: Heads, block_size: int, dtype: torch.dtype, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        check(heads, block_size, dtype)
    check(Heads(71, 1, 64), 64, torch.bfloat16)


def test_tensors_of_other_heads_than_the_plans_are_refused() -> None:
    """A plan and a launch that disagree read past an end (vllm-fa 161, vLLM 27884)."""
    case = make_case([(3, 1)], 11, kv_heads=2, group=2, head_dim=16)
    plan = make_plan(case.batch, case.heads, CPU, Gpu(90, 2))
    for query, cache, words in (
        (case.query[:, :2], case.cache, r"query: heads of \(2, 16\) for a plan of Heads"),
        (case.query, case.cache[:, :, :1], r"cache: heads of \(1, 16\) for a plan of Heads"),
    ):
        with pytest.raises(ValueError, match=words):
            launches(query, cache, plan, torch.empty(query.shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scales_of_a_cache_that_has_none_are_refused(dtype: torch.dtype) -> None:
    """SGLang 18396: they were applied to keys and values that are no fp8 numbers."""
    case = make_case([(3, 1)], 12, kv_heads=2, group=2, head_dim=16, dtype=dtype)
    plan = make_plan(case.batch, case.heads, CPU, Gpu(90, 2))
    out = torch.empty(case.query.shape, dtype=dtype)
    slots = torch.arange(4)
    for scales in (Scales(key=0.5), Scales(value=2.0)):
        words = "only one of float8_e4m3fn has scales; leave them 1"
        with pytest.raises(ValueError, match=words):
            launches(case.query, case.cache, plan, out, scales=scales)
        for write in (kv_write, twin.kv_write):
            with pytest.raises(ValueError, match=words):
                write(case.keys[0], case.values[0], case.cache, slots, scales.key, scales.value)
