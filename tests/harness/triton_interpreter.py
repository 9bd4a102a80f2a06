"""Makes Triton interpret kernels in this process, with the arithmetic of a GPU.

Import it before anything imports Triton: a kernel is interpreted when the switch is on while it is
decorated, Triton's own library included. Processes that this one starts do not inherit the switch.

Three things of Triton 3.6.0 are put right. Numbers of bfloat16 are bit patterns to its interpreter:
products, sums and comparisons of them are wrong, and float32 is cut off, not rounded (Triton's
issue 11584). Numbers become float8_e4m3fn by cutting off, and NaN does not stay NaN. And its loop
bounds fail with numpy 2.4 (issue 9171).
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

if "triton" in sys.modules:
    raise RuntimeError("triton was imported before triton_interpreter: kernels are not interpreted")
os.environ["TRITON_INTERPRET"] = "1"
import triton
import triton.language as tl
from triton.runtime import interpreter

del os.environ["TRITON_INTERPRET"]
triton.knobs.propagate_env = False
triton.knobs.runtime.interpret = True

_Handle = interpreter.TensorHandle
_Builder = interpreter.InterpreterBuilder
_original = {
    name: getattr(_Builder, name)
    for name in ("cast_impl", "binary_op", "unary_op", "create_dot", "create_fp_to_fp")
}


def _widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def _narrowed(values: NDArray[Any]) -> NDArray[np.uint16]:
    """To the nearest bfloat16, ties to even; NaN stays NaN."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    nearest = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), np.uint16(0x7FC0), nearest.astype(np.uint16))


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _to_float8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """To the nearest number, of which the largest is the last: as a GPU's instruction does."""
    nearest = torch.from_numpy(np.ascontiguousarray(values)).clamp(-448, 448)
    bits: NDArray[np.uint8] = nearest.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return bits


def _cast(self: Any, source: Any, target: Any) -> Any:
    from_bfloat16, to_bfloat16 = _is_bfloat16(source), target.scalar == tl.bfloat16
    if from_bfloat16 and not to_bfloat16:
        wide = _Handle(_widened(source.data), tl.float32)
        return wide if target.scalar == tl.float32 else _original["cast_impl"](self, wide, target)
    if target.scalar == tl.float8e4nv and source.dtype.scalar == tl.float32:
        return _Handle(_to_float8(source.data), tl.float8e4nv)
    if to_bfloat16 and not from_bfloat16:
        return _Handle(_narrowed(source.data.astype(np.float32)), tl.bfloat16)
    return _original["cast_impl"](self, source, target)


def _binary(self: Any, left: Any, right: Any, operation: Callable[..., Any]) -> Any:
    if not (_is_bfloat16(left) and _is_bfloat16(right)):
        return _original["binary_op"](self, left, right, operation)
    result = operation(_widened(left.data), _widened(right.data))
    if result.dtype == np.bool_:
        return _Handle(result, tl.int1)
    return _Handle(_narrowed(result), tl.bfloat16)


def _unary(self: Any, argument: Any, operation: Callable[..., Any]) -> Any:
    if not _is_bfloat16(argument):
        return _original["unary_op"](self, argument, operation)
    return _Handle(_narrowed(operation(_widened(argument.data))), tl.bfloat16)


def _dot(self: Any, left: Any, right: Any, total: Any, *rest: Any) -> Any:
    wide = [
        _Handle(_widened(factor.data), tl.float32) if _is_bfloat16(factor) else factor
        for factor in (left, right)
    ]
    return _original["create_dot"](self, *wide, total, *rest)


def _float_to_float(self: Any, source: Any, target: Any, rounding: Any) -> Any:
    ends = (source.dtype.scalar, target.scalar)
    if tl.float32 in ends and (tl.bfloat16 in ends or target.scalar == tl.float8e4nv):
        return self.cast_impl(source, target)
    return _original["create_fp_to_fp"](self, source, target, rounding)


def _by_cast(self: Any, source: Any, target: Any) -> Any:
    return self.cast_impl(source, target)


def _install() -> None:
    _Builder.cast_impl = _cast
    _Builder.binary_op = _binary
    _Builder.unary_op = _unary
    _Builder.create_dot = _dot
    _Builder.create_fp_to_fp = _float_to_float
    kinds = ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc")
    for kind in kinds:
        setattr(_Builder, f"create_{kind}", _by_cast)
    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor
    interpreter._patch_lang = _Language(interpreter._patch_lang)
    # Triton copies whole storages to the host and back, also those that are there: of tensors that
    # lie apart it would touch all the memory in between.
    interpreter.GridExecutor._init_args_hst = lambda _, arguments, named: (arguments, named)
    interpreter.GridExecutor._restore_args_dev = lambda *_: None


class _Language:
    """Triton's library as interpreted, while a kernel runs.

    Triton changes the library at each call of a function in a kernel, which takes a thousand times
    as long as the function itself. Here it does so once a kernel.
    """

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        self._scope: Any = None
        self._depth = 0
        self.__globals__ = {"tl": tl, "core": tl.core}

    def __call__(self, _: Any) -> "_Language":
        if self._depth == 0:
            self._scope = self._patch(self)
        self._depth += 1
        return self

    def restore(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._scope.restore()


_install()
