"""Compiles the step for a model and a CPU, once for each."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastgen_kernels.cpu_step.description import StepModel, shape_header
from fastgen_kernels.cpu_step.isa import FLAGS, Isa

SOURCE: Final = Path(__file__).with_name("source")
COMPILERS: Final = ("c++", "g++", "clang++")
_FLAGS: Final = (
    "-std=c++17", "-O3", "-fno-math-errno", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden",
)  # fmt: skip


class CompileError(Exception):
    """There is no library; the text says why, with the compiler's own words where it spoke."""


@dataclass(frozen=True, slots=True)
class Built:
    """A library for one model and CPU. compiled: now; seconds: how long that took."""

    path: Path
    compiled: bool
    seconds: float


def build(
    model: StepModel,
    isa: Isa,
    cache: Path,
    prebuilt: Path | None = None,
    compilers: tuple[str, ...] = COMPILERS,
) -> Built:
    """Finds the library in `prebuilt`, which is only read, or `cache`, or compiles it into `cache`.

    Several processes may build at once: one compiles, the others wait for it. Raises CompileError,
    also when the cache cannot be written.
    """
    header = shape_header(model, isa)
    name = f"step-{_digest(header, isa)}.so"
    for directory in (prebuilt, cache):
        if directory is not None and (found := directory / name).is_file():
            return Built(found, False, 0.0)
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        raise CompileError(f"no C++ compiler is installed (looked for {', '.join(compilers)})")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{name}.lock"):
            if (cache / name).is_file():
                return Built(cache / name, False, 0.0)
            begun = time.monotonic()
            _compile(compiler, header, isa, cache / name)
            return Built(cache / name, True, time.monotonic() - begun)
    except OSError as error:
        raise CompileError(f"the compiled step cannot be kept in {cache}: {error}") from error


def _digest(header: str, isa: Isa) -> str:
    """Of all that the library is made of but the compiler, since any compiler's will do."""
    digest = hashlib.sha256("\0".join((header, *_FLAGS, *FLAGS[isa])).encode())
    for path in sorted(SOURCE.iterdir()):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def _compile(compiler: str, header: str, isa: Isa, library: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="building-", dir=library.parent) as made:
        (Path(made) / "shape.h").write_text(header)
        unfinished = Path(made) / library.name
        command = [
            compiler, *_FLAGS, *FLAGS[isa], f"-I{made}", f"-I{SOURCE}",
            *map(str, sorted(SOURCE.glob("*.cpp"))), "-o", str(unfinished),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip() or f"status {done.returncode}"
            raise CompileError(f"{compiler} failed: {said}")
        os.replace(unfinished, library)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel frees it when that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
