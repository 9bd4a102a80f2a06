"""One request of somebody else's gateway, as far as it has come."""

from dataclasses import dataclass, field
from typing import ClassVar

from fastgen_balancer.exchange import Exchange


@dataclass(slots=True, kw_only=True)
class GatewayExchange(Exchange):
    """What an endpoint picker knows of one request beyond what our own Envoy asks."""

    witnessed: ClassVar[bool] = False
    request_body_mode: int = 0
    response_body_mode: int = 0
    subset: frozenset[str] | None = None
    """Endpoints that the gateway allows; None: all."""
    body: bytearray = field(default_factory=bytearray)
    """Of a request that is not placed yet."""
    held_bytes: int = 0
    """Of its body, in this process, on their way in or back."""
    refused: bool = False
    served: str | None = None
    """Address of the endpoint that has answered, by the gateway's word."""
