"""The files that tell Envoy, and the next picker, whose replicas there are, and where."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.envoy_clusters import (
    GRPC_CLUSTER,
    HTTP_CLUSTER,
    cluster_name,
    file_name,
    replica_clusters,
)
from fastgen_balancer.envoy_listener import MAX_BUFFER_BYTES
from fastgen_balancer.envoy_routes import CLUSTERS_FILE, ROUTES_FILE, Reach, routes

ENVOY_FILE: Final = "envoy.yaml"
"""Envoy's configuration; its content is JSON, which YAML contains."""
CLUSTER_TYPE: Final = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ROUTES_TYPE: Final = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"


class Resources(msgspec.Struct):
    """A discovery response that we wrote."""

    resources: tuple[dict[str, Any], ...]


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


def write_endpoints(directory: Path, deployment: str, endpoints: Sequence[Endpoint]) -> bool:
    """Brings a deployment's files up to date; returns whether any of them changed."""
    http = [(e.host, e.http_port, e.terminating) for e in endpoints]
    grpc = [(e.host, e.grpc_port, e.terminating) for e in endpoints]
    http_cluster = cluster_name(HTTP_CLUSTER, deployment)
    grpc_cluster = cluster_name(GRPC_CLUSTER, deployment)
    contents = {
        file_name(http_cluster): msgspec.json.encode(assignment(http_cluster, http)),
        file_name(grpc_cluster): msgspec.json.encode(assignment(grpc_cluster, grpc)),
        known_file(deployment): msgspec.json.encode(tuple(endpoints)),
    }
    changed = [write_file(directory / name, content) for name, content in contents.items()]
    return any(changed)


def read_endpoints(directory: Path, deployment: str) -> tuple[Endpoint, ...]:
    """What the last picker knew; nothing when there was none or its file does not read."""
    try:
        content = (directory / known_file(deployment)).read_bytes()
        return msgspec.json.decode(content, type=tuple[Endpoint, ...])
    except (OSError, msgspec.MsgspecError):
        return ()


def forget_endpoints(directory: Path, deployment: str) -> None:
    """Removes the files of a deployment that Envoy reaches no more."""
    clusters = (cluster_name(kind, deployment) for kind in (HTTP_CLUSTER, GRPC_CLUSTER))
    for name in (*map(file_name, clusters), known_file(deployment)):
        (directory / name).unlink(missing_ok=True)


def known_file(deployment: str) -> str:
    """Where a picker keeps what it knows last: its successor begins there, the API server away."""
    return file_name(f"endpoints.{deployment}")


def write_reach(directory: Path, reach: Reach) -> None:
    """Tells Envoy of the deployments, each of which must have its endpoints' files.

    A route whose cluster has gone would answer 503, so the clusters that come are written before
    the routes, and those that go after them.
    """
    kept = replica_clusters(str(directory.resolve()), reach.deployments, MAX_BUFFER_BYTES)
    table = routes(reach, MAX_BUFFER_BYTES)
    clusters = directory / CLUSTERS_FILE
    both = {each["name"]: each for each in (*_resources(clusters), *kept)}
    write_file(clusters, _response(CLUSTER_TYPE, both.values()))
    write_file(directory / ROUTES_FILE, _response(ROUTES_TYPE, [table]))
    write_file(clusters, _response(CLUSTER_TYPE, kept))


def _response(kind: str, resources: Iterable[dict[str, Any]]) -> bytes:
    return msgspec.json.encode({"resources": [{"@type": kind} | each for each in resources]})


def _resources(path: Path) -> list[dict[str, Any]]:
    try:
        return list(msgspec.json.decode(path.read_bytes(), type=Resources).resources)
    except (OSError, msgspec.MsgspecError):
        return []


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
