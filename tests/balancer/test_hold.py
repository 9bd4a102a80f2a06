"""Requests that wait for the first replica, through the real Envoy."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx2
import pytest
from balancer_process import Balancer, complete, generate, prompt_of
from small_replica import Replica, serving

from fastgen_api.names import Header
from fastgen_api.v1 import inference_pb2_grpc
from fastgen_balancer import call_server
from fastgen_balancer.endpoints import parse_static
from fastgen_balancer.envoy_clusters import PICKER_STREAMS
from fastgen_balancer.member import Member
from fastgen_balancer.roster import Entry, Roster
from fastgen_balancer.settings import Settings

from .conftest import balancing_here


@contextlib.asynccontextmanager
async def at_zero(directory: Path, settings: Settings) -> AsyncIterator[tuple[Balancer, Member]]:
    """Envoy, and a picker in this process whose one deployment has no endpoint."""
    async with balancing_here(directory, Roster((Entry("d", "d", settings),))) as (
        balancer,
        picker,
    ):
        member = picker.members["d"]
        member.set_endpoints(())
        yield balancer, member


async def test_requests_wait_for_the_first_replica_and_call_for_it(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    """Longer than Envoy waits for a picker that hangs."""
    settings = Settings(hold_seconds=20, max_queued_requests=2, max_wait_seconds=1)
    async with at_zero(tmp_path, settings) as (balancer, member):
        calls: list[int] = []
        member.on_wait = lambda: calls.append(1)
        assert (await http.get(f"{balancer.url}/v1/models")).status_code == 503
        assert calls == []
        held = asyncio.gather(complete(http, balancer, "", 2), generate(balancer, "", 2))
        await balancer.eventually(lambda: member.signals().queued_requests == 2)
        assert len(calls) == 2
        refused = await complete(http, balancer, "", 2)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        await asyncio.sleep(2.5)
        assert not held.done()
        one = Replica("one")
        async with serving(one) as address:
            member.set_endpoints((parse_static(address),))
            answer, words = await asyncio.wait_for(held, 5)
            assert answer.text.endswith("data: [DONE]\n\n")
            assert words == ["w0 ", "w1 "]
            assert all(int(seen[Header.WAITED]) > 2500 for seen in one.seen)


async def test_the_wait_for_a_replica_ends(tmp_path: Path, http: httpx2.AsyncClient) -> None:
    """With the hold, or with the client's own patience, whichever is shorter."""
    async with at_zero(tmp_path, Settings(hold_seconds=3)) as (balancer, member):
        whole = asyncio.create_task(complete(http, balancer, "", 1))
        short = await complete(http, balancer, "", 1, headers={"x-request-timeout": "1"})
        assert short.status_code == 504
        assert short.json()["error"]["code"] == "deadline_exceeded"
        assert short.elapsed.total_seconds() < 2.5
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(balancer, "", 1)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        answer = await whole
        assert answer.elapsed.total_seconds() >= 3
        assert json.loads(answer.text)["error"]["code"] == "no_ready_replica"
        assert member.signals().queued_requests == 0


async def test_more_requests_wait_than_one_connection_to_the_picker_carries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that leave meanwhile cost the others nothing: no connection ends under its calls."""
    number = 2 * PICKER_STREAMS + 100
    settings = Settings(max_queued_requests=number, hold_seconds=120)
    async with (
        at_zero(tmp_path, settings) as (balancer, member),
        serving(Replica("one", capacity=number)) as address,
        grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        held: list[grpc.aio.UnaryStreamCall] = []

        async def fill() -> None:
            while len(held) < number:
                # Few at a time: the picker shares this process, and Envoy waits for it not long.
                held.extend(
                    stub.Generate(prompt_of("", 1)) for _ in range(min(100, number - len(held)))
                )
                await balancer.eventually(lambda: member.signals().queued_requests == len(held))

        await fill()
        # Not more than Envoy bears of one client.
        for each in held[::4]:
            each.cancel()
        del held[::4]
        await balancer.eventually(lambda: member.signals().queued_requests == len(held))
        await fill()
        member.set_endpoints((parse_static(address),))
        async with asyncio.timeout(60):
            answers = [[message.text async for message in each] for each in held]
        assert answers == [["w0 "]] * number
        assert [each for each in caplog.records if each.name == call_server.__name__] == []
