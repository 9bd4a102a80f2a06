"""A gateway that is broken or worse, at the real port: memory and streams within bounds."""

import asyncio

import grpc
import httpx2
from balancer_process import complete
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from gateway import complete as by_gateway
from gateway import running
from gateway_config import Gateway
from small_replica import Replica, serving

from fastgen_balancer.endpoint_picker import MAX_BODY_BYTES_HELD
from fastgen_balancer.endpoint_picker_server import MAX_MESSAGE_BYTES, MAX_STREAMS
from fastgen_balancer.envoy_listener import MAX_BODY_BYTES

from .conftest import Balance, picking
from .test_held_bytes import resident_bytes

PART_BYTES = MAX_BODY_BYTES // 8


def asks() -> messages.ProcessingRequest:
    request = messages.ProcessingRequest()
    request.protocol_config.request_body_mode = ProcessingMode.FULL_DUPLEX_STREAMED
    for key, value in ((":method", "POST"), (":path", "/v1/completions")):
        request.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    return request


def part(size: int) -> messages.ProcessingRequest:
    request = messages.ProcessingRequest()
    request.request_body.body = b"x" * size
    return request


async def test_bodies_that_never_end_cost_memory_within_a_bound(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    """Those of others come through by our own Envoy, and by a gateway when the liar is gone."""
    async with serving(Replica("one")) as a, picking(balance, a) as (balancer, port):
        assert balancer.picker is not None
        before = resident_bytes(balancer.picker.pid)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = service.ExternalProcessorStub(channel)
            calls = []
            for _ in range(MAX_BODY_BYTES_HELD // MAX_BODY_BYTES):
                call = stub.Process()
                await call.write(asks())
                for _ in range(8):
                    await call.write(part(PART_BYTES))
                calls.append(call)

            async def is_refused() -> bool:
                one_more = stub.Process()
                # It stays: should it overtake another's last part, then that one is refused.
                calls.append(one_more)
                await one_more.write(asks())
                await one_more.write(part(PART_BYTES))
                try:
                    answer = await asyncio.wait_for(asyncio.shield(one_more.read()), 2)
                except TimeoutError:
                    return False
                return bool(answer.immediate_response.status.code == 429)

            await balancer.eventually(is_refused, seconds=60)
            assert resident_bytes(balancer.picker.pid) - before < 2 * MAX_BODY_BYTES_HELD
            assert (await complete(http, balancer, "mine", 1)).status_code == 200
        gateway = Gateway(port)
        async with running(gateway, balancer.directory):

            async def is_served() -> bool:
                return (await by_gateway(http, gateway)).status_code == 200

            await balancer.eventually(is_served)


async def test_one_connection_has_so_many_streams_and_a_message_so_many_bytes(
    balance: Balance,
) -> None:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    async with serving(Replica("one")) as a, picking(balance, a) as (_, port):
        address = f"127.0.0.1:{port}"
        async with (
            grpc.aio.insecure_channel(address, options=options) as channel,
            grpc.aio.insecure_channel(address, options=options) as other,
        ):
            stub = service.ExternalProcessorStub(channel)
            call = stub.Process()
            await call.write(asks())
            await call.write(part(MAX_MESSAGE_BYTES + 1))
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

            idle = [stub.Process() for _ in range(MAX_STREAMS)]
            for each in idle:
                await each.write(asks())

            async def is_answered(by: grpc.aio.Channel) -> bool:
                request = asks()
                request.request_headers.end_of_stream = True
                call = service.ExternalProcessorStub(by).Process()
                try:
                    await asyncio.wait_for(call.write(request), 2)
                    answer = await asyncio.wait_for(call.read(), 2)
                except TimeoutError:
                    return False
                finally:
                    call.cancel()
                return bool(answer.HasField("request_headers"))

            assert not await is_answered(channel), "it waits at the gateway"
            assert await is_answered(other)
            for each in idle:
                each.cancel()
