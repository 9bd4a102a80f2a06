"""Launches of the layers around attention, in the shapes of the models that are tested.

Nothing is computed: the tensors have shapes, strides and alignment, and no memory. bfloat16, which
models come in, has every shape, float16 the most frequent ones; GPUs compute in no other type.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.aot.entry import AMPERE, HOPPER, Entry
from fastgen_kernels.torch_twins.quantized import GROUP_SIZES, QuantizedWeight, WeightFormat
from fastgen_kernels.triton_kernels.activation import activation_launch
from fastgen_kernels.triton_kernels.experts import StackedExperts, expert_launches
from fastgen_kernels.triton_kernels.launch import Launch
from fastgen_kernels.triton_kernels.norm import norm_launch
from fastgen_kernels.triton_kernels.quantized import linear_launches
from fastgen_kernels.triton_kernels.rotary import rotary_launch
from fastgen_kernels.triton_kernels.route import route_launch

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_WIDE = ("LDG.E.128",)
_COMMON = "bf16"
_NUM_SMS = {AMPERE: 108, HOPPER: 132}
_Shape = tuple[int, ...]


def entries() -> Iterator[Entry]:
    """Norms, rotary embedding, activations, experts and weights of 8 bits."""
    for architecture, dtype in product((AMPERE, HOPPER), _TYPES):
        for size in (576, 4096, 8192) if dtype == _COMMON else (4096,):
            yield from _norms(architecture, dtype, size)
        yield from _rotaries(architecture, dtype)
        yield from _activations(architecture, dtype)
        yield from _experts(architecture, dtype)
        for form in WeightFormat:
            if form is not WeightFormat.FP8 or architecture > AMPERE:
                yield from _quantized(architecture, dtype, form)


def _tensor(dtype: str | torch.dtype, *shape: int) -> Tensor:
    kind = _TYPES[dtype] if isinstance(dtype, str) else dtype
    return torch.empty(shape, dtype=kind, device="meta")


def _one(launches: Callable[..., list[Launch]], number: int, *shape: int | None) -> Launch:
    return launches(*shape)[number]


def _matrix_instructions(architecture: int, *, few: bool) -> tuple[str, ...]:
    """few: tiles of 16 rows, which Hopper's own tensor core instructions are too large for."""
    return ("LDGSTS", "HGMMA" if architecture == HOPPER and not few else "HMMA")


def _norms(architecture: int, dtype: str, size: int) -> Iterator[Entry]:
    def make(add: bool, centred: bool) -> Launch:
        x, weight = _tensor(dtype, 512, size), _tensor(dtype, size)
        return norm_launch(
            x, x.clone() if add else None, weight, weight if centred else None, 1e-5, x,
            centred=centred,
        )  # fmt: skip

    for (name, centred), add in product((("rms_norm", False), ("layer_norm", True)), (False, True)):
        yield Entry(
            f"{'add_' if add else ''}{name} {size} {dtype}",
            architecture,
            partial(make, add, centred),
            _WIDE if size >= 4096 else (),
            common=dtype == _COMMON and size == 4096,
        )


def _rotaries(architecture: int, dtype: str) -> Iterator[Entry]:
    def make(size: int, half: int) -> Launch:
        packed = _tensor(dtype, 512, 48, size)
        angles = _tensor(dtype, 512, 1, half)
        return rotary_launch(packed[:, :40], angles, angles, _tensor(dtype, 512, 40, size))

    sizes = ((128, 64), (128, 32), (64, 32), (80, 16), (96, 48), (256, 128), (256, 32))
    for size, half in sizes if dtype == _COMMON else sizes[:2]:
        yield Entry(
            f"rotary {size}/{2 * half} {dtype}",
            architecture,
            partial(make, size, half),
            common=dtype == _COMMON and size == 128,
        )


def _activations(architecture: int, dtype: str) -> Iterator[Entry]:
    def make(activation: Activation, gated: bool) -> Launch:
        x, out = _tensor(dtype, 512, 14336 * (2 if gated else 1)), _tensor(dtype, 512, 14336)
        return activation_launch(x, activation, out, gated=gated)

    for activation, gated in product(Activation, (False, True)):
        yield Entry(
            f"{'gate' if gated else 'activate'} {activation} {dtype}",
            architecture,
            partial(make, activation, gated),
            _WIDE,
            common=dtype == _COMMON and activation is Activation.SILU,
        )


def _experts(architecture: int, dtype: str) -> Iterator[Entry]:
    def launches(num_tokens: int) -> list[Launch]:
        count, hidden, inner, top_k = 8, 4096, 14336, 2
        x = _tensor(dtype, num_tokens, hidden)
        weights = StackedExperts(
            _tensor(dtype, count, 2 * inner, hidden), _tensor(dtype, count, hidden, inner)
        )
        return expert_launches(
            x, _tensor(torch.float32, num_tokens, top_k), _tensor(torch.int64, num_tokens, top_k),
            weights, Activation.SILU, x,
        )  # fmt: skip

    def route(renormalise: bool) -> Launch:
        return route_launch(
            _tensor(dtype, 512, 64), 8, renormalise, _tensor(torch.float32, 512, 8),
            _tensor(torch.int64, 512, 8),
        )  # fmt: skip

    for tokens, number in product((16, 256, 2048), (1, 2)):
        yield Entry(
            f"experts {('gate_up', 'down')[number - 1]} {tokens} tokens {dtype}",
            architecture,
            partial(_one, launches, number, tokens),
            _matrix_instructions(architecture, few=tokens == 16),
            common=dtype == _COMMON,
        )
    yield Entry(
        f"experts sum {dtype}",
        architecture,
        partial(_one, launches, 3, 256),
        common=dtype == _COMMON,
    )
    if dtype == _COMMON:
        yield Entry("experts group", architecture, partial(_one, launches, 0, 256), common=True)
    for renormalise in (False, True):
        yield Entry(
            f"route{' renormalised' if renormalise else ''} {dtype}",
            architecture,
            partial(route, renormalise),
            common=dtype == _COMMON,
        )


def _quantized(architecture: int, dtype: str, form: WeightFormat) -> Iterator[Entry]:
    kind = torch.int8 if form is WeightFormat.INT8 else torch.float8_e4m3fn

    groups = (None, *GROUP_SIZES) if dtype == _COMMON else (None, 128)

    def launches(num_tokens: int, group: int | None) -> list[Launch]:
        inputs, outputs = 4096, 6144
        scales = _tensor(torch.float32, outputs, inputs // group if group else 1)
        weight = QuantizedWeight(_tensor(kind, outputs, inputs), scales, group)
        return linear_launches(
            _tensor(dtype, num_tokens, inputs), weight, None, _tensor(dtype, num_tokens, outputs),
            _NUM_SMS[architecture],
        )  # fmt: skip

    for tokens, group in product((16, 64, 2048), groups):
        yield Entry(
            f"linear {form} {f'group {group} ' if group else ''}{tokens} tokens {dtype}",
            architecture,
            partial(_one, launches, 0, tokens, group),
            _matrix_instructions(architecture, few=tokens == 16),
            common=dtype == _COMMON and group is None,
        )
    if form is WeightFormat.INT8:
        yield Entry(
            f"linear sum {dtype}",
            architecture,
            partial(_one, launches, 1, 16, None),
            common=dtype == _COMMON,
        )
