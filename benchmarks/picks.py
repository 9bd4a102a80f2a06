"""How many picks one core makes: the decision alone, and with the reading of the request.

Each pick looks at all endpoints, as the picker does for every request: offered, placed, ended. CPU
time counts, so that other work on the machine does not.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from random import Random

from fastgen_balancer import estimate
from fastgen_balancer.account import Report
from fastgen_balancer.dispatch import Dispatcher, Placed
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.pick import Request

BAR = 1000
PROMPT_BYTES = 4096


def dispatcher_of(endpoints: int, seed: int) -> tuple[Dispatcher, Fleet]:
    """A picker's books with so many endpoints, each half full and heard of just now."""
    rng, fleet = Random(seed), Fleet(lambda: 0.0, 256)
    fleet.set_endpoints(
        Endpoint(f"chat-replica-7d9c5b4f6-{i:05d}", f"10.0.{i // 250}.{i % 250}", 8000, 9000)
        for i in range(endpoints)
    )
    for endpoint in fleet.endpoints:
        running = rng.randrange(64, 192)
        report = Report(-0.1, running, 0, owed_tokens=rng.randrange(20_000),
                        max_concurrent_requests=256)  # fmt: skip
        fleet.hear(endpoint.name, report)
    return Dispatcher(fleet, Random(seed), lambda: 0.0, 1000), fleet


def per_second(make: Callable[[int], Request], endpoints: int, picks: int, seed: int) -> float:
    """Picks per second of CPU time."""
    dispatcher, fleet = dispatcher_of(endpoints, seed)

    async def run() -> float:
        began = time.process_time()
        for number in range(picks):
            name = str(number)
            placed = dispatcher.offer(name, make(number))
            assert isinstance(placed, Placed), placed
            fleet.end(name)
        return picks / (time.process_time() - began)

    return asyncio.run(run())


def bodies(seed: int) -> list[bytes]:
    """Chats of some 4 KiB, each another conversation."""
    rng = Random(seed)
    found = []
    for _ in range(100):
        text = "".join(chr(rng.randrange(97, 123)) for _ in range(PROMPT_BYTES // 4))
        messages = [
            {"role": role, "content": text} for role in ("system", "user", "assistant", "user")
        ]
        found.append(json.dumps({"model": "m", "messages": messages, "max_tokens": 99}).encode())
    return found


def decisions(endpoints: int, picks: int, seed: int, *, reads: bool = False) -> dict[str, float]:
    """Picks per second by way of routing; reads: each reads a chat's body first."""
    affinities = [Random(seed + i).getrandbits(64) for i in range(100)]
    chats = bodies(seed) if reads else []

    def decide(prefers_prefix: bool) -> Callable[[int], Request]:
        return lambda i: Request(True, 500, affinities[i % 100] if prefers_prefix else None)

    def read(prefers_prefix: bool) -> Callable[[int], Request]:
        def make(i: int) -> Request:
            reading = estimate.read(chats[i % 100], is_grpc=False)
            opening = reading.keys.opening if prefers_prefix else None
            return Request(True, estimate.tokens_of(reading.size, 0.25), opening)

        return make

    make = read if reads else decide
    ways = (("Prefix", True), ("LeastTokens", False))
    return {name: per_second(make(prefers), endpoints, picks, seed) for name, prefers in ways}


def main() -> None:
    """Prints picks per second for both ways to route."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--picks", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    alone = decisions(args.endpoints, args.picks, args.seed)
    whole = decisions(args.endpoints, args.picks, args.seed, reads=True)
    print(f"{args.endpoints} endpoints, {args.picks} picks, seed {args.seed}; bar: {BAR}/s\n")
    print(f"{'routing':14}{'pick alone /s':>16}{'with 4 KiB chat read /s':>26}")
    for name in alone:
        print(f"{name:14}{alone[name]:16,.0f}{whole[name]:26,.0f}")


if __name__ == "__main__":
    main()
