"""Makes the image that all others stand on from Debian's packages."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fastgen_devcluster import buildah
from fastgen_devcluster.command import CommandError, run
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.progress import step

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-venv")


def name(environment: Mapping[str, str] = os.environ) -> str:
    """The image of FASTGEN_BASE_IMAGE, else one of our own named by its recipe."""
    recipe = hashlib.sha256(f"{SUITE} {PACKAGES}".encode()).hexdigest()[:12]
    return environment.get("FASTGEN_BASE_IMAGE") or f"localhost/fastgen/base:{recipe}"


def ensure(cache: Path) -> None:
    """Make the image unless it is there; no container registry is asked for anything."""
    image = name()
    if buildah.has_image(image) or not image.startswith("localhost/fastgen/"):
        return
    kept = cache / "base" / f"{image.rpartition(':')[2]}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with (
            step("make the base image from Debian packages"),
            tempfile.TemporaryDirectory(dir=kept.parent) as scratch,
        ):
            archive = Path(scratch) / "base.tar"
            include = f"--include={','.join(PACKAGES)}"
            try:
                run("mmdebstrap", "--quiet", "--variant=minbase", include, SUITE, archive)
            except CommandError as failure:
                raise SetupError(
                    "The base image is made from Debian's packages: let apt reach a mirror, or"
                    f" name an image with Python in FASTGEN_BASE_IMAGE: {failure}"
                ) from None
            archive.rename(kept)
    buildah.unpack(kept, image)
