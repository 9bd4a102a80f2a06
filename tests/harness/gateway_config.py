"""Somebody else's gateway: how its Envoy is set up."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastgen_cli.plan import free_ports

TYPES = "type.googleapis.com/envoy.extensions"
DESTINATION = "x-gateway-destination-endpoint"
HTTP2 = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}


@dataclass(frozen=True)
class Gateway:
    """How the gateway is set up; the defaults are the protocol's."""

    picker_port: int
    addresses: Sequence[str] = ()
    """Of the pool, among which the picker's word chooses; none: it goes whereto the word says."""
    by_header: bool = False
    """Whether that word is the header, which a pool takes in place of the metadata."""
    subset: Sequence[str] | None = None
    body_mode: str = "FULL_DUPLEX_STREAMED"
    retries: int = 0
    tells_served: bool = True
    authority: Path | None = None
    """Where the picker speaks TLS: whom to trust."""
    message_timeout_seconds: float = 1.0
    ports: list[int] = field(default_factory=lambda: free_ports(2))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def port(self) -> int:
        return self.ports[0]


def configuration(gateway: Gateway) -> dict[str, Any]:
    """Envoy's whole configuration."""
    return {
        "admin": {"address": _address("127.0.0.1", gateway.ports[1])},
        "static_resources": {
            "listeners": [_listener(gateway)],
            "clusters": [_pool(gateway, grpc=False), _pool(gateway, grpc=True), _picker(gateway)],
        },
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _listener(gateway: Gateway) -> dict[str, Any]:
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [_route(gateway, grpc=True), _route(gateway, grpc=False)],
                }
            ]
        },
        "http_filters": [
            *_subset_hint(gateway),
            _ext_proc(gateway),
            *_served(gateway),
            {
                "name": "router",
                "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"},
            },
        ],
    }
    name = "envoy.filters.network.http_connection_manager"
    return {
        "name": "in",
        "address": _address("127.0.0.1", gateway.port),
        "filter_chains": [{"filters": [{"name": name, "typed_config": manager}]}],
    }


def _route(gateway: Gateway, *, grpc: bool) -> dict[str, Any]:
    route: dict[str, Any] = {"cluster": "pool-grpc" if grpc else "pool-http", "timeout": "0s"}
    if gateway.retries:
        route["retry_policy"] = {
            "retry_on": "connect-failure,refused-stream,retriable-status-codes,resource-exhausted",
            "retriable_status_codes": [429, 503],
            "num_retries": gateway.retries,
        }
    header = {"key": "x-served", "value": "%UPSTREAM_REMOTE_ADDRESS%"}
    return {
        "match": {"prefix": "/"} | ({"grpc": {}} if grpc else {}),
        "route": route,
        "response_headers_to_add": [{"header": header}] if gateway.tells_served else [],
    }


def _subset_hint(gateway: Gateway) -> list[dict[str, Any]]:
    if gateway.subset is None:
        return []
    return [
        {
            "name": "subset",
            "typed_config": {
                "@type": f"{TYPES}.filters.http.set_metadata.v3.Config",
                "metadata": [
                    {
                        "metadata_namespace": "envoy.lb.subset_hint",
                        "value": {f"{DESTINATION}-subset": list(gateway.subset)},
                    }
                ],
            },
        }
    ]


def _served(gateway: Gateway) -> list[dict[str, Any]]:
    """Comes after the picker in the chain, so that an answer meets it first."""
    if not gateway.tells_served:
        return []
    rule = {
        "header": "x-served",
        "on_header_present": {"metadata_namespace": "envoy.lb", "key": f"{DESTINATION}-served"},
        "remove": True,
    }
    return [
        {
            "name": "served",
            "typed_config": {
                "@type": f"{TYPES}.filters.http.header_to_metadata.v3.Config",
                "response_rules": [rule],
            },
        }
    ]


def _ext_proc(gateway: Gateway) -> dict[str, Any]:
    duplex = gateway.body_mode == "FULL_DUPLEX_STREAMED"
    return {
        "name": "picker",
        "typed_config": {
            "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "0s"},
            "failure_mode_allow": False,
            "message_timeout": f"{gateway.message_timeout_seconds}s",
            "max_message_timeout": "60s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": gateway.body_mode,
                "request_trailer_mode": "SEND" if duplex else "SKIP",
                "response_header_mode": "SEND",
                "response_body_mode": gateway.body_mode if duplex else "NONE",
                "response_trailer_mode": "SEND",
            },
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }


def _pool(gateway: Gateway, *, grpc: bool) -> dict[str, Any]:
    name = "pool-grpc" if grpc else "pool-http"
    protocol = {"typed_extension_protocol_options": HTTP2} if grpc else {}
    if not gateway.addresses:
        lookup = {"use_http_header": True, "http_header_name": DESTINATION}
        return {
            "name": name,
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": "1s",
            "original_dst_lb_config": lookup,
            **protocol,
        }
    policies = f"{TYPES}.load_balancing_policies"
    metadata = {"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}
    source = {"header": DESTINATION} if gateway.by_header else metadata
    random = {
        "typed_extension_config": {
            "name": "envoy.load_balancing_policies.random",
            "typed_config": {"@type": f"{policies}.random.v3.Random"},
        }
    }
    override = {
        "typed_extension_config": {
            "name": "envoy.load_balancing_policies.override_host",
            "typed_config": {
                "@type": f"{policies}.override_host.v3.OverrideHost",
                "override_host_sources": [source],
                "fallback_policy": {"policies": [random]},
            },
        }
    }
    endpoints = [
        {"endpoint": {"address": _address(host, int(port))}}
        for host, _, port in (address.rpartition(":") for address in gateway.addresses)
    ]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_balancing_policy": {"policies": [override]},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        **protocol,
    }


def _picker(gateway: Gateway) -> dict[str, Any]:
    host = "127.0.0.1"
    socket: dict[str, Any] = {}
    if gateway.authority is not None:
        context = {"trusted_ca": {"filename": str(gateway.authority)}}
        socket = {
            "transport_socket": {
                "name": "tls",
                "typed_config": {
                    "@type": f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext",
                    "common_tls_context": {
                        "alpn_protocols": ["h2"],
                        "validation_context": context,
                    },
                },
            }
        }
    endpoint = {"endpoint": {"address": _address(host, gateway.picker_port)}}
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": HTTP2,
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
        **socket,
    }
