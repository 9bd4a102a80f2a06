"""Multi-turn chats through FastGen's balancer, and Envoy's own round robin and least request.

The conversations are made from a seed: they begin at random, have one of a few system prompts, and
each turn resends all that was said before. The fake replicas know the blocks of what they have
computed, as chains of digests, and charge only for the rest; the least recently used blocks go.
"""

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final

from load_figures import LESS, MORE, Figure
from load_processes import Told, balancer, client, flags_of, replicas
from load_rival import Config, policy
from load_sections import Found, Plan

from fastgen_cli.simulate.profile import LLAMA8B_L4

REPLICAS: Final = 4
SYSTEMS: Final = 8
CONVERSATIONS_PER_SECOND: Final = 3.0
TURNS: Final = 4.0
"""Mean number, after the first."""
THINK_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Turn:
    """think: seconds from the answer to the next question."""

    user: str
    max_tokens: int
    think: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """at: seconds from the beginning, when its first question is asked."""

    at: float
    system: str
    turns: tuple[Turn, ...]


def conversations(seed: int, seconds: float) -> Iterator[Conversation]:
    """Those that begin in so many seconds; the same seed gives the same."""
    rng = Random(seed)
    systems = [words(rng, 200 + 300 * number) for number in range(SYSTEMS)]
    at = 0.0
    for _ in itertools.count():
        at += rng.expovariate(CONVERSATIONS_PER_SECOND)
        if at > seconds:
            return
        system = systems[min(int(rng.expovariate(0.5)), SYSTEMS - 1)]
        first, *later = (
            words(rng, 10 + int(rng.expovariate(1 / 80)))
            for _ in range(1 + int(rng.expovariate(1 / TURNS)))
        )
        questions = (words(rng, rng.randrange(50, 500)) + first, *later)
        yield Conversation(
            at,
            system,
            tuple(
                Turn(
                    question, 16 + int(rng.expovariate(1 / 32)), rng.expovariate(1 / THINK_SECONDS)
                )
                for question in questions
            ),
        )


def words(rng: Random, tokens: int) -> str:
    """A text of so many of the fakes' tokens."""
    return "".join(f"{rng.randrange(1000):03} " for _ in range(tokens))


WAYS: Final[dict[str, Config | None]] = {
    "FastGen": None,
    "round robin": policy("round_robin", "RoundRobin"),
    "least request": policy("least_request", "LeastRequest"),
}
"""Who balances: FastGen's picker, or a policy of Envoy's."""


def turns(plan: Plan) -> Found:
    """Prefix hits and time to first token of the same conversations, by who balances."""
    path = plan.folder / "plan.json"
    seconds = plan.seconds(40, 5)
    path.write_text(json.dumps([asdict(each) for each in conversations(plan.seed, seconds)]))
    told = {name: play(plan, path, seconds, own) for name, own in WAYS.items()}
    hits = {name: each["cached_tokens"] / each["prompt_tokens"] for name, each in told.items()}
    rivals = [name for name in WAYS if name != "FastGen"]
    best_hits = max(hits[name] for name in rivals)
    p99 = {name: each["ttft_ms"]["p99"] for name, each in told.items()}
    best_p99 = min(p99[name] for name in rivals)
    section = "turns"
    return Found(
        (
            Figure(section, "prefix hits, FastGen", 100 * hits["FastGen"], "%", None,
                   (MORE, 100 * best_hits)),
            *(Figure(section, f"prefix hits, {name}", 100 * hits[name], "%") for name in rivals),
            Figure(section, "time to first token p99, FastGen", p99["FastGen"], "ms", None,
                   (LESS, best_p99)),
            *(Figure(section, f"time to first token p99, {name}", p99[name], "ms")
              for name in rivals),
            *(Figure(section, f"time to first token p50, {name}", each["ttft_ms"]["p50"], "ms")
              for name, each in told.items()),
            Figure(section, "errors", told["FastGen"]["failed"], "requests", None, (LESS, 0)),
        ),
        {"told": told, "hits": hits},
    )  # fmt: skip


def play(plan: Plan, path: Path, seconds: float, own_policy: Config | None) -> Told:
    """The conversations against fresh replicas, whose caches are empty."""
    flags = flags_of(LLAMA8B_L4, max_concurrent=64, budget=512)
    with replicas(plan.program, REPLICAS, flags) as fakes:
        place = plan.folder / f"turns-{time.monotonic_ns()}"
        with balancer(place, fakes.addresses, own_policy) as pod:
            return client(
                plan.program, [pod.target], "http", plan=str(path), warm_up=seconds / 5, cut=1,
                seconds=seconds, seed=plan.seed,
            )  # fmt: skip
