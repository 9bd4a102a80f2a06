"""The picker's own look at its replicas."""

import asyncio
import time

from balancer_process import eventually
from small_replica import Replica, serving

from fastgen_balancer.endpoints import Endpoint, parse_static
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.load import LoadPoller


async def test_a_replica_that_moved_is_asked_where_it_is_now() -> None:
    old, new = Replica("old", capacity=3), Replica("new", capacity=7)
    fleet = Fleet(time.monotonic, default_capacity=1)
    poller = LoadPoller(fleet, time.monotonic, lambda: None)

    def move(address: str) -> None:
        there = parse_static(address)
        endpoint = Endpoint("pod", there.host, there.http_port, there.grpc_port)
        fleet.set_endpoints([endpoint])
        poller.follow((endpoint,))

    def capacity() -> int:
        (candidate,) = fleet.candidates()
        return candidate.capacity

    async with serving(old) as a, serving(new) as b:
        move(a)
        await eventually(lambda: capacity() == 3)
        move(b)
        assert capacity() == 1, "what the old one said is not the new one's word"
        await eventually(lambda: capacity() == 7)
        await asyncio.sleep(0.6)
        assert capacity() == 7
        await poller.close()
