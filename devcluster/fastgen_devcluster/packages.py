"""Brings the Debian packages that the cluster stands on."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastgen_devcluster.command import CommandError, run, succeeds
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.progress import step

# What building images needs, and the package that brings it.
IMAGE_TOOLS = {"buildah": "buildah", "gpg": "gpg", "mmdebstrap": "mmdebstrap"}
IMAGE_FILES = {"/etc/ssl/certs/ca-certificates.crt": "ca-certificates"}
# What makes networks and cuts them.
NETWORK_TOOLS = {"ip": "iproute2", "iptables": "iptables"}
# What the cluster needs as well.
TOOLS = {
    **IMAGE_TOOLS,
    **NETWORK_TOOLS,
    "conntrack": "conntrack",
    "containerd": "containerd",
    "docker-registry": "docker-registry",
    "gcc": "gcc",
    "ipset": "ipset",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
}
FILES = {
    **IMAGE_FILES,
    "/usr/include/stdio.h": "libc6-dev",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
KERNEL_MODULES = ("overlay", "br_netfilter", "nf_conntrack")


def missing_packages(
    needed_tools: Mapping[str, str] = TOOLS, needed_files: Mapping[str, str] = FILES
) -> list[str]:
    """The packages whose tools or files are not on this machine."""
    # A user's PATH may leave out the directories where Debian keeps an administrator's tools.
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    tools = {package for tool, package in needed_tools.items() if not shutil.which(tool, path=path)}
    files = {package for file, package in needed_files.items() if not Path(file).exists()}
    return sorted(tools | files)


def require_root() -> None:
    """Refuse anybody but root: namespaces, mounts and cgroups are root's."""
    if os.geteuid() != 0:
        raise SetupError(
            "The development cluster needs root for namespaces and mounts: run it with sudo,"
            " or name a cluster of your own in FASTGEN_KUBECONFIG."
        )


def ensure_packages() -> None:
    """Install what the cluster lacks, without starting any of the services that come along."""
    require_root()
    _load_kernel_modules()
    _install(missing_packages())


def ensure_image_packages() -> None:
    """Install what building images lacks; root is needed only when something is missing."""
    _ensure("Building images", missing_packages(IMAGE_TOOLS, IMAGE_FILES))


def ensure_network_packages() -> None:
    """Install what making networks lacks; root is needed only when something is missing."""
    _ensure("Making networks", missing_packages(NETWORK_TOOLS, {}))


def _ensure(purpose: str, packages: Sequence[str]) -> None:
    if packages and os.geteuid() != 0:
        raise SetupError(
            f"{purpose} needs more: run `apt-get install {' '.join(packages)}` as root."
        )
    _install(packages)


def _install(packages: Sequence[str]) -> None:
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise SetupError(f"Install these first, apt-get is not here to do it: {' '.join(packages)}")
    with step(f"install Debian packages: {' '.join(packages)}"), _services_held_back():
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        install = ("apt-get", "install", "-y", "--no-install-recommends", *packages)
        try:
            run("apt-get", "update", environment=quiet)
            run(*install, environment=quiet)
        except CommandError as failure:
            raise SetupError(f"apt-get could not install {' '.join(packages)}: {failure}") from None


def _load_kernel_modules() -> None:
    # A kernel with these built in has no module to load; what is really absent shows up later.
    if shutil.which("modprobe"):
        for module in KERNEL_MODULES:
            succeeds("modprobe", module)


@contextmanager
def _services_held_back() -> Iterator[None]:
    # Debian starts containerd and the registry once installed; the cluster runs its own.
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
