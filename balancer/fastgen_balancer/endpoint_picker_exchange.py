"""One request of somebody else's gateway, as far as it has come."""

from dataclasses import dataclass, field

from fastgen_balancer.exchange import Exchange, number_of
from fastgen_balancer.outcome import Entry

UNKNOWN = "unknown"
"""Upstream of a request whose gateway does not tell which replica has answered."""


@dataclass(slots=True, kw_only=True)
class GatewayExchange(Exchange):
    """What an endpoint picker knows of one request beyond what our own Envoy asks."""

    request_body_mode: int = 0
    response_body_mode: int = 0
    subset: frozenset[str] | None = None
    """Endpoints that the gateway allows; None: all."""
    body: bytearray = field(default_factory=bytearray)
    """Of a request that is not placed yet."""
    refused: bool = False
    served: str | None = None
    """Address of the endpoint that has answered, by the gateway's word."""

    def end_answer(self, trailers: dict[str, str]) -> None:
        """Notes the trailers of the answer."""
        status = number_of(trailers.get("grpc-status", ""))
        self.grpc_status = self.grpc_status if status is None else status


def entry_of(exchange: GatewayExchange, now: float) -> Entry | None:
    """The exchange as a line of an access log, which a gateway does not send us.

    None where it says nothing: the client left or the stream broke, and the replica knows of both.
    """
    broke = exchange.is_grpc and exchange.status == 200 and exchange.grpc_status is None
    if exchange.status is None or broke or not (exchange.placed and exchange.generates):
        return None
    return Entry(
        pick_id=exchange.id,
        method=exchange.method,
        path=exchange.path,
        is_grpc=exchange.is_grpc,
        status=exchange.status,
        grpc_status=exchange.grpc_status,
        started=exchange.started,
        flags=frozenset(),
        details="",
        upstream=exchange.served or UNKNOWN,
        attempts=1,
        request_id=exchange.client_id or "",
        seconds=now - exchange.began_at,
    )
