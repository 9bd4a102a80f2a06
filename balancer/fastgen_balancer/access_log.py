"""Hears from Envoy how each request ended."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc
from google.protobuf.message import DecodeError

from fastgen_api.names import Header
from fastgen_balancer.choice import named_by_header
from fastgen_balancer.endpoints import format_address
from fastgen_balancer.envoy_listener import METADATA
from fastgen_balancer.exchange import is_generation
from fastgen_balancer.ext_proc import DEPLOYMENT_KEY, PICK_KEY
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.member import Member
from fastgen_balancer.outcome import CLIENT_LEFT, Entry, is_failure, is_success, outcome_of
from fastgen_balancer.roster import Roster

SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"

log = logging.getLogger(__name__)


class AccessLog(als_pb2_grpc.AccessLogServiceServicer):  # type: ignore[misc]
    """Ends requests in the books, counts those that no replica counts, wakes the queue."""

    def __init__(self, roster: Callable[[], Roster], members: Mapping[str, Member]) -> None:
        self._roster = roster
        self._members = members

    async def StreamAccessLogs(  # noqa: N802
        self,
        request_iterator: AsyncIterator[als_pb2.StreamAccessLogsMessage],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> als_pb2.StreamAccessLogsResponse:
        async for message in request_iterator:
            told = [self.note(entry_of(entry)) for entry in message.http_logs.log_entry]
            for member in dict.fromkeys(told):
                if member is not None:
                    member.dispatcher.pump()
        return als_pb2.StreamAccessLogsResponse()

    def note(self, entry: Entry) -> Member | None:
        """Books one ended request; returns whose it was, None: nobody's that is known."""
        member = self._member(entry)
        if member is None:
            return None
        if is_generation(entry.method, entry.path, entry.is_grpc):
            self._note_generation(member, entry)
        if entry.pick_id:
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
        tried = {
            address: endpoint.name
            for endpoint in fleet.endpoints
            for address in (endpoint.http_address, endpoint.grpc_address)
        }
        last = tried.get(entry.upstream or "")
        if last is not None:
            fleet.answered(last, well=not is_failure(entry))
        if picked is not None and picked != last:
            fleet.missed(picked)


def add_access_log(access_log: AccessLog, server: grpc.aio.Server) -> None:
    """Registers the service; a batch that does not read is lost, the stream goes on."""
    handler = grpc.stream_unary_rpc_method_handler(
        access_log.StreamAccessLogs,
        request_deserializer=read_batch,
        response_serializer=als_pb2.StreamAccessLogsResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"StreamAccessLogs": handler})
    server.add_generic_rpc_handlers((handlers,))


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
