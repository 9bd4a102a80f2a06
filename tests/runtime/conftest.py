"""One replica, and one server of models, for all tests that leave them as they found them."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from certificates import make_certificate
from checkpoint_files import write_gguf
from download_process import Downloads
from hub_server import HubServer, serving_hub
from replica_process import ReplicaProcess, running_replica
from served_models import GGUF
from tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def shared_replica(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaProcess]:
    with running_replica(
        smollm2_path,
        tmp_path_factory.mktemp("replica"),
        "--max-model-length=1024",
        "--kv-block-size=16",
        "--max-concurrent-requests=24",
        "--token-budget=64",
    ) as replica:
        yield replica


@pytest.fixture
def replica(shared_replica: ReplicaProcess) -> Iterator[ReplicaProcess]:
    """The shared replica, idle before and after."""
    wait_until_idle(shared_replica)
    yield shared_replica
    wait_until_idle(shared_replica)


def wait_until_idle(replica: ReplicaProcess) -> None:
    """Fails when blocks stay taken."""
    deadline = time.monotonic() + 10
    while not replica.is_idle():
        assert time.monotonic() < deadline, replica.load()
        time.sleep(0.02)


@pytest.fixture(scope="session")
def served_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A server with TLS that has a folder model as a repository, and a GGUF file beside it."""
    folder = write_tiny_model(tmp_path_factory.mktemp("server") / "repository")
    weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    write_gguf(folder / GGUF, tensors={"blk.0.ffn_up.weight": weights})
    write_gguf(folder / "mamba.gguf", architecture="mamba", tensors={"weight": weights})
    (folder / "page.gguf").write_text("<html>" + " " * 200_000)
    certificate = make_certificate(folder.parent)
    with serving_hub(folder, certificate=certificate) as server:
        yield server


@pytest.fixture
def hub(served_hub: HubServer) -> Iterator[HubServer]:
    """The server, as it was in the beginning."""
    before = {path: path.read_bytes() for path in served_hub.folder.iterdir()}
    yield served_hub
    for path, data in before.items():
        path.write_bytes(data)
    served_hub.faults.clear()
    served_hub.always.clear()
    served_hub.listed_bytes.clear()
    served_hub.is_gated = served_hub.is_private = False
    served_hub.has_ranges = served_hub.has_etags = True
    served_hub.bytes_per_second = None
    served_hub.reset()


@pytest.fixture
def downloads(hub: HubServer, tmp_path: Path) -> Downloads:
    """Into a cache of the test's own, from that server."""
    authority = str(hub.folder.parent / "ca.crt")
    return Downloads(tmp_path, {"HF_ENDPOINT": hub.url, "SSL_CERT_FILE": authority})
