"""Where Envoy sends a request, and what it answers itself."""

from typing import Any, Final, TypeAlias

from fastgen_balancer.envoy_clusters import GRPC_CLUSTER, HTTP_CLUSTER

Config: TypeAlias = dict[str, Any]

TYPES: Final = "type.googleapis.com/envoy.extensions"
GENERATE_PATH: Final = "/fastgen.v1.InferenceService/Generate"
HTTP_PREFIX: Final = "/v1/"
EXT_PROC: Final = "envoy.filters.http.ext_proc"
RETRY_ON: Final = (
    "connect-failure,refused-stream,reset,retriable-status-codes,resource-exhausted,unavailable"
)
"""Headers come with the first token: whatever fails before them may start anew elsewhere."""


def routes(max_buffer_bytes: int) -> Config:
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
    table = [
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
                "request_body_buffer_limit": max_buffer_bytes,
                "routes": table,
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
