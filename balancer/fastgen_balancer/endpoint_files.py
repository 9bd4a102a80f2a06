"""The files that tell Envoy, and the next picker, where the replicas are."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.envoy_clusters import GRPC_CLUSTER, HTTP_CLUSTER, file_name

ENVOY_FILE: Final = "envoy.yaml"
"""Envoy's configuration; its content is JSON, which YAML contains."""
KNOWN_FILE: Final = "endpoints.json"
"""What this picker knew last: where its successor begins while the API server is away."""


def assignment(cluster: str, addresses: Sequence[tuple[str, int, bool]]) -> dict[str, Any]:
    """A discovery response with one ClusterLoadAssignment; the booleans say `terminating`."""
    endpoints = [
        {
            "endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}},
            # Draining keeps the host's streams and gives it no new ones.
            "health_status": "DRAINING" if terminating else "HEALTHY",
        }
        for host, port, terminating in addresses
    ]
    kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    resource = {
        "@type": kind,
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": endpoints}] if endpoints else [],
    }
    return {"resources": [resource]}


def write_endpoints(directory: Path, endpoints: Sequence[Endpoint]) -> bool:
    """Brings the files up to date; returns whether any of them changed."""
    http = [(e.host, e.http_port, e.terminating) for e in endpoints]
    grpc = [(e.host, e.grpc_port, e.terminating) for e in endpoints]
    contents = {
        file_name(HTTP_CLUSTER): msgspec.json.encode(assignment(HTTP_CLUSTER, http)),
        file_name(GRPC_CLUSTER): msgspec.json.encode(assignment(GRPC_CLUSTER, grpc)),
        KNOWN_FILE: msgspec.json.encode(tuple(endpoints)),
    }
    changed = [write_file(directory / name, content) for name, content in contents.items()]
    return any(changed)


def read_endpoints(directory: Path) -> tuple[Endpoint, ...]:
    """What the last picker knew; nothing when there was none or its file does not read."""
    try:
        content = (directory / KNOWN_FILE).read_bytes()
        return msgspec.json.decode(content, type=tuple[Endpoint, ...])
    except (OSError, msgspec.MsgspecError):
        return ()


def write_file(path: Path, content: bytes, mode: int = 0o644) -> bool:
    """Replaces the file in one move, as Envoy's directory watch wants it, unless it is the same."""
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            # Envoy may run from another image, as another user; not where the mode says so.
            os.fchmod(handle, mode)
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True
