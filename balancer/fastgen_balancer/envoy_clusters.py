"""Envoy's clusters: each deployment's replicas by HTTP and by gRPC, and the picker."""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from fastgen_api.names import Header

Config: TypeAlias = dict[str, Any]

HTTP_CLUSTER: Final = "replicas-http"
GRPC_CLUSTER: Final = "replicas-grpc"
"""What the names of a deployment's two clusters begin with."""
PICKER_CLUSTER: Final = "picker"
PICKER_STREAMS: Final = 256
"""At once on one connection to the picker; for more Envoy opens another. With each new one `h2`
looks at all that are open, 0.2 µs for each."""
POLICIES: Final = "type.googleapis.com/envoy.extensions.load_balancing_policies"
PROTOCOL_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_HTTP2: Final[Config] = {"explicit_http_config": {"http2_protocol_options": {}}}
UNBOUNDED: Final = 1_000_000
"""Envoy's own default, 1024 and 3 retries, would refuse what the picker has admitted."""


def cluster_name(kind: str, deployment: str) -> str:
    """Name of a deployment's cluster of this kind, `HTTP_CLUSTER` or `GRPC_CLUSTER`."""
    return f"{kind}.{deployment}"


def file_name(cluster: str) -> str:
    """Name of the file, in the balancer's directory, with the endpoints of a cluster."""
    return f"{quote(cluster, safe='')}.json"


def replica_clusters(
    directory: str, deployments: Iterable[str], max_buffer_bytes: int
) -> list[Config]:
    """The clusters of these deployments, which follow their endpoints' files in `directory`."""
    http1: Config = {
        "explicit_http_config": {"http_protocol_options": {}},
        # Shorter than any server's own keep-alive, so that it never closes under a new request.
        "common_http_protocol_options": {"idle_timeout": "3s"},
    }
    kinds = ((HTTP_CLUSTER, http1), (GRPC_CLUSTER, _HTTP2))
    return [
        _replicas(cluster_name(kind, deployment), directory, protocol, max_buffer_bytes)
        for deployment in deployments
        for kind, protocol in kinds
    ]


def picker_cluster(port: int) -> Config:
    """The cluster of the picker, on loopback."""
    options = {"http2_protocol_options": {"max_concurrent_streams": PICKER_STREAMS}}
    return _picker(port, {"explicit_http_config": options})


def _replicas(name: str, directory: str, protocol: Config, max_buffer_bytes: int) -> Config:
    return {
        "name": name,
        "type": "EDS",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": max_buffer_bytes,
        "eds_cluster_config": {
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": f"{directory}/{file_name(name)}",
                    "watched_directory": {"path": directory},
                },
            }
        },
        "load_balancing_policy": {"policies": [_override_host()]},
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": UNBOUNDED,
                    "max_pending_requests": UNBOUNDED,
                    "max_requests": UNBOUNDED,
                    "max_retries": UNBOUNDED,
                }
            ]
        },
        # Where packets are dropped, connections are dead after some four seconds, and requests
        # without a byte begin anew elsewhere. No time limit on the request could do that: a long
        # prefill is as silent, but its machine acknowledges probes.
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_probes": 3,
                "keepalive_time": 1,
                "keepalive_interval": 1,
            }
        },
        # TCP_USER_TIMEOUT, for what was sent and not acknowledged.
        "upstream_bind_config": {
            "socket_options": [
                {"level": 6, "name": 18, "int_value": 4_000, "state": "STATE_PREBIND"}
            ]
        },
        "typed_extension_protocol_options": {
            PROTOCOL_OPTIONS: {"@type": f"type.googleapis.com/{PROTOCOL_OPTIONS}", **protocol}
        },
    }


def _override_host() -> Config:
    least_request = {
        "typed_extension_config": {
            "name": "envoy.load_balancing_policies.least_request",
            "typed_config": {"@type": f"{POLICIES}.least_request.v3.LeastRequest"},
        }
    }
    return {
        "typed_extension_config": {
            "name": "envoy.load_balancing_policies.override_host",
            "typed_config": {
                "@type": f"{POLICIES}.override_host.v3.OverrideHost",
                "override_host_sources": [{"header": Header.ENDPOINT}],
                "fallback_policy": {"policies": [least_request]},
            },
        }
    }


def _picker(port: int, protocol: Config) -> Config:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {
        "name": PICKER_CLUSTER,
        "type": "STATIC",
        "connect_timeout": "0.5s",
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": UNBOUNDED,
                    "max_pending_requests": UNBOUNDED,
                    "max_requests": UNBOUNDED,
                    "max_retries": UNBOUNDED,
                }
            ]
        },
        "load_assignment": {
            "cluster_name": PICKER_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "typed_extension_protocol_options": {
            PROTOCOL_OPTIONS: {"@type": f"type.googleapis.com/{PROTOCOL_OPTIONS}", **protocol}
        },
    }
