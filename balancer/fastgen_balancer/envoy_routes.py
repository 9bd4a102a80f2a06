"""Where Envoy sends a request, and what it answers itself."""

import json
from typing import Any, Final, TypeAlias

from fastgen_api.names import Header
from fastgen_balancer.envoy_clusters import GRPC_CLUSTER, HTTP_CLUSTER

Config: TypeAlias = dict[str, Any]

TYPES: Final = "type.googleapis.com/envoy.extensions"
GENERATE_PATH: Final = "/fastgen.v1.InferenceService/Generate"
HTTP_PREFIX: Final = "/v1/"
EXT_PROC: Final = "envoy.filters.http.ext_proc"
CLIENT_REQUEST_ID: Final = "x-fastgen-client-request-id"
"""Envoy to picker: the request's id as the client has named it, sound or not."""
RETRY_ON: Final = (
    "connect-failure,refused-stream,reset,retriable-status-codes,resource-exhausted,unavailable"
)
"""Headers come with the first token: whatever fails before them may start anew elsewhere."""


def routes(max_buffer_bytes: int) -> Config:
    table = [
        {
            "match": {"path": GENERATE_PATH, "grpc": {}},
            "route": _route(GRPC_CLUSTER),
            "typed_per_filter_config": _asks_picker("BUFFERED"),
        },
        # Reflection streams its requests: waiting for their end would wait for ever.
        {
            "match": {"prefix": "/", "grpc": {}},
            "route": _route(GRPC_CLUSTER),
            "typed_per_filter_config": _asks_picker("NONE"),
        },
        _too_long(),
        {
            "match": {"prefix": HTTP_PREFIX},
            "route": _route(HTTP_CLUSTER),
            "typed_per_filter_config": _asks_picker("BUFFERED"),
        },
        _not_found(),
    ]
    return {
        "name": "in",
        "virtual_hosts": [
            {
                "name": "in",
                "domains": ["*"],
                "request_body_buffer_limit": max_buffer_bytes,
                "request_headers_to_remove": [CLIENT_REQUEST_ID],
                "routes": table,
            }
        ],
    }


def _asks_picker(body_mode: str) -> Config:
    return {
        EXT_PROC: {
            "@type": f"{TYPES}.filters.http.ext_proc.v3.ExtProcPerRoute",
            "overrides": {
                "processing_mode": {
                    "request_header_mode": "SEND",
                    "request_body_mode": body_mode,
                    "request_trailer_mode": "SKIP",
                    "response_header_mode": "SEND",
                    "response_body_mode": "NONE",
                    "response_trailer_mode": "SKIP",
                }
            },
        }
    }


def _route(cluster: str) -> Config:
    return {
        "cluster": cluster,
        "timeout": "0s",
        "retry_policy": {
            "retry_on": RETRY_ON,
            "retriable_status_codes": [429, 503],
            "num_retries": 1,
            "retriable_request_headers": [{"name": Header.ONCE, "present_match": False}],
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


def _too_long() -> Config:
    """Paths of more than 2000 characters; of gRPC the replica knows that it has no such method."""
    # RE2 repeats nothing more than 1000 times.
    pattern = "/.{1000}.{1000}.*"
    message = "The path is longer than 2000 characters."
    return _refusal({"safe_regex": {"regex": pattern}}, 414, message, "uri_too_long")


def _not_found() -> Config:
    message = "This address serves /v1/ (OpenAI) and gRPC fastgen.v1."
    return _refusal({"prefix": "/"}, 404, message, "not_found")


def _refusal(match: Config, status: int, message: str, code: str) -> Config:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error})
    return {
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }


def local_replies() -> Config:
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
    too_large = _status("EQ", 413)
    # These are direct responses and the picker's, which have their own words.
    own_words = [_status("NE", status) for status in (404, 413, 414, 422, 429, 503)]
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
            {
                "filter": {"and_filter": {"filters": [_status("EQ", 408), not_grpc]}},
                "body_format_override": _error_format(
                    "The request did not come in time; send it faster or in less bytes.",
                    "invalid_request_error",
                    "request_timeout",
                ),
            },
            {
                "filter": {"and_filter": {"filters": [_status("EQ", 431), not_grpc]}},
                "body_format_override": _error_format(
                    "The headers are too many or too long.",
                    "invalid_request_error",
                    "headers_too_large",
                ),
            },
            {
                "filter": {"and_filter": {"filters": [_status("EQ", 401), not_grpc]}},
                "headers_to_add": [{"header": {"key": "www-authenticate", "value": "Bearer"}}],
                "body_format_override": _error_format(
                    "Incorrect API key; send one as `Authorization: Bearer KEY`.",
                    "invalid_request_error",
                    "invalid_api_key",
                ),
            },
            {
                "filter": {"and_filter": {"filters": [_status("GE", 500), *own_words, not_grpc]}},
                "body_format_override": _error_format(
                    "The request failed; try again.", "server_error", "internal_error"
                ),
            },
            {
                "filter": {"and_filter": {"filters": [_status("GE", 400), *own_words, not_grpc]}},
                "body_format_override": _error_format(
                    "This is not a request that this server takes; see the HTTP status.",
                    "invalid_request_error",
                    "bad_request",
                ),
            },
        ]
    }


def _status(op: str, status: int) -> Config:
    value = {"default_value": status, "runtime_key": f"fastgen.status_{status}"}
    return {"status_code_filter": {"comparison": {"op": op, "value": value}}}


def _error_format(message: str, kind: str, code: str) -> Config:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"json_format": {"error": error}, "content_type": "application/json"}
