"""The requests of `replay.py`: what is sent when, and what their client sees."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from replay_cluster import NAME

from fastgen_api.spec import SLO, Spec
from fastgen_cli import load
from fastgen_cli.simulate.agreement import Seen
from fastgen_cli.simulate.trace import Trace
from fastgen_cli.simulate.window import Cut, Left, cut, lead_seconds, led_in
from fastgen_cli.summary import counts, is_good

LEAD: Final = (15, 2.0, 40.0)
"""Requests, seconds between them, and the pause behind them: longer than the autoscaler's short
window, so that the window finds it at rest."""
TAIL_SECONDS: Final = 90.0
"""Watched after the window, so that replicas are let go, too."""
TOKEN_IDS: Final = (1000, 20000)
"""Of prompts: any words do, special tokens do not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every replay has in common."""

    cut: Cut
    left: Left
    arrivals: Trace
    """With their lead; the window begins at `begin`."""
    begin: float
    seconds: float
    """From the first request of the lead to the end of the tail."""
    spec: Spec


def make_plan(trace: Trace, how: Cut, spec: Spec) -> Plan:
    window, left = cut(trace, how)
    begin = lead_seconds(*LEAD)
    return Plan(how, left, led_in(window, *LEAD), begin, begin + how.seconds + TAIL_SECONDS, spec)


def arrivals_of(trace: Trace, seed: int) -> list[load.Arrival]:
    """Requests of the trace's lengths. No two prompts have the same beginning."""
    rng = random.Random(seed)
    return [
        load.Arrival(
            one.at,
            tuple(rng.randrange(*TOKEN_IDS) for _ in range(one.prompt_tokens)),
            one.output_tokens,
        )
        for one in trace
    ]


def send(url: str, arrivals: Sequence[load.Arrival]) -> load.Load:
    """Sends them open-loop, each when it is due, and waits for the answers."""
    under_way = load.Load(url, NAME)
    limits = load.Plan(
        requests_per_second=0.0, duration_seconds=0.0, max_concurrent=500, timeout_seconds=90.0
    )
    asyncio.run(under_way.run(arrivals, limits, asyncio.Event()))
    return under_way


def seen_of(samples: Sequence[load.Sample], begin: float, slo: SLO) -> tuple[Seen, ...]:
    """The requests of the window, from its begin on."""
    return tuple(
        Seen(
            sample.sent_seconds,
            sample.ttft_seconds,
            sample.tpot_seconds,
            is_good(sample, slo) if counts(sample) else None,
        )
        for sample in samples
        if sample.sent_seconds >= begin
    )
