"""Envoy's bootstrap, as a value."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fastgen_api.names import Port
from fastgen_balancer.envoy_clusters import GRPC_CLUSTER, HTTP_CLUSTER, picker_cluster
from fastgen_balancer.envoy_listener import Limits, listener
from fastgen_balancer.envoy_routes import CLUSTERS_FILE, TYPES, by_file
from fastgen_balancer.envoy_security import OPEN, Security

Config: TypeAlias = dict[str, Any]

OVERLOAD: Final = "type.googleapis.com/envoy.config.overload.v3"


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
    """What does not change while Envoy runs; the rest comes by files in `directory`.

    Clusters, routes, endpoints, keys and certificate.
    """
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
        "layered_runtime": {"layers": [{"name": "static", "static_layer": _runtime()}]},
        # Statistics of every kind would cost more memory than the traffic of a small balancer.
        "stats_config": {
            "stats_matcher": {
                "inclusion_list": {
                    "patterns": [
                        {"prefix": "http.in.downstream_"},
                        {"prefix": "http.in.ext_proc."},
                        # Of all deployments alike.
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
            "clusters": [picker_cluster(addresses.picker_port)],
        },
        "dynamic_resources": {"cds_config": by_file(directory, CLUSTERS_FILE)},
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
            _reduced_timeouts(),
            _action("envoy.overload_actions.shrink_heap", 0.85),
            _action("envoy.overload_actions.stop_accepting_requests", 0.95),
            _action("envoy.overload_actions.stop_accepting_connections", 0.98),
        ],
    }


def _reduced_timeouts() -> Config:
    """As memory runs out, connections that carry nothing end sooner: 10 s at the limit."""
    timers = f"{OVERLOAD}.ScaleTimersOverloadActionConfig"
    idle = {"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": "10s"}
    return {
        "name": "envoy.overload_actions.reduce_timeouts",
        "triggers": [
            {
                "name": "envoy.resource_monitors.fixed_heap",
                "scaled": {"scaling_threshold": 0.8, "saturation_threshold": 0.95},
            }
        ],
        "typed_config": {"@type": timers, "timer_scale_factors": [idle]},
    }


def _runtime() -> Config:
    """Against clients that begin streams only to end them (CVE-2023-44487, "rapid reset").

    A connection gets a few requests into work at a time, so that one client's flood delays the
    others little; one that has reset most of its streams at once ends.
    """
    return {
        "http.max_requests_per_io_cycle": 10,
        "overload.premature_reset_total_stream_count": 500,
        "overload.premature_reset_min_stream_lifetime_seconds": 1,
        # Of the one pattern that counts a path's characters.
        "re2.max_program_size.error_level": 5000,
        "re2.max_program_size.warn_level": 5000,
    }


def _action(name: str, threshold: float) -> Config:
    trigger = {
        "name": "envoy.resource_monitors.fixed_heap",
        "threshold": {"value": threshold},
    }
    return {"name": name, "triggers": [trigger]}
