"""One request of somebody else's gateway, as far as it has come."""

from dataclasses import dataclass, field
from typing import Any

import grpc

from fastgen_api.names import Header
from fastgen_balancer.estimate import Size
from fastgen_balancer.exchange import is_generation
from fastgen_balancer.outcome import Entry
from fastgen_balancer.prompt import PromptKeys

UNKNOWN = "unknown"
"""Upstream of a request whose gateway does not tell which replica has answered."""


@dataclass(slots=True)
class Exchange:
    """What an endpoint picker knows of one request."""

    id: str
    headers: dict[str, str]
    request_body_mode: int
    response_body_mode: int
    subset: frozenset[str] | None
    """Endpoints that the gateway allows; None: all."""
    began_at: float
    size: Size
    deadline: float | None = None
    """When its client gives up, seconds of the monotonic clock."""
    keys: PromptKeys | None = None
    once: bool = False
    """Whether it may be tried at one endpoint only: it was there when a replica crashed."""
    body: bytearray = field(default_factory=bytearray)
    """Of a request that is not placed yet."""
    placed: bool = False
    refused: bool = False
    status: int | None = None
    """Of the answer; None until it has begun."""
    grpc_status: int | None = None
    started: bool = False
    """Whether tokens came before the status of gRPC."""
    served: str | None = None
    """Address of the endpoint that has answered, by the gateway's word."""

    @property
    def is_grpc(self) -> bool:
        return self.headers.get("content-type", "").startswith("application/grpc")

    @property
    def generates(self) -> bool:
        method, path = self.headers.get(":method", ""), self.headers.get(":path", "")
        return is_generation(method, path, self.is_grpc)

    @property
    def is_unavailable(self) -> bool:
        """Whether no replica has answered."""
        return self.status == 503 or self.grpc_status == grpc.StatusCode.UNAVAILABLE.value[0]

    def begin_answer(self, headers: dict[str, str], served: str | None) -> None:
        """Notes the headers of the answer."""
        self.served = served
        self.status = _number(headers.get(":status", "")) or 0
        self.grpc_status = _number(headers.get("grpc-status", ""))
        self.started = self.status == 200 and self.grpc_status is None

    def end_answer(self, trailers: dict[str, str]) -> None:
        """Notes the trailers of the answer."""
        status = _number(trailers.get("grpc-status", ""))
        self.grpc_status = self.grpc_status if status is None else status


def entry_of(exchange: Exchange, now: float) -> Entry | None:
    """The exchange as a line of an access log, which a gateway does not send us.

    None where it says nothing: the client left or the stream broke, and the replica knows of both.
    """
    broke = exchange.is_grpc and exchange.status == 200 and exchange.grpc_status is None
    if exchange.status is None or broke or not (exchange.placed and exchange.generates):
        return None
    return Entry(
        pick_id=exchange.id,
        method=exchange.headers.get(":method", ""),
        path=exchange.headers.get(":path", ""),
        is_grpc=exchange.is_grpc,
        status=exchange.status,
        grpc_status=exchange.grpc_status,
        started=exchange.started,
        flags=frozenset(),
        details="",
        upstream=exchange.served or UNKNOWN,
        attempts=1,
        request_id=exchange.headers.get(Header.REQUEST_ID, ""),
        seconds=now - exchange.began_at,
    )


def fields_of(headers: Any) -> dict[str, str]:
    """An envoy.config.core.v3.HeaderMap as text."""
    return {
        header.key: header.raw_value.decode("latin-1") or header.value for header in headers.headers
    }


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
