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
_NOT_GRPC: Final[Config] = {
    "header_filter": {
        "header": {
            "name": "content-type",
            "string_match": {"prefix": "application/grpc"},
            "invert_match": True,
            "treat_missing_header_as_empty": True,
        }
    }
}
_UPSTREAM: Final[Config] = {
    "response_flag_filter": {"flags": ["UH", "UF", "UC", "UR", "UO", "URX", "UPE"]}
}
_OWN_WORDS: Final = (404, 413, 414, 422, 429, 503)
"""Statuses of direct responses and of the picker's, which have their own words."""


def local_replies() -> Config:
    """Envoy's own answers in the form that OpenAI clients read; gRPC keeps its status."""
    others = [_status("NE", status) for status in _OWN_WORDS]
    no_replica = ("No replica could answer; try again.", "server_error", "unavailable")
    failed = ("The request failed; try again.", "server_error", "internal_error")
    key = {"header": {"key": "www-authenticate", "value": "Bearer"}}
    return {
        "mappers": [
            _mapper([_UPSTREAM], *no_replica),
            _refusal(
                413, "The request body is larger than this server accepts.", "payload_too_large"
            ),
            _refusal(
                408,
                "The request did not come in time; send it faster or in less bytes.",
                "request_timeout",
            ),
            _refusal(431, "The headers are too many or too long.", "headers_too_large"),
            _refusal(
                401,
                "Incorrect API key; send one as `Authorization: Bearer KEY`.",
                "invalid_api_key",
            )
            | {"headers_to_add": [key]},
            # Envoy's answer to a framing of the body that it does not know; nobody else gives it.
            _refusal(
                501,
                "The header transfer-encoding names an encoding that this server does not know; "
                "send `chunked`, or a content-length.",
                "transfer_encoding_unknown",
            ),
            _mapper([_status("GE", 500), *others, _NOT_OURS], *failed),
            _mapper(
                [_status("GE", 400), *others, _NOT_OURS],
                "This is not a request that this server takes; see the HTTP status.",
                "invalid_request_error",
                "bad_request",
            ),
        ]
    }


def _refusal(status: int, message: str, code: str) -> Config:
    """The client's own error."""
    return _mapper([_status("EQ", status)], message, "invalid_request_error", code)


def _mapper(filters: list[Config], message: str, kind: str, code: str) -> Config:
    """What an answer that passes all filters becomes, except for gRPC."""
    return {
        "filter": {"and_filter": {"filters": [*filters, _NOT_GRPC]}},
        "body_format_override": _error_format(message, kind, code),
    }


def _status(op: str, status: int) -> Config:
    value = {"default_value": status, "runtime_key": f"fastgen.status_{status}"}
    return {"status_code_filter": {"comparison": {"op": op, "value": value}}}


def _error_format(message: str, kind: str, code: str) -> Config:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"json_format": {"error": error}, "content_type": "application/json"}
