"""Makes images and pushes them, with buildah."""

import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

from fastgen_devcluster.command import CommandError, run

# Only images that carry it are ever removed; the value is the name that the image was made under.
LABEL = "dev.fastgen.devcluster"
# zstd unpacks several times as fast as gzip, and packs no worse at its first level.
COMPRESSION = ("--compression-format", "zstd", "--compression-level", "1")
# No user namespaces and no daemon are needed this way, and package registries are in reach.
ISOLATION = ("--isolation", "chroot", "--network", "host")
HOST_CERTIFICATES = "/etc/ssl/certs"
# Of each name so many are kept: the one in use and the one before it.
KEPT_PER_NAME = 2


def has_image(name: str) -> bool:
    """Whether the local store has the image."""
    try:
        run("buildah", "inspect", "--type", "image", "--format", "ok", name)
    except CommandError:
        return False
    return True


def pack(program: Path, name: str, entrypoint: str) -> None:
    """Make an image that holds one static program and nothing else."""
    config = ("--entrypoint", json.dumps([entrypoint]))
    _commit(("copy", "--quiet"), program, entrypoint, config, name)


def unpack(archive: Path, name: str) -> None:
    """Make an image of a root file system in a tar archive."""
    _commit(("add", "--quiet"), archive, "/", (), name)


def _commit(
    verb: tuple[str, ...], source: Path, target: str, config: tuple[str, ...], name: str
) -> None:
    container = run("buildah", "from", "scratch").strip()
    try:
        run("buildah", *verb, container, source, target)
        run("buildah", "config", *config, "--label", f"{LABEL}={_family(name)}", container)
        run("buildah", "commit", "--quiet", container, name)
    finally:
        run("buildah", "rm", container)


def build(context: Path, target: str, name: str, arguments: Mapping[str, str]) -> None:
    """Build one target of the Dockerfile."""
    given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    with tempfile.NamedTemporaryFile("w", prefix="pip-") as settings:
        settings.write(pip_settings(run(sys.executable, "-m", "pip", "config", "list")))
        settings.flush()
        run(
            "buildah",
            "bud",
            "--quiet",
            *ISOLATION,
            f"--volume={HOST_CERTIFICATES}:{HOST_CERTIFICATES}:ro",
            f"--secret=id=pip,src={settings.name}",
            *given,
            f"--label={LABEL}={_family(name)}",
            f"--target={target}",
            f"--tag={name}",
            context,
        )


def pip_settings(listing: str) -> str:
    """How pip reaches its index on this machine, as a configuration file for the build."""
    wanted = {"default-timeout", "extra-index-url", "index-url", "proxy", "trusted-host"}
    found = re.findall(r"^\S*?\.([\w-]+)='(.*)'$", listing, flags=re.MULTILINE)
    lines = [f"{key} = {value}" for key, value in found if key in wanted]
    if any(key == "cert" for key, _ in found):
        lines.append(f"cert = {HOST_CERTIFICATES}/ca-certificates.crt")
    return "\n".join(["[global]", *lines, ""])


def push(name: str, reference: str) -> None:
    """Copy a local image to a registry, plain http if it has no TLS."""
    options = ("--quiet", "--tls-verify=false", *COMPRESSION)
    run("buildah", "push", *options, name, f"docker://{reference}")


def prune(families: Collection[str]) -> None:
    """Remove all but the newest images of each name; the layers that they share stay."""
    listing = run("buildah", "images", "--json", "--filter", f"label={LABEL}")
    ages: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for image in json.loads(listing or "[]") or []:
        for name in image.get("names") or []:
            if name.startswith("localhost/fastgen/") and _family(name) in families:
                ages[_family(name)].append((image["createdatraw"], name))
    for images in ages.values():
        for _, name in sorted(images, reverse=True)[KEPT_PER_NAME:]:
            run("buildah", "rmi", name)


def _family(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0]
