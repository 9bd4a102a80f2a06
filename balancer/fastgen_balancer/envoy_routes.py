"""Where Envoy sends a request, and what it answers itself."""

import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fastgen_api.names import Header
from fastgen_balancer.envoy_clusters import GRPC_CLUSTER, HTTP_CLUSTER, cluster_name
from fastgen_balancer.envoy_grpc import doors

Config: TypeAlias = dict[str, Any]

TYPES: Final = "type.googleapis.com/envoy.extensions"
GENERATE_PATH: Final = "/fastgen.v1.InferenceService/Generate"
HTTP_PREFIX: Final = "/v1/"
EXT_PROC: Final = "envoy.filters.http.ext_proc"
ROUTES: Final = "in"
ROUTES_FILE: Final = "routes.json"
CLUSTERS_FILE: Final = "clusters.json"
"""Both in the balancer's directory."""
CLIENT_REQUEST_ID: Final = "x-fastgen-client-request-id"
"""Envoy to picker: the request's id as the client has named it, sound or not."""
RETRY_ON: Final = (
    "connect-failure,refused-stream,reset,retriable-status-codes,resource-exhausted,unavailable"
)
"""Headers come with the first token: whatever fails before them may start anew elsewhere."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Whose replicas Envoy reaches, and where a request goes by itself, without the picker."""

    deployments: tuple[str, ...] = ()
    """Those that the picker may choose."""
    default: str | None = None
    """Whose a request is that names nobody; None: nobody's."""
    by_header: tuple[str, ...] = ()
    """Those that a client may choose by `Header.MODEL`."""


def routes(reach: Reach, max_buffer_bytes: int) -> Config:
    """The routes to these deployments, most telling first.

    The picker's word comes before the client's. Each of a kind asks the picker alike, since the one
    that fits first is chosen before the picker has spoken.
    """
    generate: Config = {"path": GENERATE_PATH, "grpc": {}}
    any_grpc: Config = {"prefix": "/", "grpc": {}}
    table = [
        *doors(any_grpc),
        *_to_replicas(reach, generate, GRPC_CLUSTER, "BUFFERED"),
        # Reflection streams its requests: waiting for their end would wait for ever.
        *_to_replicas(reach, any_grpc, GRPC_CLUSTER, "NONE"),
        _too_long(),
        *_to_replicas(reach, {"prefix": HTTP_PREFIX}, HTTP_CLUSTER, "BUFFERED"),
        _not_found(),
    ]
    return {
        "name": ROUTES,
        "virtual_hosts": [
            {
                "name": "in",
                "domains": ["*"],
                "request_body_buffer_limit": max_buffer_bytes,
                "request_headers_to_remove": [CLIENT_REQUEST_ID, Header.DEPLOYMENT],
                "routes": table,
            }
        ],
    }


def _to_replicas(reach: Reach, match: Config, kind: str, body_mode: str) -> list[Config]:
    def route(deployment: str, header: str | None, **more: Any) -> Config:
        named = {"headers": [_is(header, deployment)]} if header else {}
        way = {"route": _route(cluster_name(kind, deployment)), **more}
        return {"match": match | named, **way, "typed_per_filter_config": asks}

    asks = _asks_picker(body_mode)
    return [
        *(route(each, Header.DEPLOYMENT) for each in reach.deployments),
        *(
            route(each, Header.MODEL, request_headers_to_add=[_set(Header.MODEL_JUDGED, "1")])
            for each in reach.by_header
        ),
        route(reach.default, None)
        if reach.default is not None
        else _unnamed(match, kind) | {"typed_per_filter_config": asks},
    ]


def _unnamed(match: Config, kind: str) -> Config:
    """What Envoy answers by itself, without the picker, where it would have to know the model."""
    message = (
        "The requests of this balancer cannot be told apart just now; try again, or name the "
        f"deployment in the header {Header.MODEL}."
    )
    if kind == GRPC_CLUSTER:
        # The body becomes the status' message.
        body = {"inline_string": message}
        return {"match": match, "direct_response": {"status": 503, "body": body}}
    return _refusal(match, 503, message, "no_picker", "server_error")


def _is(header: str, value: str) -> Config:
    return {"name": header, "string_match": {"exact": value}}


def _set(key: str, value: str) -> Config:
    action = "OVERWRITE_IF_EXISTS_OR_ADD"
    return {"header": {"key": key, "value": value}, "append_action": action}


def by_file(directory: str, name: str) -> Config:
    """Where Envoy finds what comes by a file of the balancer's directory, and follows it."""
    return {
        "resource_api_version": "V3",
        "path_config_source": {
            "path": f"{directory}/{name}",
            "watched_directory": {"path": directory},
        },
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


def _refusal(
    match: Config, status: int, message: str, code: str, kind: str = "invalid_request_error"
) -> Config:
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = json.dumps({"error": error})
    return {
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "response_headers_to_add": [_set("content-type", "application/json")],
    }
