"""Reads a Hugging Face folder: its JSON files and its safetensors, sharded or not."""

import json
import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
from numpy.typing import NDArray

from fastgen_runtime.models.model_config import invalid, unsupported

WEIGHTS: Final = "model.safetensors"
WEIGHTS_INDEX: Final = "model.safetensors.index.json"
_DTYPES: Final = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A tensor as it lies in a mapped file: read-only, and read from disk when touched.

    values: of the tensor's shape; uint16 where `is_bfloat16`. release: gives back the memory of
    the pages that were read, which may be read again.
    """

    values: NDArray[Any]
    is_bfloat16: bool
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that is read when asked for: float32 or float16 of `shape`.

    mapped: where its values are stored plainly; whoever wants another type than float32 reads them
    from there without a copy in between.
    """

    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]
    mapped: MappedTensor | None = None


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """An object from a JSON file; empty when it does not exist and need not."""
    if not path.exists():
        if required:
            raise invalid(f"{path.parent.name} has no {path.name}")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise invalid(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid(f"{path.name} holds no JSON object")
    return value


def read_safetensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder, by the name it is stored under; raises ModelError."""
    tensors: dict[str, StoredTensor] = {}
    for path in _files(folder):
        tensors.update(_tensors(path))
    return tensors


def shard_names(index: Mapping[str, Any]) -> list[str]:
    """The files that model.safetensors.index.json names; raises ModelError."""
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        raise invalid(f"{WEIGHTS_INDEX} has no weight_map")
    names = sorted(set(map(str, shards.values())))
    if any(Path(name).name != name for name in names):
        raise invalid(f"{WEIGHTS_INDEX} names a file outside its folder")
    return names


def _files(folder: Path) -> list[Path]:
    # Whole files beside it may be the same weights in another layout.
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if index := read_json(folder / WEIGHTS_INDEX):
        files = [folder / name for name in shard_names(index)]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        if any(folder.glob("*.bin")):
            raise unsupported(
                f"{folder.name} holds pickled weights only, which can run code when loaded: "
                "convert them to safetensors"
            )
        raise invalid(f"{folder.name} has no *.safetensors")
    if missing := [file.name for file in files if not file.exists()]:
        raise invalid(f"{folder.name} lacks {', '.join(missing)}")
    return files


def _tensors(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    try:
        # Checks the header against the file's size; it cannot hand out bfloat16 as numpy itself.
        with safetensors.safe_open(path, framework="numpy"):
            pass
    except (safetensors.SafetensorError, OSError) as error:
        raise invalid(f"{path.name} is no whole safetensors file: {error}") from error
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, Any]] = json.loads(data[8:start])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] in _DTYPES:
            yield name, _stored(data, start + entry["data_offsets"][0], entry)
        else:
            read = partial(_refuse, f"tensor {name} of {path.name} has the type {entry['dtype']}")
            yield name, StoredTensor(tuple(entry["shape"]), read)


def _refuse(what: str) -> NDArray[Any]:
    """When it is read: old files also hold masks, of other types, which nobody reads."""
    raise unsupported(f"{what}; supported: {', '.join(_DTYPES)}")


def _stored(data: mmap.mmap, offset: int, entry: dict[str, Any]) -> StoredTensor:
    dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
    raw = np.frombuffer(data, _DTYPES[dtype], math.prod(shape), offset).reshape(shape)

    def read() -> NDArray[Any]:
        if dtype == "BF16":  # the upper half of a float32
            widened = raw.astype(np.uint32)
            widened <<= 16
            return widened.view(np.float32)
        return raw.astype(np.float32) if dtype == "F64" else raw

    def release() -> None:
        # Pages that neighbours share stay.
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (offset + raw.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            data.madvise(mmap.MADV_DONTNEED, first, last - first)

    return StoredTensor(shape, read, MappedTensor(raw, dtype == "BF16", release))
