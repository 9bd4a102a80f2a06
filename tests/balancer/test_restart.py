"""A balancer that ends and starts anew under load, by clients that try nothing twice."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx2
from balancer_process import Balancer, balancing, complete, generate, idle, ready
from small_replica import Replica, serving

from fastgen_api.names import Metric

WORKERS = 12
TOKENS = 12
PROMPT = "gap=0.03"


@dataclass
class Load:
    """What came of the requests."""

    ended: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    async def more(self, number: int, seconds: float = 30) -> None:
        """Returns when so many more have ended well."""
        wanted = self.ended.total() + number
        async with asyncio.timeout(seconds):
            while self.ended.total() < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def load_on(choose: Callable[[int], Balancer]) -> AsyncIterator[Load]:
    """Workers, half of them by gRPC, each with one streamed request after the other.

    Each on a connection of its own: a Service chooses a pod for each connection.
    """
    load, stopping = Load(), asyncio.Event()

    async def work(number: int) -> None:
        sent = 0
        while not stopping.is_set():
            sent += 1
            prompt = f"{PROMPT} {number} {sent}"
            balancer = choose(number + sent)
            try:
                if number % 2:
                    assert len(await generate(balancer, prompt, TOKENS)) == TOKENS
                else:
                    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
                        answer = await complete(http, balancer, prompt, TOKENS)
                    assert answer.text.endswith("data: [DONE]\n\n"), answer.text
            except (AssertionError, httpx2.HTTPError, grpc.aio.AioRpcError) as error:
                load.errors.append(f"{type(error).__name__}: {error}"[:300])
            else:
                load.ended["grpc" if number % 2 else "http"] += 1

    workers = [asyncio.create_task(work(number)) for number in range(WORKERS)]
    try:
        yield load
    finally:
        stopping.set()
        await asyncio.gather(*workers)


@asynccontextmanager
async def replicas(number: int) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as stack:
        fleet = [Replica(f"r{i}") for i in range(number)]
        yield [await stack.enter_async_context(serving(each)) for each in fleet]


async def test_a_picker_that_is_killed_under_load_costs_no_request(tmp_path: Path) -> None:
    async with (
        replicas(3) as addresses,
        balancing(tmp_path, *addresses) as balancer,
        load_on(lambda _: balancer) as load,
    ):
        for _ in range(3):
            await load.more(40)
            assert balancer.picker is not None
            balancer.picker.send_signal(signal.SIGKILL)
            await balancer.picker.wait()
            await load.more(40)
            await balancer.start_picker()
            await balancer.eventually(lambda: ready(balancer), seconds=60)
        await load.more(40)
    assert load.errors == []
    assert min(load.ended["http"], load.ended["grpc"]) > 20


async def test_balancers_that_are_rolled_under_load_cost_no_request(tmp_path: Path) -> None:
    """One after the other, as a Deployment does; a client may still come when the drain begins."""
    async with AsyncExitStack() as stack:
        addresses = await stack.enter_async_context(replicas(3))
        pods = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            pods.append(await stack.enter_async_context(balancing(tmp_path / name, *addresses)))
        in_service = list(pods)
        async with load_on(lambda number: in_service[number % len(in_service)]) as load:
            for pod in pods:
                await load.more(40)
                await roll(pod, in_service)
            await load.more(40)
        for pod in pods:
            await pod.eventually(lambda each=pod: idle(each))
            assert await pod.metric(Metric.REQUESTS) == 0, "nothing but what replicas counted"
    assert load.errors == []
    assert min(load.ended["http"], load.ended["grpc"]) > 20


async def roll(pod: Balancer, in_service: list[Balancer]) -> None:
    """Ends a pod as the kubelet does, and starts it again.

    The Service forgets it in the middle of its drain.
    """
    assert pod.envoy is not None
    assert pod.picker is not None
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        hooks = [
            asyncio.create_task(http.get(f"http://127.0.0.1:{pod.http_port}/drain"))
            for _ in ("envoy", "picker")
        ]
        await asyncio.sleep(0.1)
        in_service.remove(pod)
        for hook in hooks:
            assert (await hook).json() == {"drained": True}
    for process in (pod.envoy, pod.picker):
        process.terminate()
    for process in (pod.envoy, pod.picker):
        assert await asyncio.wait_for(process.wait(), 20) == 0
    await pod.start_picker()
    await pod.start_envoy()
    await pod.eventually(lambda: ready(pod), seconds=60)
    in_service.append(pod)
