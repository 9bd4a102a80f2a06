"""Makes images and pushes them, with buildah."""

import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

from fastgen_devcluster.command import CommandError, run
from fastgen_devcluster.errors import SetupError

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
        run("buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", name)
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
    listing = run(sys.executable, "-m", "pip", "config", "list")
    with tempfile.TemporaryDirectory(prefix="fastgen-") as scratch:
        secrets = {"pip": pip_settings(listing), "uv": uv_settings(listing)}
        for secret, text in secrets.items():
            Path(scratch, secret).write_text(text)
        run(
            "buildah",
            "bud",
            "--quiet",
            *ISOLATION,
            f"--volume={HOST_CERTIFICATES}:{HOST_CERTIFICATES}:ro",
            *(f"--secret=id={secret},src={scratch}/{secret}" for secret in secrets),
            *given,
            f"--label={LABEL}={_family(name)}",
            f"--target={target}",
            f"--tag={name}",
            context,
        )


def _pip_options(listing: str) -> list[tuple[str, str]]:
    """What `pip config list` says about the way to the index; the rest is this machine's own."""
    found = re.findall(r"^\S*?\.([\w-]+)='(.*)'$", listing, flags=re.MULTILINE)
    wanted = {"index-url", "extra-index-url", "trusted-host"}
    return [(key, value) for key, value in found if key in wanted]


def pip_settings(listing: str) -> str:
    """How pip reaches its index on this machine, as a pip.conf for the build."""
    lines = [f"{key} = {value}" for key, value in _pip_options(listing)]
    # The host's authorities are mounted over the image's.
    authorities = f"cert = {HOST_CERTIFICATES}/ca-certificates.crt"
    return "\n".join(["[global]", *lines, authorities, ""])


def uv_settings(listing: str) -> str:
    """The same for uv, as a uv.toml."""
    options = dict(_pip_options(listing))
    lines = [f"index-url = {json.dumps(options['index-url'])}"] if "index-url" in options else []
    for key, name in (
        ("extra-index-url", "extra-index-url"),
        ("trusted-host", "allow-insecure-host"),
    ):
        if key in options:
            lines.append(f"{name} = {json.dumps(options[key].split())}")
    return "\n".join([*lines, ""])


def push(name: str, reference: str) -> None:
    """Copy a local image to a registry that has no TLS and wants no login."""
    _push(name, reference, "--tls-verify=false")


def push_to_own(name: str, reference: str) -> None:
    """Copy a local image to the user's registry, with buildah's own logins and TLS settings."""
    host = reference.partition("/")[0]
    try:
        _push(name, reference)
    except CommandError as failure:
        last_words = str(failure).splitlines()[-1]
        raise SetupError(
            f"Cannot push to {host} (log in with `buildah login {host}`; a registry without TLS"
            f" needs `insecure = true` in /etc/containers/registries.conf): {last_words}"
        ) from None


def _push(name: str, reference: str, *flags: str) -> None:
    run("buildah", "push", "--quiet", *flags, *COMPRESSION, name, f"docker://{reference}")


def remove(name: str) -> None:
    """Remove a name from the local store, and the image with its last name."""
    run("buildah", "rmi", name)


def remove_abandoned(prefix: str) -> None:
    """Remove the containers of builds that were killed, and their mounts.

    prefix: of the images that those builds stood on.
    """
    containers = json.loads(run("buildah", "containers", "--json") or "null") or []
    for container in containers:
        if container["imagename"].startswith(prefix):
            run("buildah", "rm", container["id"])


def labelled() -> list[tuple[str, str]]:
    """When each name of an image of ours was made, and the name."""
    listing = run("buildah", "images", "--json", "--filter", f"label={LABEL}")
    images = json.loads(listing or "null") or []
    return [(image["createdatraw"], name) for image in images for name in image["names"] or []]


def prune(families: Collection[str]) -> None:
    """Remove all but the newest images of each name; the layers that they share stay."""
    ages: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for age, name in labelled():
        if name.startswith("localhost/fastgen/") and _family(name) in families:
            ages[_family(name)].append((age, name))
    for images in ages.values():
        for _, name in sorted(images, reverse=True)[KEPT_PER_NAME:]:
            remove(name)


def _family(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0]
