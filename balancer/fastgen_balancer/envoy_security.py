"""Who may ask, and how the way is encrypted: API keys and TLS in Envoy's configuration."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fastgen_api.names import Header
from fastgen_balancer.envoy_routes import TYPES, by_file

Config: TypeAlias = dict[str, Any]

API_KEYS_FILE: Final = "api-keys.json"
"""In the balancer's directory: the filter of the keys in force."""
TLS_FILE: Final = "tls.json"
"""In the balancer's directory: where the certificate lies."""
API_KEY_FILTER: Final = "api-keys"
CERTIFICATE: Final = "certificate"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
"""Both as in a Secret of the type kubernetes.io/tls."""


@dataclass(frozen=True, slots=True)
class Security:
    """What guards the listener; by default it is open."""

    api_keys: bool = False
    """Whether a request needs a key of `API_KEYS_FILE`."""
    tls: bool = False
    """Whether the listener speaks TLS, with the certificate that `TLS_FILE` names."""


OPEN: Final = Security()


def api_key_filter(directory: str) -> Config:
    """The HTTP filter that asks for a key; its keys follow the file.

    While there is no file that reads, every request is refused.
    """
    return {
        "name": API_KEY_FILTER,
        "config_discovery": {
            "config_source": by_file(directory, API_KEYS_FILE),
            "type_urls": [f"{TYPES}.filters.http.api_key_auth.v3.ApiKeyAuth"],
        },
    }


def api_keys_resource(keys: Iterable[tuple[str, str]]) -> Config:
    """The content of `API_KEYS_FILE`, from pairs of client and key; no key may come twice."""
    return {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
                "name": API_KEY_FILTER,
                "typed_config": {
                    "@type": f"{TYPES}.filters.http.api_key_auth.v3.ApiKeyAuth",
                    "credentials": [{"key": key, "client": client} for client, key in keys],
                    "key_sources": [{"header": "authorization"}],
                    "forwarding": {"header": Header.CLIENT, "hide_credentials": True},
                },
            }
        ]
    }


def tls_socket(directory: str) -> Config:
    """The listener's side of TLS; HTTP/1.1, HTTP/2 and so gRPC are told apart by ALPN."""
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificate_sds_secret_configs": [
                    {"name": CERTIFICATE, "sds_config": by_file(directory, TLS_FILE)}
                ],
            },
        },
    }


def tls_resource(secret: str) -> Config:
    """The content of `TLS_FILE`, for a Secret that is mounted at `secret`.

    The files are read again when the mounted Secret changes. What does not fit together is not
    taken, and the certificate before it stays.
    """
    return {
        "resources": [
            {
                "@type": f"{TYPES}.transport_sockets.tls.v3.Secret",
                "name": CERTIFICATE,
                "tls_certificate": {
                    "certificate_chain": {"filename": f"{secret}/{CERTIFICATE_FILE}"},
                    "private_key": {"filename": f"{secret}/{KEY_FILE}"},
                    "watched_directory": {"path": secret},
                },
            }
        ]
    }
