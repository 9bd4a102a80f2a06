"""Runs the compiled step."""

import ctypes
from ctypes import POINTER, Structure, c_int, c_int64, c_void_p, pointer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastgen_kernels.cpu_step.description import StepModel
from fastgen_kernels.cpu_step.weights import DTYPES, PackedLinear, StepLayer, StepWeights, padded
from fastgen_kernels.ragged import Integers, RaggedBatch


class _Norm(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class _Linear(Structure):
    _fields_ = (("weights", c_void_p), ("scales", c_void_p), ("bias", c_void_p))


class _Expert(Structure):
    _fields_ = (("up", _Linear), ("down", _Linear))


class _Layer(Structure):
    _fields_ = (
        ("attention_norm", _Norm), ("qkv", _Linear), ("query_norm", c_void_p),
        ("key_norm", c_void_p), ("output", _Linear), ("feed_forward_norm", _Norm),
        ("up", _Linear), ("down", _Linear), ("router", _Linear), ("experts", POINTER(_Expert)),
    )  # fmt: skip


class _Weights(Structure):
    _fields_ = (
        ("embedding", c_void_p), ("positions", c_void_p), ("layers", POINTER(_Layer)),
        ("norm", _Norm), ("lm_head", _Linear), ("cos", c_void_p), ("sin", c_void_p),
    )  # fmt: skip


class _Batch(Structure):
    _fields_ = (
        ("tokens", c_int64), ("chunks", c_int64), ("table_width", c_int64), ("wanted", c_int64),
        ("blocks", c_int64), ("token_ids", c_void_p), ("starts", c_void_p), ("lengths", c_void_p),
        ("block_tables", c_void_p), ("rows", c_void_p), ("cache", c_void_p), ("hidden", c_void_p),
    )  # fmt: skip


class CpuStep:
    """A model's weights, laid out for the step, and the threads that compute it.

    Not thread-safe: one step at a time. The threads start with the first step, so a process may
    fork before it.
    """

    def __init__(self, library: Path, model: StepModel, weights: StepWeights, threads: int) -> None:
        """library: `build` made it for this model and CPU. Raises OSError when it does not load."""
        self._model = model
        self._library = ctypes.CDLL(str(library))
        self._library.fastgen_create.restype = c_void_p
        self._kept: list[Any] = [weights]
        self._longest = min(
            (len(table) for table in (weights.positions, weights.cos) if table is not None),
            default=None,
        )
        described = self._described(weights)
        self._step = c_void_p(self._library.fastgen_create(pointer(described), c_int(threads)))
        if not self._step:
            raise MemoryError("no memory for the threads of the step")

    def hidden(
        self, batch: RaggedBatch, token_ids: Integers, rows: Integers, cache: Tensor
    ) -> Tensor:
        """Normalised last hidden states [len(rows), hidden size] of these rows, in float32.

        token_ids: [T]. cache: [layers, 2, blocks, block size, kv heads, D], blocks and block size
        flattened or not; keys and values are written into it, each block of a layer's in an order
        of its own, so blocks can be copied, but only whole. Raises ValueError for tokens, rows or
        blocks that do not exist, MemoryError for a step that is too large.
        """
        arrays = [
            np.ascontiguousarray(array, np.int64)
            for array in (token_ids, batch.starts, batch.lengths, batch.block_tables, rows)
        ]
        blocks = self._blocks(cache)
        self._check(batch, token_ids, rows, blocks)
        hidden = torch.empty((len(rows), self._model.hidden_size))
        described = _Batch(
            len(token_ids), len(batch.lengths), batch.block_tables.shape[1], len(rows), blocks,
            *(array.ctypes.data for array in arrays), cache.data_ptr(), hidden.data_ptr(),
        )  # fmt: skip
        if self._library.fastgen_forward(self._step, pointer(described)):
            raise MemoryError(f"no memory for a step of {len(token_ids)} tokens")
        return hidden

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocabulary] in float32 of hidden states [R, hidden size]."""
        given = hidden.float().contiguous()
        logits = torch.empty((len(given), self._model.vocab_size))
        if self._library.fastgen_lm_head(
            self._step, c_void_p(given.data_ptr()), c_int(len(given)), c_void_p(logits.data_ptr())
        ):
            raise MemoryError(f"no memory for the logits of {len(given)} tokens")
        return logits

    def close(self) -> None:
        """Ends the threads; no step can be run any more."""
        if self._step:
            self._library.fastgen_destroy(self._step)
            self._step = c_void_p()
            self._kept.clear()

    def _described(self, weights: StepWeights) -> _Weights:
        layers = (_Layer * len(weights.layers))(*map(self._layer, weights.layers))
        self._kept.append(layers)
        stored = DTYPES[self._model.weights]
        return _Weights(
            self._table(weights.embedding, stored),
            self._table(weights.positions, torch.float32),
            layers,
            self._norm(weights.norm, weights.norm_bias),
            self._linear(weights.lm_head),
            self._table(weights.cos, torch.float32),
            self._table(weights.sin, torch.float32),
        )

    def _layer(self, layer: StepLayer) -> _Layer:
        described = _Layer(
            self._norm(layer.attention_norm, layer.attention_norm_bias),
            self._linear(layer.qkv),
            self._padded(layer.query_norm),
            self._padded(layer.key_norm),
            self._linear(layer.output),
            self._norm(layer.feed_forward_norm, layer.feed_forward_norm_bias),
            self._linear(layer.up),
            self._linear(layer.down),
        )
        if (mixture := layer.mixture) is not None:
            described.router = self._linear(mixture.router)
            experts = (_Expert * len(mixture.experts))(
                *(_Expert(self._linear(one.up), self._linear(one.down)) for one in mixture.experts)
            )
            self._kept.append(experts)
            described.experts = experts
        return described

    def _norm(self, weight: Tensor | None, bias: Tensor | None) -> _Norm:
        return _Norm(self._padded(weight), self._padded(bias))

    def _linear(self, linear: PackedLinear | None) -> _Linear:
        if linear is None:
            return _Linear()
        scales, bias = (
            None if values is None else values.data_ptr() for values in (linear.scales, linear.bias)
        )
        return _Linear(linear.weights.data_ptr(), scales, bias)

    def _padded(self, values: Tensor | None) -> int | None:
        return None if values is None else self._table(padded(values), torch.float32)

    def _table(self, values: Tensor | None, dtype: torch.dtype) -> int | None:
        """Where it lies; it is kept."""
        if values is None:
            return None
        kept = values.to(dtype).contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def _blocks(self, cache: Tensor) -> int:
        model = self._model
        if cache.dtype != DTYPES[model.cache] or not cache.is_contiguous():
            raise ValueError(f"the cache must be contiguous and {model.cache}")
        each = model.block_size * model.num_kv_heads * model.head_dim
        return cache.numel() // (2 * model.num_layers * each)

    def _check(self, batch: RaggedBatch, token_ids: Integers, rows: Integers, blocks: int) -> None:
        if len(token_ids) != int(batch.lengths.sum()) or int(batch.lengths.min()) < 1:
            raise ValueError("the chunks' lengths are not those of the tokens")
        _check_range("a token", token_ids, self._model.vocab_size)
        _check_range("a row", rows, len(token_ids))
        _check_range("a block", batch.block_tables, blocks)
        if batch.block_size != self._model.block_size:
            raise ValueError(f"blocks of {batch.block_size} for {self._model.block_size}")
        if int(batch.contexts.max()) > batch.block_tables.shape[1] * batch.block_size:
            raise ValueError("a block table does not cover its chunk")
        if self._longest is not None and int(batch.contexts.max()) > self._longest:
            raise ValueError(f"a context is longer than {self._longest} tokens")


def _check_range(what: str, numbers: Integers, count: int) -> None:
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise ValueError(f"{what} does not exist: they are 0 … {count - 1}")
