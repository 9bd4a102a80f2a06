"""Envoy's bootstrap, as a value."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fastgen_api.names import BALANCER_HEALTH_PATH, Header, Port
from fastgen_balancer.envoy_clusters import GRPC_CLUSTER, HTTP_CLUSTER, PICKER_CLUSTER, clusters

Config: TypeAlias = dict[str, Any]

TYPES: Final = "type.googleapis.com/envoy.extensions"
GENERATE_PATH: Final = "/fastgen.v1.InferenceService/Generate"
HTTP_PREFIX: Final = "/v1/"
METADATA: Final = "fastgen"
"""Namespace of the dynamic metadata with which the picker marks a request."""
EXT_PROC: Final = "envoy.filters.http.ext_proc"

INTERNAL_HEADERS: Final = (Header.ENDPOINT, Header.WAITED)
"""What only the picker may say."""
RETRY_ON: Final = (
    "connect-failure,refused-stream,reset,retriable-status-codes,resource-exhausted,unavailable"
)
"""Headers come with the first token: whatever fails before them may start anew elsewhere."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the balancer's two processes listen."""

    host: str = "0.0.0.0"
    listener_port: int = Port.BALANCER
    picker_port: int = Port.PICKER
    admin_port: int = Port.ENVOY_ADMIN


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that protect the balancer itself."""

    max_body_bytes: int = 8 * 1024 * 1024
    max_header_kibibytes: int = 64
    max_connections: int = 20_000
    max_heap_bytes: int = 1024 * 1024 * 1024
    max_hold_seconds: int = 600
    """Longest time that the picker may hold a request."""
    picker_timeout_seconds: float = 1.0
    stream_idle_seconds: int = 900
    upload_seconds: int = 300


def bootstrap(addresses: Addresses, directory: str, limits: Limits | None = None) -> Config:
    """The whole configuration; endpoints come from the files in `directory`."""
    limits = limits or Limits()
    return {
        "node": {"id": "balancer", "cluster": "fastgen"},
        "admin": {"address": _address("127.0.0.1", addresses.admin_port)},
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
        # Without these the file's statistics cost more memory than the traffic of a small balancer.
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
            "listeners": [_listener(addresses, limits)],
            "clusters": clusters(directory, addresses.picker_port, limits.max_body_bytes),
        },
    }


def _listener(addresses: Addresses, limits: Limits) -> Config:
    return {
        "name": "in",
        "address": _address(addresses.host, addresses.listener_port),
        "per_connection_buffer_limit_bytes": limits.max_body_bytes,
        "socket_options": _keepalive_options(),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _connection_manager(limits),
                    }
                ]
            }
        ],
    }


def _connection_manager(limits: Limits) -> Config:
    return {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "AUTO",
        "server_name": "fastgen",
        "use_remote_address": True,
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,
        "max_request_headers_kb": limits.max_header_kibibytes,
        "stream_idle_timeout": f"{limits.stream_idle_seconds}s",
        "request_headers_timeout": "30s",
        "request_timeout": f"{limits.upload_seconds}s",
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "common_http_protocol_options": {
            "idle_timeout": "900s",
            "headers_with_underscores_action": "DROP_HEADER",
        },
        "http2_protocol_options": {
            "max_concurrent_streams": 1000,
            "connection_keepalive": {"interval": "30s", "timeout": "20s"},
        },
        "early_header_mutation_extensions": [_strip_internal_headers()],
        "access_log": [_access_log()],
        "local_reply_config": _local_replies(),
        "route_config": _routes(limits),
        "http_filters": [_health_filter(), _ext_proc(limits), _router()],
    }


def _strip_internal_headers() -> Config:
    """Removes, before anything reads them, headers by which a client could steer us."""
    by_prefix = {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}}
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{TYPES}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [*({"remove": name} for name in INTERNAL_HEADERS), by_prefix],
        },
    }


def _access_log() -> Config:
    return {
        "name": "envoy.access_loggers.http_grpc",
        "filter": {"not_health_check_filter": {}},
        "typed_config": {
            "@type": f"{TYPES}.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": "in",
                "transport_api_version": "V3",
                "grpc_service": _picker_service(),
                "buffer_flush_interval": "0.1s",
            },
            "additional_request_headers_to_log": ["content-type"],
            "additional_response_headers_to_log": ["grpc-status"],
            "additional_response_trailers_to_log": ["grpc-status"],
        },
    }


def _routes(limits: Limits) -> Config:
    headers_only = {
        EXT_PROC: {
            "@type": f"{TYPES}.filters.http.ext_proc.v3.ExtProcPerRoute",
            "overrides": {
                "processing_mode": {
                    "request_header_mode": "SEND",
                    "response_header_mode": "SEND",
                    "request_body_mode": "NONE",
                }
            },
        }
    }
    routes = [
        {"match": {"path": GENERATE_PATH, "grpc": {}}, "route": _route(GRPC_CLUSTER)},
        # Reflection streams its requests: waiting for their end would wait for ever.
        {
            "match": {"prefix": "/", "grpc": {}},
            "route": _route(GRPC_CLUSTER),
            "typed_per_filter_config": headers_only,
        },
        {"match": {"prefix": HTTP_PREFIX}, "route": _route(HTTP_CLUSTER)},
        _not_found(),
    ]
    return {
        "name": "in",
        "virtual_hosts": [
            {
                "name": "in",
                "domains": ["*"],
                "request_body_buffer_limit": limits.max_body_bytes,
                "routes": routes,
            }
        ],
    }


def _route(cluster: str) -> Config:
    return {
        "cluster": cluster,
        "timeout": "0s",
        "retry_policy": {
            "retry_on": RETRY_ON,
            "retriable_status_codes": [429, 503],
            "num_retries": 1,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": (f"{TYPES}.retry.host.previous_hosts.v3.PreviousHostsPredicate")
                    },
                }
            ],
            "host_selection_retry_max_attempts": 5,
            "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.05s"},
        },
    }


def _not_found() -> Config:
    body = (
        '{"error": {"message": "This address serves /v1/ (OpenAI) and gRPC fastgen.v1.",'
        ' "type": "invalid_request_error", "param": null, "code": "not_found"}}'
    )
    return {
        "match": {"prefix": "/"},
        "direct_response": {"status": 404, "body": {"inline_string": body}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
        "typed_per_filter_config": {
            EXT_PROC: {
                "@type": f"{TYPES}.filters.http.ext_proc.v3.ExtProcPerRoute",
                "disabled": True,
            }
        },
    }


def _health_filter() -> Config:
    return {
        "name": "envoy.filters.http.health_check",
        "typed_config": {
            "@type": f"{TYPES}.filters.http.health_check.v3.HealthCheck",
            "pass_through_mode": False,
            "headers": [{"name": ":path", "string_match": {"exact": BALANCER_HEALTH_PATH}}],
        },
    }


def _ext_proc(limits: Limits) -> Config:
    timeout = f"{limits.picker_timeout_seconds}s"
    return {
        "name": EXT_PROC,
        "typed_config": {
            "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {**_picker_service(), "timeout": "0s"},
            "failure_mode_allow": True,
            "message_timeout": timeout,
            "max_message_timeout": f"{limits.max_hold_seconds}s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "BUFFERED",
                "request_trailer_mode": "SKIP",
                "response_header_mode": "SEND",
                "response_body_mode": "NONE",
                "response_trailer_mode": "SKIP",
            },
            "metadata_options": {"receiving_namespaces": {"untyped": [METADATA]}},
        },
    }


def _router() -> Config:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": f"{TYPES}.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
        },
    }


def _local_replies() -> Config:
    """Envoy's own answers in the form that OpenAI clients read; gRPC keeps its status."""
    not_grpc = {
        "header_filter": {
            "header": {
                "name": "content-type",
                "string_match": {"prefix": "application/grpc"},
                "invert_match": True,
                "treat_missing_header_as_empty": True,
            }
        }
    }
    upstream = {"response_flag_filter": {"flags": ["UH", "UF", "UC", "UR", "UO", "URX", "UPE"]}}
    too_large = {
        "status_code_filter": {
            "comparison": {
                "op": "EQ",
                "value": {"default_value": 413, "runtime_key": "fastgen.payload_too_large"},
            }
        }
    }
    return {
        "mappers": [
            {
                "filter": {"and_filter": {"filters": [upstream, not_grpc]}},
                "body_format_override": _error_format(
                    "No replica could answer; try again.", "server_error", "unavailable"
                ),
            },
            {
                "filter": {"and_filter": {"filters": [too_large, not_grpc]}},
                "body_format_override": _error_format(
                    "The request body is larger than this server accepts.",
                    "invalid_request_error",
                    "payload_too_large",
                ),
            },
        ]
    }


def _error_format(message: str, kind: str, code: str) -> Config:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"json_format": {"error": error}, "content_type": "application/json"}


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


def _picker_service() -> Config:
    return {"envoy_grpc": {"cluster_name": PICKER_CLUSTER}}


def _address(host: str, port: int) -> Config:
    return {"socket_address": {"address": host, "port_value": port}}


def _keepalive_options() -> list[Config]:
    """SO_KEEPALIVE after 30 s, and a minute for what was sent to be acknowledged.

    A client that vanished without a word must not hold its request's blocks.
    """
    numbers = ((1, 9, 1), (6, 4, 30), (6, 5, 10), (6, 6, 3), (6, 18, 60_000))
    return [
        {"level": level, "name": name, "int_value": value, "state": "STATE_PREBIND"}
        for level, name, value in numbers
    ]
