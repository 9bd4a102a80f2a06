"""The clusters of Envoy's configuration: replicas by HTTP, replicas by gRPC, and the picker."""

from typing import Any, Final, TypeAlias

from fastgen_api.names import Header

Config: TypeAlias = dict[str, Any]

HTTP_CLUSTER: Final = "replicas-http"
GRPC_CLUSTER: Final = "replicas-grpc"
PICKER_CLUSTER: Final = "picker"
POLICIES: Final = "type.googleapis.com/envoy.extensions.load_balancing_policies"
PROTOCOL_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
UNBOUNDED: Final = 1_000_000
"""Envoy's own default, 1024 and 3 retries, would refuse what the picker has admitted."""


def file_name(cluster: str) -> str:
    """Name of the file, in the balancer's directory, with the endpoints of a cluster."""
    return f"{cluster}.json"


def clusters(directory: str, picker_port: int, max_buffer_bytes: int) -> list[Config]:
    """All clusters; those of the replicas follow their files in `directory`."""
    http1: Config = {
        "explicit_http_config": {"http_protocol_options": {}},
        # Shorter than any server's own keep-alive, so that it never closes under a new request.
        "common_http_protocol_options": {"idle_timeout": "3s"},
    }
    http2: Config = {"explicit_http_config": {"http2_protocol_options": {}}}
    return [
        _replicas(HTTP_CLUSTER, directory, http1, max_buffer_bytes),
        _replicas(GRPC_CLUSTER, directory, http2, max_buffer_bytes),
        _picker(picker_port, http2),
    ]


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
