"""Envoy's listener: what happens to a request before it leaves for a replica."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fastgen_api.names import BALANCER_HEALTH_PATH, Header
from fastgen_balancer.envoy_clusters import PICKER_CLUSTER
from fastgen_balancer.envoy_grpc import UNREAD_METADATA
from fastgen_balancer.envoy_replies import local_replies
from fastgen_balancer.envoy_routes import (
    CLIENT_REQUEST_ID,
    EXT_PROC,
    ROUTES,
    ROUTES_FILE,
    TYPES,
    by_file,
)
from fastgen_balancer.envoy_security import Security, api_key_filter, tls_socket

Config: TypeAlias = dict[str, Any]

METADATA: Final = "fastgen"
"""Namespace of the dynamic metadata with which the picker marks a request."""
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
STREAM_WINDOW_BYTES: Final = 1024 * 1024
MAX_BUFFER_BYTES: Final = MAX_BODY_BYTES + STREAM_WINDOW_BYTES
"""Above the bodies that we take: the picker refuses in better words than Envoy."""
INTERNAL_HEADERS: Final = (
    Header.ENDPOINT,
    Header.DEPLOYMENT,
    Header.MODEL_JUDGED,
    Header.UNWITNESSED,
    Header.WAITED,
    Header.ONCE,
    Header.CLIENT,
)
"""What only the balancer may say."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that protect the balancer itself."""

    max_buffer_bytes: int = MAX_BUFFER_BYTES
    max_header_kibibytes: int = 64
    max_headers: int = 100
    max_streams: int = 1000
    """Of one HTTP/2 connection at a time; further ones wait at the client."""
    max_connections: int = 20_000
    max_heap_bytes: int = 1024 * 1024 * 1024
    max_hold_seconds: int = 610
    """Longest time that the picker may hold a request."""
    picker_timeout_seconds: float = 1.0
    stream_idle_seconds: int = 900
    """Without a byte in either direction: longer than any hold and the first token after it."""
    handshake_seconds: float = 15.0
    """Of TLS."""
    header_seconds: float = 30.0
    """From a request's first byte to the end of its headers."""
    upload_seconds: float = 300.0
    """From a request's first byte to its last."""


def listener(host: str, port: int, limits: Limits, security: Security, directory: str) -> Config:
    chain: Config = {
        "filters": [
            {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": _connection_manager(limits, security, directory),
            }
        ]
    }
    if security.tls:
        chain |= {
            "transport_socket": tls_socket(directory),
            "transport_socket_connect_timeout": f"{limits.handshake_seconds}s",
        }
    return {
        "name": "in",
        "address": {"socket_address": {"address": host, "port_value": port}},
        "per_connection_buffer_limit_bytes": limits.max_buffer_bytes,
        "socket_options": _keepalive_options(),
        "filter_chains": [chain],
    }


def _connection_manager(limits: Limits, security: Security, directory: str) -> Config:
    # Health comes before the keys: a probe has none.
    keys = [api_key_filter(directory)] if security.api_keys else []
    return {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "AUTO",
        "server_name": "fastgen",
        "use_remote_address": True,
        "generate_request_id": True,
        "always_set_request_id_in_response": True,
        "max_request_headers_kb": limits.max_header_kibibytes,
        "stream_idle_timeout": f"{limits.stream_idle_seconds}s",
        "request_headers_timeout": f"{limits.header_seconds}s",
        "request_timeout": f"{limits.upload_seconds}s",
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "http_protocol_options": {"accept_http_10": True, "default_host_for_http_10": "fastgen"},
        "common_http_protocol_options": {
            "idle_timeout": "900s",
            "max_headers_count": limits.max_headers,
            "headers_with_underscores_action": "DROP_HEADER",
        },
        "http2_protocol_options": {
            "max_concurrent_streams": limits.max_streams,
            # What may come in before the buffer's limit is felt.
            "initial_stream_window_size": STREAM_WINDOW_BYTES,
            "initial_connection_window_size": 16 * STREAM_WINDOW_BYTES,
            "connection_keepalive": {"interval": "30s", "timeout": "20s"},
        },
        "early_header_mutation_extensions": [_strip_internal_headers()],
        "access_log": [_access_log()],
        "local_reply_config": local_replies(),
        "rds": {"route_config_name": ROUTES, "config_source": by_file(directory, ROUTES_FILE)},
        "http_filters": [_health_filter(), *keys, _ext_proc(limits), _router()],
    }


def _strip_internal_headers() -> Config:
    """Removes, before anything reads them, headers by which a client could steer us.

    A client's request id is put aside, for the picker to judge: until then Envoy's own stands, so
    that no log entry and no answer bears one that is too long or is not even text.
    """
    put_aside = {
        "append": {
            "header": {"key": CLIENT_REQUEST_ID, "value": f"%REQ({Header.REQUEST_ID})%"},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }
    }
    by_prefix = {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}}
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{TYPES}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [
                *({"remove": name} for name in (*INTERNAL_HEADERS, CLIENT_REQUEST_ID)),
                put_aside,
                {"remove": Header.REQUEST_ID},
                by_prefix,
                *({"remove_on_match": {"key_matcher": name}} for name in UNREAD_METADATA),
            ],
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
            "additional_request_headers_to_log": ["content-type", Header.MODEL],
            "additional_response_headers_to_log": ["grpc-status"],
            "additional_response_trailers_to_log": ["grpc-status"],
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
            # Routes that need the picker say so. Answers of Envoy's own, to what is no request at
            # all, belong to no route, and would never leave if they waited for the picker.
            "processing_mode": {
                "request_header_mode": "SKIP",
                "request_body_mode": "NONE",
                "request_trailer_mode": "SKIP",
                "response_header_mode": "SKIP",
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


def _picker_service() -> Config:
    return {"envoy_grpc": {"cluster_name": PICKER_CLUSTER}}


def _keepalive_options() -> list[Config]:
    """SO_KEEPALIVE after 30 s, and a minute for what was sent to be acknowledged.

    A client that vanished without a word must not hold its request's blocks.
    """
    numbers = ((1, 9, 1), (6, 4, 30), (6, 5, 10), (6, 6, 3), (6, 18, 60_000))
    return [
        {"level": level, "name": name, "int_value": value, "state": "STATE_PREBIND"}
        for level, name, value in numbers
    ]
