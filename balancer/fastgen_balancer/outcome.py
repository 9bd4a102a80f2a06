"""What a request's entry in Envoy's access log means."""

from dataclasses import dataclass
from typing import Final

import grpc

from fastgen_api.names import Outcome
from fastgen_balancer.envoy_replies import DETAILS

FULL_OR_DRAINING: Final = frozenset(
    {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], grpc.StatusCode.UNAVAILABLE.value[0]}
)
SERVER_ERRORS: Final = frozenset(
    {
        grpc.StatusCode.UNKNOWN.value[0],
        grpc.StatusCode.INTERNAL.value[0],
        grpc.StatusCode.DATA_LOSS.value[0],
    }
)
"""Without UNIMPLEMENTED, which answers what a client asked for: a method, a compression."""
UNCONNECTED: Final = "upstream_connection_failure"
BROKEN: Final = frozenset(
    {
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
        UNCONNECTED,
        "upstream_request_timeout",
        "upstream_overflow",
        "stream_idle_timeout",
        "local_reset",
    }
)
TOO_LARGE_DETAILS: Final = "request_payload_too_large"
"""Envoy's own refusal, which gRPC clients see as UNKNOWN."""
CLIENT_LEFT: Final = frozenset({"downstream_connection_termination", "downstream_remote_reset"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the access log."""

    pick_id: str | None
    method: str
    path: str
    is_grpc: bool
    status: int
    """Of HTTP; 0 when there was no answer."""
    grpc_status: int | None
    started: bool
    """Of gRPC: whether the answer began, with the first token, before its status came."""
    flags: frozenset[str]
    """Names of envoy.data.accesslog.v3.ResponseFlags."""
    details: str
    upstream: str | None
    """`host:port` of the replica that was tried last."""
    attempts: int
    request_id: str
    seconds: float
    deployment: str | None = None
    """Whose the picker has said it is; None: it has said nothing."""
    named: str = ""
    """The deployment that its client has named in a header."""


def outcome_of(entry: Entry) -> Outcome | None:
    """How the balancer counts a request for generation; None when the replica counts it.

    What the picker refused, and clients that left its queue, were counted when it happened; of a
    client that left later the replica knows. What Envoy sent by itself, while the picker did not
    answer, bears no word of a balancer, so the replica counts it whatever becomes of it.
    """
    if entry.pick_id is None and not _never_arrived(entry):
        return None
    return _verdict(entry)


def _never_arrived(entry: Entry) -> bool:
    """Whether no replica has seen the request."""
    if entry.upstream is None:
        return True
    return entry.attempts == 1 and UNCONNECTED in entry.flags


def _verdict(entry: Entry) -> Outcome | None:
    if entry.details == DETAILS:
        return None
    if entry.flags & CLIENT_LEFT:
        return None
    if entry.details == TOO_LARGE_DETAILS:
        return Outcome.EXCLUDED
    if entry.flags & BROKEN:
        return Outcome.ERROR
    if entry.is_grpc and entry.grpc_status is not None:
        return _of_grpc(entry)
    if entry.is_grpc and entry.status == 200:
        return Outcome.ERROR
    if entry.status in (429, 503):
        return Outcome.REFUSED
    if entry.status >= 500 or entry.status == 0:
        return Outcome.ERROR
    return Outcome.EXCLUDED if entry.status >= 400 and not entry.upstream else None


def is_failure(entry: Entry) -> bool:
    """Whether the replica that was tried last has failed, rather than answered or been full."""
    if entry.flags & CLIENT_LEFT:
        return False
    return _verdict(entry) is Outcome.ERROR


def is_success(entry: Entry) -> bool:
    """Whether a replica has answered to the end, whatever it took before."""
    if entry.flags & (CLIENT_LEFT | BROKEN) or entry.status != 200:
        return False
    return entry.grpc_status == 0 if entry.is_grpc else True


def outcome_of_abandoned(waited_seconds: float, ttft_seconds: float | None) -> Outcome:
    """Of a request whose client left the queue: our fault once the first token was overdue."""
    if ttft_seconds is not None and waited_seconds > ttft_seconds:
        return Outcome.LATE_FIRST_TOKEN
    return Outcome.EXCLUDED


def _of_grpc(entry: Entry) -> Outcome | None:
    if entry.grpc_status in FULL_OR_DRAINING:
        return Outcome.ERROR if entry.started else Outcome.REFUSED
    if entry.grpc_status in SERVER_ERRORS:
        return Outcome.ERROR
    return Outcome.EXCLUDED if entry.grpc_status and not entry.upstream else None
