"""Hears from Envoy how each request ended."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from envoy.config.core.v3 import base_pb2
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError

from fastgen_api.names import Header
from fastgen_balancer.calls import Caller
from fastgen_balancer.choice import named_by_header
from fastgen_balancer.endpoints import format_address
from fastgen_balancer.envoy_listener import METADATA
from fastgen_balancer.exchange import is_generation
from fastgen_balancer.ext_proc import DEPLOYMENT_KEY, PICK_KEY
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.member import Member
from fastgen_balancer.outcome import CLIENT_LEFT, Entry, is_failure, is_success, outcome_of
from fastgen_balancer.roster import Roster

METHOD: Final = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"

log = logging.getLogger(__name__)


class AccessLog:
    """Ends requests in the books, counts those that no replica counts, wakes the queue."""

    def __init__(self, roster: Callable[[], Roster], members: Mapping[str, Member]) -> None:
        self._roster = roster
        self._members = members

    def take(self, batch: als_pb2.StreamAccessLogsMessage) -> None:
        """Books a batch of ended requests."""
        told = [self.note(entry_of(entry)) for entry in batch.http_logs.log_entry]
        for member in dict.fromkeys(told):
            if member is not None:
                member.dispatcher.pump()

    def note(self, entry: Entry) -> Member | None:
        """Books one ended request; returns whose it was, None: nobody's that is known."""
        member = self._member(entry)
        if member is None:
            return None
        if is_generation(entry.method, entry.path, entry.is_grpc):
            self._note_generation(member, entry)
        if entry.pick_id:
            if entry.started_and_broke:
                # Its replica may have crashed under it: soon that is known.
                member.quarantine.failed(entry.pick_id)
            member.fleet.end(entry.pick_id)
            member.quarantine.ended(entry.pick_id, well=is_success(entry))
        return member

    def _member(self, entry: Entry) -> Member | None:
        """By the picker's word; of what went without it by the client's, as Envoy went by it."""
        if entry.deployment is not None:
            return self._members.get(entry.deployment)
        roster = self._roster()
        found = roster.sole or named_by_header(roster, {Header.MODEL: entry.named})
        return self._members.get(found.deployment) if found else None

    def _note_generation(self, member: Member, entry: Entry) -> None:
        picked = member.fleet.holder(entry.pick_id) if entry.pick_id else None
        member.metrics.retried(entry.attempts - 1)
        if entry.upstream and not entry.flags & CLIENT_LEFT:
            self._note_health(member.fleet, entry, picked)
        outcome = outcome_of(entry)
        if outcome is not None:
            member.metrics.ended(outcome)
            log.info(
                "request ended without a replica's count",
                extra={
                    "deployment": member.name,
                    "request_id": entry.request_id,
                    "outcome": outcome.value,
                    "status": entry.status,
                    "grpc_status": entry.grpc_status,
                    "flags": sorted(entry.flags),
                    "details": entry.details,
                    "endpoint": entry.upstream,
                    "attempts": entry.attempts,
                },
            )

    def _note_health(self, fleet: Fleet, entry: Entry, picked: str | None) -> None:
        last = fleet.name_at(entry.upstream or "")
        if last is not None:
            fleet.answered(last, well=not is_failure(entry))
        if picked is not None and picked != last:
            fleet.missed(picked)


class AccessLogStream:
    """One call of Envoy's, which tells of requests for as long as the connection lasts."""

    def __init__(self, access_log: AccessLog, caller: Caller) -> None:
        self._access_log = access_log
        self._caller = caller

    def receive(self, message: bytes) -> None:
        """A batch that does not read is lost; the stream goes on."""
        self._access_log.take(read_batch(message))

    def left(self) -> None:
        self._caller.send(als_pb2.StreamAccessLogsResponse().SerializeToString())


def read_batch(data: bytes) -> als_pb2.StreamAccessLogsMessage:
    """Reads Envoy's batch of entries; an empty one when it does not read."""
    try:
        return als_pb2.StreamAccessLogsMessage.FromString(data)
    except DecodeError:
        log.error("access log entries lost: the batch does not read", extra={"bytes": len(data)})
        return als_pb2.StreamAccessLogsMessage()


def entry_of(message: accesslog_pb2.HTTPAccessLogEntry) -> Entry:
    """Reads Envoy's message."""
    common, request, response = message.common_properties, message.request, message.response
    # A refusal is nothing but trailers, which HTTP/2 sends as headers.
    at_once = response.response_headers.get("grpc-status")
    status = response.response_trailers.get("grpc-status") or at_once
    is_grpc = request.request_headers.get("content-type", "").startswith("application/grpc")
    address = common.upstream_remote_address.socket_address
    mark = common.metadata.filter_metadata.get(METADATA)
    pick_id = mark.fields[PICK_KEY].string_value if mark else None
    deployment = mark.fields[DEPLOYMENT_KEY].string_value if mark else None
    return Entry(
        pick_id=pick_id or None,
        deployment=deployment or None,
        named=request.request_headers.get(Header.MODEL, ""),
        method=method_name(request.request_method),
        path=request.original_path or request.path,
        is_grpc=is_grpc,
        status=response.response_code.value,
        grpc_status=int(status) if status and status.isdecimal() else None,
        started=is_grpc and response.response_code.value == 200 and at_once is None,
        flags=frozenset(flag.name for flag, _ in common.response_flags.ListFields()),
        details=response.response_code_details,
        upstream=format_address(address.address, address.port_value) if address.address else None,
        attempts=max(1, common.upstream_request_attempt_count),
        request_id=request.request_id,
        seconds=common.duration.ToMilliseconds() / 1000,
    )


def method_name(number: int) -> str:
    """Name of an envoy.config.core.v3.RequestMethod."""
    return str(base_pb2.RequestMethod.Name(number))
