"""Looks into the containerd of a node."""

from fastgen_devcluster.command import CommandError, run
from fastgen_devcluster.settings import Node, Settings


def _ctr(node: Node, *words: str) -> str:
    return run("ctr", "--address", node.containerd_socket, "--namespace", "k8s.io", *words)


def answers(node: Node) -> bool:
    """Whether containerd is there to be asked."""
    try:
        containers(node)
    except CommandError:
        return False
    return True


def containers(node: Node) -> list[str]:
    """The containers on record, running or not."""
    return _ctr(node, "containers", "list", "--quiet").split()


def remove_containers(node: Node) -> None:
    """Forget containers whose processes are gone, with their file systems."""
    found = containers(node)
    for name in _ctr(node, "tasks", "list", "--quiet").split():
        _ctr(node, "tasks", "delete", "--force", name)
    if found:
        _ctr(node, "containers", "delete", *found)


def has_image(node: Node, reference: str) -> bool:
    """Whether the node has the image."""
    return reference in _ctr(node, "images", "list", "--quiet", f"name=={reference}").split()


def pull(settings: Settings, node: Node, reference: str) -> None:
    """Bring an image to the node and unpack it."""
    hosts = ("--hosts-dir", str(settings.state / "registries"))
    _ctr(node, "images", "pull", *hosts, reference)
