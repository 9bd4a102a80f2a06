"""Launches that choose tokens, in the shapes of the models that are tested."""

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
import torch

from fastgen_kernels.aot.entry import AMPERE, HOPPER, Entry
from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import Draw
from fastgen_kernels.triton_kernels.draw_table import DrawTable
from fastgen_kernels.triton_kernels.launch import Launch
from fastgen_kernels.triton_kernels.sampling import sample_launches
from fastgen_kernels.triton_kernels.token_logprobs import logprobs_launch

_VOCABULARY = 128_256
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def entries() -> Iterator[Entry]:
    """Sampling with and without edits and masks, and log probabilities."""
    for architecture, dtype in product((AMPERE, HOPPER), _TYPES):
        for edited, masked in product((False, True), (False, True)):
            yield Entry(
                f"sample{' edited' if edited else ''}{' masked' if masked else ''} {dtype}",
                architecture,
                partial(_choice, dtype, edited, masked),
                common=dtype == "bf16",
            )
        yield Entry(
            f"logprobs {dtype}", architecture, partial(_logprobs, dtype), common=dtype == "bf16"
        )
        if dtype == "bf16":
            yield Entry("sample edits", architecture, _edits, common=True)


def _launches(dtype: str, edited: bool, masked: bool) -> list[Launch]:
    adjustment = Adjustment(
        bias={0: 1.0} if edited else {},
        mask=np.full(_VOCABULARY // 32, -1, np.int32) if masked else None,
    )
    draws = [Draw(1.0, 50, 0.9, adjustment=adjustment)] * 64
    logits = torch.empty((64, _VOCABULARY), dtype=_TYPES[dtype], device="meta")
    out = torch.empty(64, dtype=torch.int64, device="meta")
    return sample_launches(logits, DrawTable.of(draws, _VOCABULARY), _VOCABULARY, out)


def _choice(dtype: str, edited: bool, masked: bool) -> Launch:
    return _launches(dtype, edited, masked)[-1]


def _edits() -> Launch:
    return _launches("bf16", True, False)[0]


def _logprobs(dtype: str) -> Launch:
    logits = torch.empty((64, _VOCABULARY), dtype=_TYPES[dtype], device="meta")
    chosen = torch.empty(64, dtype=torch.int64, device="meta")
    values = torch.empty((64, 6), device="meta")
    return logprobs_launch(logits, chosen, _VOCABULARY, values, values.to(torch.int32))
