"""Envoy's own answers, in the form that OpenAI clients read."""

from typing import Any, Final, TypeAlias

from fastgen_balancer.envoy_routes import TYPES

Config: TypeAlias = dict[str, Any]

DETAILS: Final = "fastgen_refused"
"""Response code details of what the picker has refused, in its own words."""
_NOT_OURS: Final[Config] = {
    "extension_filter": {
        "name": "envoy.access_loggers.extension_filters.cel",
        "typed_config": {
            "@type": f"{TYPES}.access_loggers.filters.cel.v3.ExpressionFilter",
            "expression": f"response.code_details != '{DETAILS}'",
        },
    }
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
                "filter": {
                    "and_filter": {"filters": [_status("GE", 400), *own_words, _NOT_OURS, not_grpc]}
                },
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
