"""Envoy's bootstrap, as a value."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from fastgen_api.names import Port
from fastgen_balancer.envoy_clusters import GRPC_CLUSTER, HTTP_CLUSTER, clusters
from fastgen_balancer.envoy_listener import Limits, listener
from fastgen_balancer.envoy_routes import TYPES
from fastgen_balancer.envoy_security import OPEN, Security

Config: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the balancer's two processes listen."""

    host: str = "0.0.0.0"
    listener_port: int = Port.BALANCER
    picker_port: int = Port.PICKER
    admin_port: int = Port.ENVOY_ADMIN


def bootstrap(
    addresses: Addresses,
    directory: str,
    limits: Limits | None = None,
    security: Security = OPEN,
) -> Config:
    """The whole configuration; endpoints, keys and certificate come by files in `directory`."""
    limits = limits or Limits()
    return {
        "node": {"id": "balancer", "cluster": "fastgen"},
        "admin": {
            "address": {
                "socket_address": {"address": "127.0.0.1", "port_value": addresses.admin_port}
            }
        },
        "application_log_config": {
            "log_format": {
                "json_format": {
                    "time": "%Y-%m-%dT%T.%eZ",
                    "level": "%l",
                    "logger": "envoy.%n",
                    "message": "%j",
                }
            }
        },
        "overload_manager": _overload(limits),
        # Statistics of every kind would cost more memory than the traffic of a small balancer.
        "stats_config": {
            "stats_matcher": {
                "inclusion_list": {
                    "patterns": [
                        {"prefix": "http.in.downstream_"},
                        {"prefix": "http.in.ext_proc."},
                        {"prefix": f"cluster.{HTTP_CLUSTER}."},
                        {"prefix": f"cluster.{GRPC_CLUSTER}."},
                        {"prefix": "server."},
                        {"prefix": "listener_manager."},
                        {"prefix": "overload."},
                    ]
                }
            }
        },
        "static_resources": {
            "listeners": [
                listener(addresses.host, addresses.listener_port, limits, security, directory)
            ],
            "clusters": clusters(directory, addresses.picker_port, limits.max_buffer_bytes),
        },
    }


def _overload(limits: Limits) -> Config:
    monitors = f"{TYPES}.resource_monitors"
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {
                "name": "envoy.resource_monitors.fixed_heap",
                "typed_config": {
                    "@type": f"{monitors}.fixed_heap.v3.FixedHeapConfig",
                    "max_heap_size_bytes": limits.max_heap_bytes,
                },
            },
            {
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": {
                    "@type": (f"{monitors}.downstream_connections.v3.DownstreamConnectionsConfig"),
                    "max_active_downstream_connections": limits.max_connections,
                },
            },
        ],
        "actions": [
            _action("envoy.overload_actions.shrink_heap", 0.85),
            _action("envoy.overload_actions.stop_accepting_requests", 0.95),
        ],
    }


def _action(name: str, threshold: float) -> Config:
    trigger = {
        "name": "envoy.resource_monitors.fixed_heap",
        "threshold": {"value": threshold},
    }
    return {"name": name, "triggers": [trigger]}
