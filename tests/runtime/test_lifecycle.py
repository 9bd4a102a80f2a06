"""How a replica starts, drains and dies."""

import asyncio
import os
import signal
import time
from pathlib import Path

import grpc
import httpx2
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replica_process import MODEL, running_replica
from waiting import is_gone, wait_until

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

SMALL = ("--max-model-length=512", "--kv-block-size=16", "--max-concurrent-requests=8")


async def read_all(stream: openai.AsyncStream[openai.types.Completion]) -> int:
    """Chunks of a completion's stream, read to its end."""
    return len([chunk async for chunk in stream])


async def start_stream(
    client: openai.AsyncOpenAI, max_tokens: int
) -> openai.AsyncStream[openai.types.Completion]:
    """A stream whose first token has come."""
    return await client.completions.create(
        model=MODEL,
        prompt="Once upon a time",
        max_tokens=max_tokens,
        stream=True,
        extra_body={"ignore_eos": True},
    )


async def test_a_drain_lets_streams_end_and_takes_no_new_ones(
    smollm2_path: Path, tmp_path: Path
) -> None:
    with running_replica(smollm2_path, tmp_path, *SMALL) as replica:
        engine = replica.engine_pid()
        async with replica.openai() as client, replica.channel() as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            request = inference_pb2.GenerateRequest(text="Once")
            request.stopping.max_tokens = 60
            request.stopping.ignore_eos = True
            call = stub.Generate(request)
            await call.initial_metadata()
            streams = [await start_stream(client, 60) for _ in range(3)]
            replica.process.send_signal(signal.SIGTERM)
            await wait_until("draining", lambda: replica.load().draining)
            health = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="")
            )
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
            told = await asyncio.to_thread(httpx2.get, f"{replica.url}/health")
            assert (told.status_code, told.json()["reason"]) == (503, "the replica is draining")
            with pytest.raises(openai.InternalServerError) as refused:
                await start_stream(client, 1)
            assert refused.value.status_code == 503
            assert refused.value.response.headers["retry-after"] == "1"
            with pytest.raises(grpc.aio.AioRpcError) as unavailable:
                await stub.Generate(request).read()
            assert unavailable.value.code() is grpc.StatusCode.UNAVAILABLE
            chunks = await asyncio.gather(*map(read_all, streams))
            responses = [response async for response in call]
        assert all(count > 30 for count in chunks)
        assert responses[-1].usage.output_tokens == 60
        assert replica.process.wait(timeout=20) == 0
        assert is_gone(engine)
        messages = [event["message"] for event in replica.events()]
        assert [name for name in messages if name != "request"][-2:] == ["draining", "drained"]


async def test_a_drain_is_bounded_and_cut_streams_are_seen_to_be_cut(
    smollm2_path: Path, tmp_path: Path
) -> None:
    with running_replica(smollm2_path, tmp_path, *SMALL, "--drain-seconds=0.5") as replica:
        async with replica.openai() as client, replica.channel() as channel:
            request = inference_pb2.GenerateRequest(text="Once")
            request.stopping.ignore_eos = True
            call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
            await call.initial_metadata()
            stream = await start_stream(client, 500)
            replica.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="shut down"):
                await read_all(stream)
            with pytest.raises(grpc.aio.AioRpcError) as cut:
                _ = [response async for response in call]
        assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
        assert replica.process.wait(timeout=20) == 0


async def test_a_dead_engine_ends_the_replica_and_its_requests_at_once(
    smollm2_path: Path, tmp_path: Path
) -> None:
    last_words = tmp_path / "termination-log"
    last_words.touch()
    with running_replica(smollm2_path, tmp_path, *SMALL) as replica:
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}
        http = httpx2.AsyncClient(base_url=replica.url, timeout=30)
        async with replica.openai() as client, replica.channel() as channel, http:
            streams = [await start_stream(client, 400) for _ in range(7)]
            async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as raw:
                queued = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
                    inference_pb2.GenerateRequest(text="Once")
                )
                waiting = asyncio.create_task(http.post("/v1/completions", json=body))
                await wait_until("a queue", lambda: replica.load().waiting_requests == 2)
                begun = time.monotonic()
                os.kill(replica.engine_pid(), signal.SIGKILL)
                text = await read_cut_body(raw)
            for stream in streams:
                with pytest.raises(openai.APIError, match="SIGKILL"):
                    await read_all(stream)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await queued.read()
            refused = await waiting
            assert time.monotonic() - begun < 5
        assert b"[DONE]" not in text
        assert b"SIGKILL" in text
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "SIGKILL" in (failed.value.details() or "")
        assert refused.status_code == 503
        assert replica.process.wait(timeout=20) == 1
    assert last_words.read_text() == "EngineFailed: the engine process was killed by SIGKILL"


async def read_cut_body(response: httpx2.Response) -> bytes:
    """What came of a body before it was cut; fails when it ended as a whole one does.

    A proxy that knows nothing of events must see that the answer is not whole.
    """
    text = b""
    try:
        async for piece in response.aiter_raw():
            text += piece
    except httpx2.RemoteProtocolError:
        return text
    pytest.fail("the body had an end")


async def test_a_killed_front_takes_its_engine_along_and_leaves_no_file(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with running_replica(smollm2_path, tmp_path, *SMALL) as replica:
        engine = replica.engine_pid()
        replica.process.send_signal(signal.SIGKILL)
        await wait_until("the engine's end", lambda: is_gone(engine), seconds=5)
    assert list(temporary.iterdir()) == []


async def test_a_second_signal_ends_at_once(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also: it does not need a folder that can be written."""
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.chdir("/proc")
    with running_replica(smollm2_path, tmp_path, *SMALL) as replica:
        engine = replica.engine_pid()
        async with replica.openai() as client:
            stream = await start_stream(client, 500)
            replica.process.send_signal(signal.SIGTERM)
            await wait_until("draining", lambda: replica.load().draining)
            replica.process.send_signal(signal.SIGTERM)
            assert replica.process.wait(timeout=5) == 128 + signal.SIGTERM
            with pytest.raises((openai.APIError, httpx2.HTTPError)):
                await read_all(stream)
        await wait_until("the engine's end", lambda: is_gone(engine), seconds=5)


def test_a_replica_that_is_loading_says_so_and_can_be_stopped(
    smollm2_path: Path, tmp_path: Path
) -> None:
    with running_replica(smollm2_path, tmp_path, *SMALL, wait=False) as replica:
        told = httpx2.get(f"{replica.url}/health", timeout=30)
        assert (told.status_code, told.json()["reason"]) == (503, "the model is loading")
        refused = httpx2.post(f"{replica.url}/v1/completions", json={"prompt": "x"}, timeout=30)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == "the model is loading"
        replica.process.send_signal(signal.SIGTERM)
        assert replica.process.wait(timeout=20) == 0


async def test_a_new_slo_takes_effect_and_a_broken_one_does_not(
    smollm2_path: Path, tmp_path: Path
) -> None:
    slo = tmp_path / "slo.json"
    slo.write_text('{"timeToFirstToken": {"milliseconds": 60000}}')
    with running_replica(smollm2_path, tmp_path, *SMALL, f"--slo-file={slo}") as replica:
        async with replica.openai() as client:
            await read_all(await start_stream(client, 2))
            assert replica.metric("fastgen_requests_total", outcome="good") == 1
            slo.write_text('{"timeToFirstToken": {"milliseconds": "soon"}}')
            await wait_until("a complaint", lambda: "cannot be read" in replica.log.read_text())
            await read_all(await start_stream(client, 2))
            assert replica.metric("fastgen_requests_total", outcome="good") == 2
            slo.write_text('{"timeToFirstToken": {"milliseconds": 1}}')
            await wait_until("the new SLO", lambda: "the SLO changed" in replica.log.read_text())
            await read_all(await start_stream(client, 2))
        assert replica.metric("fastgen_requests_total", outcome="late_first_token") == 1
        assert replica.metric("fastgen_slo_target_misses_total", target="ttft") == 1
        assert replica.metric("fastgen_time_to_first_token_seconds_bucket", le="0.001") == 0
