"""The compiled ends of `load.py`: fake replicas and client, built once from `go/load`."""

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from fastgen_devcluster.command import run
from fastgen_devcluster.progress import step
from fastgen_devcluster.settings import REPOSITORY, Settings
from fastgen_devcluster.toolchain import ensure_go

SOURCE: Final = REPOSITORY / "benchmarks" / "go" / "load"
PROTO: Final = "fastgen_api/v1/inference.proto"
MODULE: Final = "fastgen.dev/load"
GENERATORS: Final = (
    "google.golang.org/protobuf/cmd/protoc-gen-go",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
)


def key() -> str:
    """A name for what comes out: the same sources and protocol give the same key."""
    digest = hashlib.sha256()
    for path in (*sorted(SOURCE.iterdir()), REPOSITORY / "api" / PROTO):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def ensure_program(cache: Path | None = None) -> Path:
    """The program, compiled unless the cache has it.

    The messages are generated from the real proto at each build, so that there is no copy to go
    stale. Raises SetupError without Go, CommandError when it does not compile.
    """
    cache = cache or Settings.from_environment().cache
    home = cache / "bin" / f"load-{key()}"
    if not home.exists():
        go = ensure_go(cache)
        with step(f"compile the load program (once; kept in {home.parent})"):
            _compile(go, cache, home)
    return home / "load"


def _compile(go: Path, cache: Path, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        "CGO_ENABLED": "0",
        "GOCACHE": str(cache / "go" / "build"),
        "GOMODCACHE": str(cache / "go" / "mod"),
        "GOFLAGS": "-modcacherw",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        source, built, tools = (Path(scratch) / name for name in ("source", "built", "tools"))
        shutil.copytree(SOURCE, source)
        for folder in (built, tools):
            folder.mkdir()
        build = ("nice", go, "build", "-mod=readonly", "-trimpath")
        run(*build, "-o", f"{tools}/", *GENERATORS, environment=environment, directory=source)
        _generate(tools, source)
        run(*build, "-ldflags", "-s -w", "-o", f"{built}/load", ".", environment=environment,
            directory=source)  # fmt: skip
        built.chmod(0o755)
        # The folder appears whole or not at all, so that an interrupted build is no build.
        built.rename(home)


def _generate(tools: Path, source: Path) -> None:
    options = f"module={MODULE},M{PROTO}={MODULE}/fastgenv1"
    run(
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", REPOSITORY / "api"),
        *(f"--go_out={source}", f"--go_opt={options}"),
        *(f"--go-grpc_out={source}", f"--go-grpc_opt={options}", PROTO),
        environment={"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
    )


if __name__ == "__main__":
    print(ensure_program())
