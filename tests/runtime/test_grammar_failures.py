"""Grammars that go wrong on a running replica, and those who have nothing to do with it."""

import asyncio
import time

import grpc
import pytest
from replica_process import ReplicaProcess

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

Stopping, Sampling = inference_pb2.Stopping, inference_pb2.Sampling
LATE = "Here it comes: [xy]a{1000000}"
"""Fine for some tokens, then more than a step may cost."""
SLOW = '{"type": "integer", "multipleOf": 99991}'
"""Takes longer to compile than most."""


async def text_of(stub: inference_pb2_grpc.InferenceServiceStub, **fields: object) -> str:
    request = inference_pb2.GenerateRequest(
        text="Once", sampling=Sampling(temperature=0), stopping=Stopping(max_tokens=30), **fields
    )
    return "".join([response.text async for response in stub.Generate(request)])


async def wait_for_one(replica: ReplicaProcess) -> None:
    deadline = time.monotonic() + 10
    while not ((load := replica.load()).waiting_requests or load.running_requests):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_an_output_that_cannot_be_completed_is_the_end_of_its_own_request(
    replica: ReplicaProcess,
) -> None:
    async with replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        alone = await text_of(stub)
        neighbour = asyncio.create_task(text_of(stub))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await text_of(stub, regex=LATE)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no regular expression that can be used" in (caught.value.details() or "")
        assert await neighbour == alone


async def test_a_client_may_leave_while_its_grammar_is_compiled(replica: ReplicaProcess) -> None:
    """The replica's own fixture sees that nothing stays."""
    async with replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        leaving = asyncio.create_task(text_of(stub, json_schema=SLOW))
        await wait_for_one(replica)
        leaving.cancel()
        assert await text_of(stub, regex="(yes|no)") in ("yes", "no")
