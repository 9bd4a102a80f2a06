"""Open-loop load on an OpenAI endpoint: requests leave when they are due, answered or not."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from fastgen_api.names import Header

_WORDS: Final = (
    *("river", "stone", "market", "lamp", "harbour", "garden", "letter", "window", "winter"),
    *("engine", "bridge", "teacher", "forest", "copper", "village", "silver", "doctor", "sailor"),
)

UNSENT: Final = 0
"""Status of a request that never got an answer: not sent for the cap, refused or broken."""

NOT_SENT: Final = "not sent: too many in flight"
"""Error of an arrival that met the cap."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send; the same seed gives the same requests at the same offsets."""

    requests_per_second: float
    duration_seconds: float
    prompt_words: tuple[int, int] = (30, 120)
    """Shortest and longest prompt; uniform between."""
    max_tokens: int = 48
    max_concurrent: int = 128
    """Requests in flight beyond which an arrival is counted and not sent."""
    timeout_seconds: float = 120.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a plan, `at_seconds` after the start.

    A text is asked as a chat. Token ids are asked as a completion, whose answer has all of
    `max_tokens`: so a trace's lengths are met to the token.
    """

    at_seconds: float
    prompt: str | tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What a client saw of one request; times are seconds, offsets are since the load's start."""

    sent_seconds: float
    ended_seconds: float
    status: int
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    gap_seconds: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    replica: str = ""
    error: str = ""
    """Empty for a whole answer."""


def make_prompt(words: int, rng: random.Random) -> str:
    """A prompt of about so many words that shares no beginning with others."""
    names = " ".join(rng.choice(_WORDS) for _ in range(words))
    return f"Write a long story about these words: {names}."


def make_arrivals(plan: Plan, rate_at: Callable[[float], float] | None = None) -> Iterator[Arrival]:
    """Poisson arrivals over the plan's duration, one by one.

    `rate_at` gives the requests/s from an offset on, instead of the plan's, so that a rate may
    change while the load runs.
    """
    rng = random.Random(plan.seed)
    at_seconds = 0.0
    while True:
        rate = rate_at(at_seconds) if rate_at else plan.requests_per_second
        if rate <= 0:
            return
        at_seconds += rng.expovariate(rate)
        if at_seconds >= plan.duration_seconds:
            return
        prompt = make_prompt(rng.randint(*plan.prompt_words), rng)
        yield Arrival(at_seconds, prompt, plan.max_tokens)


def make_request(arrival: Arrival, model: str) -> tuple[str, dict[str, Any]]:
    """The path and the body of an arrival's request."""
    body = {
        "model": model,
        "max_tokens": arrival.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if isinstance(arrival.prompt, str):
        messages = [{"role": "user", "content": arrival.prompt}]
        return "/chat/completions", body | {"messages": messages}
    return "/completions", body | {"prompt": list(arrival.prompt), "ignore_eos": True}


@dataclass(slots=True)
class Stream:
    """Times the events of one answer.

    Only events up to the first text are parsed: on a shared machine the client's work would slow
    the servers that it measures.
    """

    first_seconds: float | None = None
    last_seconds: float = 0.0
    gap_seconds: float = 0.0
    events: int = 0
    tail: bytes = b""
    done: bool = False
    _rest: bytes = field(default=b"", repr=False)

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that arrived at `now`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.done = True
                continue
            self.tail = payload
            if self.first_seconds is None:
                if _has_text(payload):
                    self.first_seconds = self.last_seconds = now
                    self.events = 1
            elif b'"usage":{' not in payload and b'"usage": {' not in payload:
                self.events += 1
                self.gap_seconds = max(self.gap_seconds, now - self.last_seconds)
                self.last_seconds = now

    def usage(self) -> tuple[int, int]:
        """Prompt and output tokens as the server counted them; else zero and the events."""
        usage = _parse(self.tail).get("usage") or {}
        return usage.get("prompt_tokens", 0), usage.get("completion_tokens", self.events)


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _has_text(payload: bytes) -> bool:
    choices = _parse(payload).get("choices") or [{}]
    return bool((choices[0].get("delta") or {}).get("content") or choices[0].get("text"))


def make_sample(stream: Stream, sent: float, ended: float, status: int, replica: str) -> Sample:
    """The sample of an answer whose body has ended."""
    prompt_tokens, output_tokens = stream.usage()
    first = stream.first_seconds
    spread = output_tokens > 1 and first is not None
    return Sample(
        sent_seconds=sent,
        ended_seconds=ended,
        status=status,
        ttft_seconds=None if first is None else first - sent,
        tpot_seconds=(stream.last_seconds - first) / (output_tokens - 1)
        if spread and first is not None
        else None,
        gap_seconds=stream.gap_seconds if spread else None,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        replica=replica,
        error="" if stream.done else "the answer broke off",
    )


@dataclass(slots=True)
class Load:
    """A load under way: what was seen so far, and how many requests are in flight."""

    url: str
    """Base URL with `/v1`."""
    model: str
    samples: list[Sample] = field(default_factory=list)
    sent: int = 0
    in_flight: int = 0
    latest_seconds: float = 0.0
    """The most that a request left after it was due: the generator's own fault."""
    started: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    async def run(self, arrivals: Iterable[Arrival], plan: Plan, stop: asyncio.Event) -> None:
        """Send the arrivals when they are due, until `stop`, and wait for the answers."""
        limits = httpx2.Limits(max_connections=plan.max_concurrent)
        timeout = httpx2.Timeout(plan.timeout_seconds, connect=10)
        self.started = time.monotonic()
        # trust_env=False: a proxy variable of the shell is not part of what is measured.
        async with (
            httpx2.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for arrival in arrivals:
                if await _stopped_before(stop, arrival.at_seconds - self.now()):
                    break
                if self.in_flight >= plan.max_concurrent:
                    now = self.now()
                    self.samples.append(Sample(now, now, UNSENT, error=NOT_SENT))
                    continue
                self.in_flight += 1
                self.latest_seconds = max(self.latest_seconds, self.now() - arrival.at_seconds)
                tasks.create_task(self._send(client, arrival))

    async def run_closed(self, prompts: Iterable[Arrival], plan: Plan, stop: asyncio.Event) -> None:
        """Keep `plan.max_concurrent` requests in flight until `stop` or the plan's duration."""
        timeout = httpx2.Timeout(plan.timeout_seconds, connect=10)
        self.started = time.monotonic()
        waiting = iter(prompts)

        async def one_after_another(client: httpx2.AsyncClient) -> None:
            while not stop.is_set() and self.now() < plan.duration_seconds:
                arrival = next(waiting, None)
                if arrival is None:
                    return
                self.in_flight += 1
                if (await self._send(client, arrival)).status != 200:
                    await _stopped_before(stop, 0.2)

        async with (
            httpx2.AsyncClient(timeout=timeout, trust_env=False) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(plan.max_concurrent):
                tasks.create_task(one_after_another(client))

    async def _send(self, client: httpx2.AsyncClient, arrival: Arrival) -> Sample:
        self.sent += 1
        sent = self.now()
        try:
            sample = await self._ask(client, arrival, sent)
        except httpx2.HTTPError as error:
            sample = Sample(sent, self.now(), UNSENT, error=type(error).__name__)
        finally:
            self.in_flight -= 1
        self.samples.append(sample)
        return sample

    async def _ask(self, client: httpx2.AsyncClient, arrival: Arrival, sent: float) -> Sample:
        path, body = make_request(arrival, self.model)
        async with client.stream("POST", f"{self.url}{path}", json=body) as response:
            replica = response.headers.get(Header.REPLICA, "")
            if response.status_code != 200:
                text = (await response.aread())[:200].decode(errors="replace")
                return Sample(
                    sent, self.now(), response.status_code, replica=replica, error=text or "refused"
                )
            stream = Stream()
            async for data in response.aiter_raw():
                stream.feed(data, self.now())
            return make_sample(stream, sent, self.now(), 200, replica)


async def _stopped_before(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep for so long, or until `stop`; tell whether it was `stop`."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return stop.is_set()
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
