"""The burst: overload one replica, watch the autoscaler add a second, and see what it does."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import httpx2
from lightkube import ApiError

from fastgen_cli.load import Load, Plan, make_arrivals
from fastgen_cli.summary import ended_between, summarize
from fastgen_devcluster.demo import verdict
from fastgen_devcluster.demo.deployment import Decision, Reader, State
from fastgen_devcluster.demo.narration import DemoError
from fastgen_devcluster.demo.picture import Moment, timeline
from fastgen_devcluster.demo.verdict import Bounds, Comparison

SHAPE = Plan(requests_per_second=1000, duration_seconds=600, prompt_words=(10, 40), max_tokens=16)
CALIBRATION_STREAMS = 3
LOOK_SECONDS = 1.0
ADAPT_SECONDS = 10.0

Show = Callable[[Moment], None]


@dataclass(slots=True)
class Burst:
    """A burst under way; `rate` and `ready_at` change while it runs."""

    url: str
    """Base URL with `/v1`."""
    model: str
    reader: Reader
    bounds: Bounds
    show: Show
    state: State
    load: Load = field(init=False)
    rate: float = 0.0
    phase: str = "one replica"
    wanted_at: float | None = None
    ready_at: float | None = None
    scaled_by: Decision | None = None
    """The decision that asked for the second replica."""
    history: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.load = Load(self.url, self.model)

    async def look(self) -> None:
        """Read the deployment, note what changed, and show the moment."""
        # A look that failed shows the last state again: the next one is a second away.
        with suppress(ApiError, httpx2.HTTPError):
            self.state = await asyncio.to_thread(self.reader.read)
        now = self.load.now()
        self.history.append((now, self.state.ready_replicas))
        if self.wanted_at is None and self.state.wanted > 1:
            self.wanted_at = now
            self.phase = "second replica starts"
        decision = self.state.decision
        if self.scaled_by is None and decision and decision.replicas > 1:
            self.scaled_by = decision
        if self.ready_at is None and self.state.ready_replicas > 1:
            self.ready_at = now
            self.phase = "two replicas"
        window = ended_between(self.load.samples, now - 10, now)
        self.show(
            Moment(
                at_seconds=now,
                phase=self.phase,
                rate=self.rate,
                in_flight=self.load.in_flight,
                window=summarize(window, min(10.0, max(now, 1.0)), self.state.spec.slo),
                state=self.state,
                timeline=timeline(self.history, 5.0),
            )
        )

    def adapt(self) -> None:
        """Raise the load when one replica carries it after all."""
        now = self.load.now()
        slo = self.state.spec.slo
        window = summarize(
            ended_between(self.load.samples, now - ADAPT_SECONDS, now), ADAPT_SECONDS, slo
        )
        self.rate = verdict.next_rate(self.rate, window, slo)

    def is_over(self) -> bool:
        """Whether the second replica's effect is plain, or a bound is reached."""
        now = self.load.now()
        if self.ready_at is None:
            return now > self.bounds.scale_up
        if verdict.may_end(self.load.samples, self.ready_at, now, self.state.spec.slo):
            return True
        return now > self.ready_at + self.bounds.settle


async def calibrate(url: str, model: str, streams: int, seconds: float) -> float:
    """Requests/s that one replica carries with so many streams; raises DemoError when none."""
    plan = replace(SHAPE, max_concurrent=streams, duration_seconds=seconds)
    load = Load(url, model)
    prompts = make_arrivals(replace(SHAPE, seed=1))
    await load.run_closed(prompts, plan, asyncio.Event())
    found = verdict.carried(load.samples, streams)
    if not found:
        seen = load.samples[-1].error if load.samples else "no answer at all"
        raise DemoError(f"The replica answered no request of the calibration: {seen}")
    return found


async def run_burst(burst: Burst, carried_per_second: float) -> Comparison:
    """Load until the second replica has shown its effect; raises DemoError when none comes."""
    burst.rate = verdict.first_rate(carried_per_second)
    plan = replace(SHAPE, max_concurrent=verdict.max_in_flight(carried_per_second))
    stop = asyncio.Event()
    arrivals = make_arrivals(plan, lambda _: burst.rate)
    running = asyncio.create_task(burst.load.run(arrivals, plan, stop))
    adapted_at = 0.0
    try:
        while not running.done() and not burst.is_over():
            await burst.look()
            if burst.wanted_at is None and burst.load.now() > adapted_at + ADAPT_SECONDS:
                burst.adapt()
                adapted_at = burst.load.now()
            await asyncio.sleep(LOOK_SECONDS)
        ended_at = burst.load.now()
        burst.rate = 0.0
        stop.set()
        await running
    finally:
        running.cancel()
    if burst.ready_at is None:
        asked = "asked for no second replica" if burst.wanted_at is None else "asked for a second"
        raise DemoError(
            f"The autoscaler {asked}, and none was ready in {burst.bounds.scale_up:.0f} s of load."
        )
    return verdict.compare(burst.load.samples, burst.ready_at, ended_at, burst.state.spec.slo)


async def wait_for_one(burst: Burst) -> None:
    """Show the way back to one replica; raises DemoError when it does not come."""
    burst.phase = "no load"
    since = burst.load.now()
    while not burst.state.is_settled(1):
        if burst.load.now() > since + burst.bounds.scale_down:
            raise DemoError(
                f"{burst.bounds.scale_down:.0f} s after the load more than one replica is left."
            )
        await asyncio.sleep(LOOK_SECONDS)
        await burst.look()
