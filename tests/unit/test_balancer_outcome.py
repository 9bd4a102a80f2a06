"""What an entry of Envoy's access log means, and who counts the request."""

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2

from fastgen_api.names import Outcome
from fastgen_balancer.access_log import entry_of
from fastgen_balancer.envoy_replies import DETAILS
from fastgen_balancer.outcome import (
    TOO_LARGE_DETAILS,
    Entry,
    is_failure,
    outcome_of,
    outcome_of_abandoned,
)


def entry(**fields: object) -> Entry:
    base: dict[str, object] = {
        "pick_id": "p", "method": "POST", "path": "/v1/completions", "is_grpc": False,
        "status": 200, "grpc_status": None, "started": False, "flags": frozenset(),
        "details": "via_upstream", "upstream": "10.0.0.1:8000", "attempts": 1,
        "request_id": "r", "seconds": 1.0,
    }  # fmt: skip
    return Entry(**(base | fields))


def flags(*names: str) -> frozenset[str]:
    return frozenset(names)


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, None),
        ({"status": 400}, None),
        ({"status": 413, "upstream": None}, Outcome.EXCLUDED),
        ({"status": 429}, Outcome.REFUSED),
        ({"status": 429, "upstream": None, "details": DETAILS}, None),
        ({"status": 503}, Outcome.REFUSED),
        ({"status": 429, "flags": flags("upstream_retry_limit_exceeded")}, Outcome.REFUSED),
        ({"status": 503, "flags": flags("upstream_connection_failure")}, Outcome.ERROR),
        ({"status": 503, "flags": flags("no_healthy_upstream")}, Outcome.REFUSED),
        ({"status": 500}, Outcome.ERROR),
        ({"flags": flags("upstream_connection_termination")}, Outcome.ERROR),
        ({"status": 0, "flags": flags("downstream_connection_termination")}, None),
        ({"flags": flags("downstream_remote_reset"), "is_grpc": True}, None),
        ({"is_grpc": True, "grpc_status": 0}, None),
        ({"is_grpc": True, "grpc_status": 3}, None),
        ({"is_grpc": True, "grpc_status": 8}, Outcome.REFUSED),
        ({"is_grpc": True, "grpc_status": 14}, Outcome.REFUSED),
        ({"is_grpc": True, "grpc_status": 13}, Outcome.ERROR),
        ({"is_grpc": True, "grpc_status": 12}, None),
        ({"is_grpc": True, "grpc_status": 0, "started": True}, None),
        ({"is_grpc": True, "grpc_status": 14, "started": True}, Outcome.ERROR),
        ({"is_grpc": True, "grpc_status": 8, "started": True}, Outcome.ERROR),
        ({"is_grpc": True, "flags": flags("upstream_remote_reset")}, Outcome.ERROR),
        ({"is_grpc": True}, Outcome.ERROR),
    ],
)
def test_who_counts_what(fields: dict[str, object], outcome: Outcome | None) -> None:
    assert outcome_of(entry(**fields)) is outcome
    assert is_failure(entry(**fields)) == (outcome is Outcome.ERROR)


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, None),
        ({"status": 429}, None),
        ({"status": 503}, None),
        ({"status": 500}, None),
        ({"is_grpc": True, "grpc_status": 14}, None),
        ({"flags": flags("upstream_connection_termination")}, None),
        ({"status": 503, "flags": flags("no_healthy_upstream"), "upstream": None}, Outcome.REFUSED),
        ({"is_grpc": True, "grpc_status": 14, "upstream": None}, Outcome.REFUSED),
        ({"status": 503, "flags": flags("upstream_connection_failure")}, Outcome.ERROR),
        ({"flags": flags("upstream_connection_failure"), "attempts": 2}, None),
        ({"status": 413, "upstream": None, "details": TOO_LARGE_DETAILS}, Outcome.EXCLUDED),
    ],
)
def test_who_counts_what_envoy_sent_by_itself(
    fields: dict[str, object], outcome: Outcome | None
) -> None:
    assert outcome_of(entry(pick_id=None, **fields)) is outcome


def test_what_envoy_sent_by_itself_tells_of_health_all_the_same() -> None:
    assert is_failure(entry(pick_id=None, status=500))
    assert not is_failure(entry(pick_id=None))


def test_a_client_that_leaves_the_queue_late_had_waited_too_long() -> None:
    assert outcome_of_abandoned(0.4, 0.5) is Outcome.EXCLUDED
    assert outcome_of_abandoned(0.6, 0.5) is Outcome.LATE_FIRST_TOKEN
    assert outcome_of_abandoned(100, None) is Outcome.EXCLUDED


def test_an_entry_of_the_access_log() -> None:
    message = accesslog_pb2.HTTPAccessLogEntry()
    common, response = message.common_properties, message.response
    common.metadata.filter_metadata["fastgen"].update({"pick": "p-1"})
    common.upstream_remote_address.socket_address.address = "10.0.0.1"
    common.upstream_remote_address.socket_address.port_value = 9000
    common.response_flags.upstream_remote_reset = True
    common.upstream_request_attempt_count = 2
    common.duration.FromMilliseconds(1500)
    message.request.path = "/fastgen.v1.InferenceService/Generate"
    message.request.request_method = 3
    message.request.request_headers["content-type"] = "application/grpc"
    response.response_code.value = 200
    response.response_trailers["grpc-status"] = "13"
    read = entry_of(message)
    assert read == entry(
        pick_id="p-1", path=message.request.path, is_grpc=True, grpc_status=13,
        flags=flags("upstream_remote_reset"), details="", upstream="10.0.0.1:9000", attempts=2,
        request_id="", seconds=1.5, started=True,
    )  # fmt: skip
    response.response_headers["grpc-status"] = "14"
    assert not entry_of(message).started, "nothing but trailers"
    empty = entry_of(accesslog_pb2.HTTPAccessLogEntry())
    assert (empty.pick_id, empty.upstream, empty.attempts) == (None, None, 1)
