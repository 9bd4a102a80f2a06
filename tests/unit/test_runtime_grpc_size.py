"""Messages that the balancer lets through are judged by the replica, not by its gRPC library."""

import pytest

from fastgen_balancer.envoy_listener import MAX_BODY_BYTES
from fastgen_runtime.front.admission import max_body_bytes
from fastgen_runtime.protocols.grpc_server import MAX_PROXIED_BYTES, max_message_bytes


@pytest.mark.parametrize("max_length", [1, 1024, 8192, 1 << 20])
def test_grpc_receives_more_than_envoy_and_the_front_take(max_length: int) -> None:
    assert MAX_PROXIED_BYTES == MAX_BODY_BYTES
    limit = max_message_bytes(max_body_bytes(max_length))
    assert limit > MAX_BODY_BYTES
    assert limit > max_body_bytes(max_length)
