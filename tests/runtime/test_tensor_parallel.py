"""Replicas whose model is split over two processes, side by side."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx2
import pytest
from replica_process import ReplicaProcess, running_replica
from tiny_model import write_tiny_model
from waiting import is_gone, wait_until

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.models.checkpoint import open_checkpoint

PROMPT = list(b"Once upon a time")
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def replicas(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ReplicaProcess]]:
    """Three at a time: none takes a port or a file that another wants."""
    with ExitStack() as stack:
        started = []
        for name in ("first", "second", "third"):
            directory = tmp_path_factory.mktemp(name)
            (directory / "termination-log").touch()
            flags = ("--tensor-parallel-size=2", "--max-concurrent-requests=4")
            started.append(
                stack.enter_context(running_replica(model, directory, *flags, wait=False))
            )
        yield started


def rank_of(replica: ReplicaProcess) -> int:
    """The process of rank 1, found as the engine's only child."""
    engine = replica.engine_pid()
    (pid,) = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    return int(pid)


async def wait_until_serving(replica: ReplicaProcess) -> None:
    def serves() -> bool:
        assert replica.process.poll() is None, replica.log.read_text()
        return httpx2.get(f"{replica.url}/health").status_code == 200

    await wait_until("a replica that serves", serves, seconds=120)


def tokens_of_one_rank(model: Path) -> list[int]:
    checkpoint = open_checkpoint(model)
    runner = Runner.load(checkpoint, RunnerConfig(block_size=64, num_blocks=8, threads=1))
    engine = Engine(runner, Limits(64, 1, 1, 4096))
    engine.add(NewRequest("a", PROMPT, NUM_TOKENS, Sampling(temperature=0), ignore_eos=True))
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token.token_id for token in engine.step().committed.tokens]
    return tokens


def request(max_tokens: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=PROMPT),
        sampling=inference_pb2.Sampling(temperature=0),
        stopping=inference_pb2.Stopping(max_tokens=max_tokens, ignore_eos=True),
    )


async def test_it_says_what_one_process_says_and_a_drain_leaves_no_process(
    model: Path, replicas: list[ReplicaProcess]
) -> None:
    replica = replicas[0]
    await wait_until_serving(replica)
    engine, rank = replica.engine_pid(), rank_of(replica)
    async with replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        tokens = [
            token
            async for response in stub.Generate(request(NUM_TOKENS))
            for token in response.token_ids
        ]
    assert tokens == tokens_of_one_rank(model)
    replica.process.send_signal(signal.SIGTERM)
    assert replica.process.wait(timeout=20) == 0
    assert is_gone(engine)
    assert is_gone(rank)
    processes = {event["process"] for event in replica.events()}
    assert "fastgen-runtime-rank-1" in processes


async def test_a_killed_rank_ends_the_replica_and_is_named(
    replicas: list[ReplicaProcess],
) -> None:
    replica = replicas[1]
    await wait_until_serving(replica)
    engine = replica.engine_pid()
    async with replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(request(4000))
        await call.initial_metadata()  # comes with the first token
        os.kill(rank_of(replica), signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            _ = [response async for response in call]
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert failed.value.details() == "rank 1 was killed by SIGKILL"
    assert replica.process.wait(timeout=20) == 1
    assert time.monotonic() - begun < 20
    assert is_gone(engine)
    last_words = replica.log.parent / "termination-log"
    assert last_words.read_text() == "EngineFailed: rank 1 was killed by SIGKILL"


async def test_a_killed_front_takes_all_its_processes_along(
    replicas: list[ReplicaProcess],
) -> None:
    replica = replicas[2]
    await wait_until_serving(replica)
    engine, rank = replica.engine_pid(), rank_of(replica)
    replica.process.send_signal(signal.SIGKILL)
    await wait_until("their end", lambda: is_gone(engine) and is_gone(rank), seconds=5)
