"""Reads GGUF files: metadata at once, tensors when asked for.

Layout: the GGUF specification, version 3 (header, key/value pairs, tensor directory, aligned data).
The gguf library's own reader keeps every string of the vocabulary as an array, which takes seconds;
its tables of types and its dequantisation are used here.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fastgen_runtime.models.model_config import invalid, unsupported

_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_MAGIC: Final = b"GGUF"
_STRING: Final = 8
_ARRAY: Final = 9
_DEFAULT_ALIGNMENT: Final = 32
_MAX_DIMENSIONS: Final = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor of the file; shape: rows first, the reverse of the file's order."""

    name: str
    shape: tuple[int, ...]
    quantization: int
    rows: NDArray[np.uint8]
    """The stored bytes, [product of shape[:-1], bytes of a row], mapped from the file."""

    def dequantize(self) -> NDArray[np.float32]:
        """The values, float32 of `shape`."""
        return dequantize(self.rows, self.quantization).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]


def dequantize(rows: NDArray[np.uint8], quantization: int) -> NDArray[np.float32]:
    """Stored rows into float32 [rows, columns]."""
    import gguf  # half a second: only whoever reads weights pays for it

    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(quantization))
    return np.asarray(values, dtype=np.float32)


def read_gguf(path: Path) -> GGUFFile:
    """Maps the file and checks that all of it is there; raises ModelError."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file cannot be mapped
            raise invalid(f"{path.name} is empty") from error
    try:
        return _parse(data)
    except (struct.error, UnicodeDecodeError, _DamagedError) as error:
        raise invalid(f"{path.name} is no whole GGUF file: {error}") from error


def read_gguf_head(head: bytes, name: str) -> dict[str, Any]:
    """The settings that the first bytes of a file hold whole; raises ModelError."""
    metadata: dict[str, Any] = {}
    cursor = _Cursor(head)
    try:
        _, num_pairs = _read_counts(cursor)
        for _ in range(num_pairs):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.scalar("<I"))
    except (struct.error, UnicodeDecodeError, _DamagedError) as error:
        if not head.startswith(_MAGIC):
            raise invalid(f"{name} is no GGUF file: {error}") from error
    return metadata


class _DamagedError(Exception):
    pass


class _Cursor:
    """A position in the file that never runs past its end."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise _DamagedError(f"it ends within its header, at byte {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        # Vocabularies may hold bytes that are no UTF-8; such tokens only stand for themselves.
        return self.take(self.scalar("<Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise _DamagedError(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if kind in _SCALARS:
            form = _SCALARS[kind]
            raw = self.take(count * struct.calcsize(form))
            return [item for (item,) in struct.iter_unpack(form, raw)]
        if count > len(self.data) - self.at:
            raise _DamagedError(f"an array of {count} items is longer than the file")
        return [self.value(kind) for _ in range(count)]


def _parse(data: mmap.mmap) -> GGUFFile:
    cursor = _Cursor(data)
    num_tensors, num_pairs = _read_counts(cursor)
    if num_tensors + num_pairs > len(data):
        raise _DamagedError("its counts exceed its size")
    metadata = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _DamagedError(f"general.alignment is {alignment}")
    directory = [_entry(cursor) for _ in range(num_tensors)]
    start = -(-cursor.at // alignment) * alignment
    return GGUFFile(metadata, {tensor.name: tensor for tensor in _tensors(data, start, directory)})


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Of tensors and of key/value pairs, which follow."""
    if cursor.take(4) != _MAGIC:
        raise _DamagedError("it does not begin with GGUF")
    version = cursor.scalar("<I")
    if version not in (2, 3):
        raise unsupported(f"GGUF version {version} is not supported; supported: 2, 3")
    return cursor.scalar("<Q"), cursor.scalar("<Q")


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, num_dimensions = cursor.string(), cursor.scalar("<I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise _DamagedError(f"tensor {name} has {num_dimensions} dimensions")
    shape = tuple(cursor.scalar("<Q") for _ in range(num_dimensions))[::-1]
    return name, shape, cursor.scalar("<I"), cursor.scalar("<Q")


def _tensors(
    data: mmap.mmap, start: int, directory: list[tuple[str, tuple[int, ...], int, int]]
) -> Iterator[GGUFTensor]:
    for name, shape, quantization, offset in directory:
        row_bytes = _row_bytes(name, shape[-1], quantization)
        num_rows = int(np.prod(shape[:-1], dtype=object)) if len(shape) > 1 else 1
        if start + offset + num_rows * row_bytes > len(data):
            raise _DamagedError(f"it ends before the data of tensor {name}")
        raw = np.frombuffer(data, np.uint8, num_rows * row_bytes, start + offset)
        yield GGUFTensor(name, shape, quantization, raw.reshape(num_rows, row_bytes))


def _row_bytes(name: str, columns: int, quantization: int) -> int:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block_size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(quantization)]
    except (KeyError, ValueError) as error:
        raise unsupported(
            f"tensor {name} has the unknown GGUF quantisation {quantization}"
        ) from error
    if columns % block_size:
        raise _DamagedError(f"tensor {name} has {columns} columns, no multiple of {block_size}")
    return int(columns // block_size * block_bytes)
