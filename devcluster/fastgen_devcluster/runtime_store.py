"""Looks into containerd's store."""

from fastgen_devcluster.command import run
from fastgen_devcluster.settings import Settings


def _ctr(settings: Settings, *words: str) -> str:
    return run("ctr", "--address", settings.containerd_socket, "--namespace", "k8s.io", *words)


def containers(settings: Settings) -> list[str]:
    """The containers on record, running or not."""
    return _ctr(settings, "containers", "list", "--quiet").split()


def remove_containers(settings: Settings) -> None:
    """Forget containers whose processes are gone, with their file systems."""
    found = containers(settings)
    for name in _ctr(settings, "tasks", "list", "--quiet").split():
        _ctr(settings, "tasks", "delete", "--force", name)
    if found:
        _ctr(settings, "containers", "delete", *found)


def pull(settings: Settings, reference: str) -> None:
    """Bring an image to the node and unpack it."""
    hosts = ("--hosts-dir", str(settings.state / "registries"))
    _ctr(settings, "images", "pull", *hosts, reference)
