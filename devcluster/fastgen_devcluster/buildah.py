"""Makes images and pushes them, with buildah."""

import json
from pathlib import Path

from fastgen_devcluster.command import CommandFailed, run

# Only images that carry it are ever removed.
LABEL = "dev.fastgen.devcluster"
# zstd unpacks several times as fast as gzip, and packs no worse at its first level.
COMPRESSION = ("--compression-format", "zstd", "--compression-level", "1")


def has_image(name: str) -> bool:
    """Whether the local store has the image."""
    try:
        run("buildah", "inspect", "--type", "image", "--format", "ok", name)
    except CommandFailed:
        return False
    return True


def pack(program: Path, name: str, entrypoint: str) -> None:
    """Make an image that holds one static program and nothing else."""
    container = run("buildah", "from", "scratch").strip()
    try:
        run("buildah", "copy", "--quiet", container, program, entrypoint)
        config = ("--entrypoint", json.dumps([entrypoint]), "--label", f"{LABEL}=program")
        run("buildah", "config", *config, container)
        run("buildah", "commit", "--quiet", "--rm", container, name)
    except CommandFailed:
        run("buildah", "rm", container)
        raise


def push(name: str, reference: str) -> None:
    """Copy a local image to a registry, plain http if it has no TLS."""
    run("buildah", "push", "--quiet", "--tls-verify=false", *COMPRESSION, name, f"docker://{reference}")
