"""Attention's kernels on cases, interpreted: what they leave unwritten is NaN.

Bounds of the largest error, for keys, values and queries of variance 1: 1e-5 in float32, 2e-3 in
float16 and 1.6e-2 in bfloat16, which round the weights and the result.
"""

from collections.abc import Sequence
from typing import Final

import torch
from attention_cases import Case
from torch import Tensor

from fastgen_kernels.triton_kernels.attention import Scales, launches
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.launch import Launch
from fastgen_kernels.triton_kernels.tiling import Gpu
from fastgen_kernels.work_list import Splits

CPU: Final = torch.device("cpu")
_UNSCALED: Final = Scales()
BOUNDS: Final = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def run(made: Sequence[Launch]) -> None:
    """Of `launches`, in order, after partial results have become NaN."""
    for launch in made:
        if launch.kernel is made[0].kernel:
            for name in {"partial", "partial_lse"} & launch.arguments.keys():
                launch.arguments[name].fill_(torch.nan)
        launch.run()


def ours(
    case: Case,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
    *,
    multiprocessors: int = 2,
    architecture: int = 90,
    splits: Splits = Splits.WORK_LIST,
    scales: Scales = _UNSCALED,
) -> Tensor:
    """[T, heads × D], on a GPU that is described rather than found."""
    gpu = Gpu(architecture, multiprocessors)
    plan = make_plan(case.batch, case.heads, CPU, gpu, window, splits)
    out = torch.full(case.query.shape, torch.nan, dtype=case.query.dtype)
    run(launches(case.query, case.cache, plan, out, scale, cap, scales))
    return out.flatten(1)


def assert_equal(case: Case, result: Tensor, expected: Tensor) -> None:
    """Within the bound of the case's type."""
    assert result.dtype == case.query.dtype
    bound = BOUNDS[case.query.dtype]
    torch.testing.assert_close(result.double(), expected, atol=bound, rtol=0)
