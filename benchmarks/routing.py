"""Prefix hits and time to first token of multi-turn chats, by the way they are routed.

A simulation, seeded, of nothing but routing. Conversations begin at random; each has one of a few
system prompts, a first question, and turns that resend all that was said. A replica computes one
prompt after the other, without what its prefix cache holds (least recently used conversations go
first), and streams answers at a steady pace. Several balancer pods route, each with books of its
own: ours are the picker's real ones, fed by each replica's word four times a second; Envoy's round
robin and least request (two choices) know what their own pod has sent.

Not simulated: that decoding slows prompts down, chunks, preemption, network, full replicas. The
figures compare ways to route on the same arrivals; they are no forecast of a real system.
"""

import argparse
import heapq
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any

from fastgen_balancer.account import Report, Sent
from fastgen_balancer.endpoints import Endpoint
from fastgen_balancer.fleet import Fleet
from fastgen_balancer.pick import Pick, Request, pick
from fastgen_balancer.prompt import keys_of_chat

POLL_SECONDS = 0.25
EXPECTED_OUTPUT = 128
BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Turn:
    conversation: int
    system: int
    system_tokens: int
    prompt_tokens: int
    output_tokens: int
    opening: int
    """The picker's own key, of the words of the conversation."""
    think_seconds: float
    """After the answer, until the next turn."""


@dataclass(slots=True)
class Replica:
    """Invariant: `cached` holds at most `capacity` tokens, the least recently used first."""

    name: str
    tokens_per_second: float
    capacity: int
    free_at: float = 0.0
    owed: list[tuple[float, int]] = field(default_factory=list)
    """When each prompt that waits or runs is done, and its tokens."""
    streams: int = 0
    cached: OrderedDict[tuple[str, int], int] = field(default_factory=OrderedDict)

    def start(self, turn: Turn, now: float) -> tuple[float, int]:
        """When the first token is there, and how many prompt tokens the cache held."""
        keys = ("system", turn.system), ("chat", turn.conversation)
        held = max(self.cached.get(key, 0) for key in keys)
        hit = min(held, turn.prompt_tokens - 1)
        self._keep(keys[0], turn.system_tokens)
        self._keep(keys[1], turn.prompt_tokens + turn.output_tokens)
        missing = turn.prompt_tokens - hit
        self.free_at = max(self.free_at, now) + missing / self.tokens_per_second
        self.owed.append((self.free_at, missing))
        return self.free_at, hit

    def report(self, now: float) -> Report:
        self.owed = [each for each in self.owed if each[0] > now]
        owed = sum(tokens for _, tokens in self.owed)
        return Report(now, self.streams, 0, owed, 10_000)

    def _keep(self, key: tuple[str, int], tokens: int) -> None:
        self.cached.pop(key, None)
        self.cached[key] = tokens
        while sum(self.cached.values()) > self.capacity:
            self.cached.popitem(last=False)


class Router:
    """One balancer pod; `choose` gives the replica's index."""

    def __init__(self, replicas: int, clock: Callable[[], float], seed: int) -> None:
        self.fleet = Fleet(clock, 10_000)
        endpoints = [Endpoint(f"chat-{i}", "10.0.0.1", 8000 + i, 9000) for i in range(replicas)]
        self.fleet.set_endpoints(endpoints)
        self.names = [endpoint.name for endpoint in endpoints]
        self.open = [0] * replicas
        self.rng = Random(seed)
        self.turn = itertools.count(self.rng.randrange(replicas))

    def round_robin(self, _: Turn) -> int:
        return next(self.turn) % len(self.open)

    def least_request(self, _: Turn) -> int:
        one, other = self.rng.sample(range(len(self.open)), 2)
        return one if self.open[one] <= self.open[other] else other

    def least_tokens(self, turn: Turn) -> int:
        return self._pick(turn, None)

    def prefix(self, turn: Turn) -> int:
        return self._pick(turn, turn.opening)

    def _pick(self, turn: Turn, affinity: int | None) -> int:
        request = Request(True, turn.prompt_tokens + EXPECTED_OUTPUT, affinity)
        answer = pick(self.fleet.candidates(), request, self.rng)
        assert isinstance(answer, Pick)
        return self.names.index(answer.order[0])


POLICIES: dict[str, Callable[[Router, Turn], int]] = {
    "round robin": Router.round_robin,
    "least request": Router.least_request,
    "LeastTokens": Router.least_tokens,
    "Prefix": Router.prefix,
}


@dataclass(frozen=True, slots=True)
class Result:
    policy: str
    requests: int
    hit_rate: float
    """Share of all prompt tokens that the caches held."""
    ttft_p50: float
    ttft_p99: float
    busiest: float
    """Prompt tokens computed by the busiest replica, as a multiple of the average."""


def conversations(args: argparse.Namespace) -> Iterator[tuple[float, list[Turn]]]:
    """When each conversation begins, and its turns."""
    rng = Random(args.seed)
    now = 0.0
    for number in itertools.count():
        now += rng.expovariate(args.conversations_per_second)
        if now > args.seconds:
            return
        system = min(int(rng.expovariate(0.5)), args.systems - 1)
        system_tokens = 200 + 300 * system
        question = f"{number} " + "w" * rng.randrange(40, 1200)
        messages = [
            {"role": "system", "content": f"{system} " * system_tokens},
            {"role": "user", "content": question},
        ]
        opening = keys_of_chat(messages, None).opening
        assert opening is not None
        turns, tokens = [], system_tokens + len(question) // BYTES_PER_TOKEN
        for _ in range(1 + int(rng.expovariate(1 / args.turns))):
            output = 20 + int(rng.expovariate(1 / 180))
            think = rng.expovariate(1 / args.think_seconds)
            turns.append(Turn(number, system, system_tokens, tokens, output, opening, think))
            tokens += output + 10 + int(rng.expovariate(1 / 80))
        yield now, turns


def simulate(name: str, args: argparse.Namespace) -> Result:
    """Runs one policy over all conversations."""
    now = 0.0
    replicas = [
        Replica(f"chat-{i}", args.prefill_tokens_per_second, args.cache_tokens)
        for i in range(args.replicas)
    ]
    routers = [Router(args.replicas, lambda: now, args.seed + i) for i in range(args.pods)]
    rng = Random(args.seed)
    order = itertools.count()
    events: list[tuple[float, int, str, tuple[Any, ...]]] = []

    def at(when: float, what: str, *about: Any) -> None:
        heapq.heappush(events, (when, next(order), what, about))

    for begins, turns in conversations(args):
        at(begins, "ask", turns, 0)
    at(0.0, "poll")
    ttfts: list[float] = []
    asked = hits = 0
    computed = [0] * args.replicas
    while events:
        now, number, what, about = heapq.heappop(events)
        if what == "poll":
            for replica, router in itertools.product(replicas, routers):
                router.fleet.hear(replica.name, replica.report(now))
            if events:
                at(now + POLL_SECONDS, "poll")
        elif what == "ask":
            turns, index = about
            turn = turns[index]
            router = rng.choice(routers)
            where = POLICIES[name](router, turn)
            first_at, hit = replicas[where].start(turn, now)
            asked, hits = asked + turn.prompt_tokens, hits + hit
            computed[where] += turn.prompt_tokens - hit
            ttfts.append(first_at - now)
            tokens = turn.prompt_tokens + EXPECTED_OUTPUT
            router.fleet.send(f"chat-{where}", Sent(str(number), tokens, now))
            router.open[where] += 1
            replicas[where].streams += 1
            ends_at = first_at + turn.output_tokens * args.token_seconds
            at(ends_at, "end", router, where, str(number))
            if index + 1 < len(turns):
                at(ends_at + turn.think_seconds, "ask", turns, index + 1)
        else:
            router, where, request_id = about
            router.fleet.end(request_id)
            router.open[where] -= 1
            replicas[where].streams -= 1
    cuts = quantiles(ttfts, n=100, method="inclusive")
    average = sum(computed) / len(computed)
    return Result(name, len(ttfts), hits / asked, cuts[49], cuts[98], max(computed) / average)


def main() -> None:
    """Prints a table of all ways to route over the same conversations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--pods", type=int, default=2, help="balancer pods")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--conversations-per-second", type=float, default=3.0)
    parser.add_argument("--turns", type=float, default=5.0, help="mean, after the first")
    parser.add_argument("--think-seconds", type=float, default=10.0)
    parser.add_argument("--systems", type=int, default=8, help="system prompts")
    parser.add_argument("--prefill-tokens-per-second", type=float, default=8000)
    parser.add_argument("--token-seconds", type=float, default=0.03)
    parser.add_argument("--cache-tokens", type=int, default=400_000, help="of each replica")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for the figures as JSON")
    args = parser.parse_args()
    results = [simulate(name, args) for name in POLICIES]
    print(", ".join(f"{key} {value}" for key, value in vars(args).items() if key != "out"), "\n")
    print(
        f"{'policy':15}{'requests':>9}{'prefix hits':>13}"
        f"{'TTFT p50 ms':>13}{'p99 ms':>9}{'busiest':>9}"
    )
    for each in results:
        print(
            f"{each.policy:15}{each.requests:9}{each.hit_rate:13.1%}"
            f"{1000 * each.ttft_p50:13.1f}{1000 * each.ttft_p99:9.1f}{each.busiest:9.2f}"
        )
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        figures = {"parameters": {k: v for k, v in vars(args).items() if k != "out"},
                   "results": [asdict(each) for each in results]}  # fmt: skip
        (args.out / "routing.json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
