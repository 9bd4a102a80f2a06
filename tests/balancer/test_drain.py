"""How the balancer ends: no stream of its clients breaks before the limit."""

import asyncio
import signal

import httpx2
from balancer_process import complete, generate, ready
from small_replica import Replica, serving

from fastgen_api.names import BALANCER_HEALTH_PATH
from fastgen_balancer.drain import ABANDONED_SECONDS

from .conftest import Balance


async def test_drain_waits_for_the_open_streams(balance: Balance, http: httpx2.AsyncClient) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        streams = asyncio.gather(
            complete(http, balancer, "gap=0.1", 40), generate(balancer, "gap=0.1", 40)
        )
        await balancer.eventually(lambda: one.running == 2)
        url = f"http://127.0.0.1:{balancer.http_port}/drain"
        drains = asyncio.gather(http.get(url), http.get(url))
        health = f"{balancer.url}{BALANCER_HEALTH_PATH}"

        async def unhealthy() -> bool:
            return (await http.get(health)).status_code == 503

        await balancer.eventually(unhealthy)
        assert (await complete(http, balancer, "", 1)).status_code == 200, "late comers are served"
        assert not drains.done()
        http_answer, grpc_answer = await streams
        assert http_answer.text.endswith("data: [DONE]\n\n")
        assert len(grpc_answer) == 40
        assert [answer.json() for answer in await drains] == [{"drained": True}] * 2
        ready = await http.get(f"http://127.0.0.1:{balancer.http_port}/readyz")
        assert (ready.status_code, ready.text) == (503, "draining\n")

        balancer.picker.terminate()
        assert await asyncio.wait_for(balancer.picker.wait(), 10) == 0


async def test_a_drain_that_takes_too_long_ends(balance: Balance, http: httpx2.AsyncClient) -> None:
    one = Replica("one")
    async with serving(one) as a, balance(a, arguments=("--drain-seconds", "1")) as balancer:
        stream = asyncio.create_task(complete(http, balancer, "gap=0.1", 100))
        await balancer.eventually(lambda: one.running == 1)
        balancer.picker.terminate()
        assert await asyncio.wait_for(balancer.picker.wait(), 10) == 0
        assert not stream.done()
        stream.cancel()
        # The next picker finds closed listeners, and has Envoy begin anew.
        await asyncio.sleep(5)
        await balancer.start_picker()
        assert await asyncio.wait_for(balancer.envoy.wait(), 20) == 0


async def test_a_busy_envoy_is_waited_for(balance: Balance, http: httpx2.AsyncClient) -> None:
    async with serving(Replica("one")) as a, balance(a) as balancer:
        stream = asyncio.create_task(complete(http, balancer, "gap=0.1", 80))
        drain = asyncio.create_task(http.get(f"http://127.0.0.1:{balancer.http_port}/drain"))
        await asyncio.sleep(1)
        balancer.envoy.send_signal(signal.SIGSTOP)
        await asyncio.sleep(5)
        balancer.envoy.send_signal(signal.SIGCONT)
        assert not drain.done()
        assert (await stream).text.endswith("data: [DONE]\n\n")
        assert (await drain).json() == {"drained": True}


async def test_a_drain_ends_with_envoy(balance: Balance, http: httpx2.AsyncClient) -> None:
    async with serving(Replica("one")) as a, balance(a) as balancer:
        balancer.envoy.kill()
        await balancer.envoy.wait()
        answer = await http.get(f"http://127.0.0.1:{balancer.http_port}/drain")
        assert answer.elapsed.total_seconds() < 3
        assert answer.json() == {"drained": True}


async def test_a_drain_that_no_end_follows_is_undone(
    balance: Balance, http: httpx2.AsyncClient
) -> None:
    """Whoever asked for it: the streams end, Envoy starts anew, and the balancer serves."""
    one = Replica("one")
    async with serving(one) as a, balance(a) as balancer:
        stream = asyncio.create_task(complete(http, balancer, "gap=0.1", 30))
        await balancer.eventually(lambda: one.running == 1)
        url = f"http://127.0.0.1:{balancer.http_port}/drain"
        assert (await http.get(url)).json() == {"drained": True}
        assert (await stream).text.endswith("data: [DONE]\n\n")
        assert not await ready(balancer)
        assert balancer.envoy is not None
        assert await asyncio.wait_for(balancer.envoy.wait(), ABANDONED_SECONDS + 10) == 0
        await balancer.start_envoy()
        await balancer.eventually(lambda: ready(balancer), seconds=30)
        assert (await complete(http, balancer, "", 1)).status_code == 200
        # And it can drain again, for good.
        assert (await http.get(url)).json() == {"drained": True}
        assert balancer.picker is not None
        balancer.picker.terminate()
        assert await asyncio.wait_for(balancer.picker.wait(), 10) == 0
