"""A repository and files on a real server, and downloads from it."""

import time
from collections.abc import Callable

from download_process import Downloads
from hub_server import (
    STALLED,
    HubServer,
)

HUB = "hf://test/tiny"
SHARD = "model-00001-of-00002.safetensors"
GGUF = "tiny.gguf"


def https(hub: HubServer, name: str = GGUF, folder: str = "files") -> str:
    """The source of a file of the server's."""
    return f"{hub.url}/{folder}/{name}"


def wait_for(what: str, holds: Callable[[], bool], seconds: float = 20) -> None:
    """Fails when this does not come true."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_same(hub: HubServer, downloads: Downloads, name: str) -> bool:
    """Whether the file has come as it is on the server."""
    (path,) = (path for path in downloads.cache.rglob(name) if path.is_file())
    return path.read_bytes() == (hub.folder / name).read_bytes()


def half(hub: HubServer, name: str) -> int:
    """Bytes of half of a file."""
    return (hub.folder / name).stat().st_size // 2


def kill_at_half(hub: HubServer, downloads: Downloads, source: str, name: str) -> None:
    """A first run that comes to half of the file, and is killed."""
    hub.faults[name].append(STALLED)
    running = downloads.start(source)
    try:
        wait_for("half of it", lambda: downloads.partial_bytes() == half(hub, name))
    finally:
        running.kill()
    hub.reset()
