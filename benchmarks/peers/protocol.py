"""What the driver and an engine's adapter say to one another: JSON lines over the adapter's pipes.

The adapter says `{"ready": facts}` once it has loaded. Each line that it gets, `{"requests":
[{"prompt": ids, "output": tokens, "at": seconds}]}`, it answers with `{"seconds": s, "outputs":
[{"ids": ids or null, "times": seconds}]}`: times of the tokens, and `at`, count from when the first
request could have arrived. `{"error": text}` in place of either means that the engine cannot.

No imports but the standard library's: adapters run in the engines' own environments.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """Greedy, and exactly `output` tokens long: end tokens do not end it. at: seconds."""

    prompt: list[int]
    output: int
    at: float = 0.0


@dataclass(slots=True)
class Answer:
    """ids: None where the engine does not tell them. times: seconds, of each token."""

    ids: list[int] | None
    times: list[float]


Settings = dict[str, Any]
"""model (path), dtype (`Configuration.dtype`), threads, kv_bytes, and the configuration's own."""
Answerer = Callable[[list[Request]], list[Answer]]
"""Answers requests, in their order."""
Loader = Callable[[Settings], tuple[Answerer, dict[str, Any]]]
"""Loads a model; returns what answers, and facts to show: version, types, memory of the cache."""


class Stepped(Protocol):
    """An engine in this process that computes step by step."""

    def add(self, number: int, request: Request) -> None:
        """Takes a request by its number in the list."""
        ...

    def step(self) -> Iterable[tuple[int, int]]:
        """One step: (number of the request, token id) of each new token."""
        ...


def run_stepped(engine: Stepped, requests: list[Request]) -> list[Answer]:
    """Feeds the requests when they are due, and notes when their tokens come."""
    answers = [Answer([], []) for _ in requests]
    order = sorted(range(len(requests)), key=lambda number: requests[number].at)
    left = sum(request.output for request in requests)
    begun, added, open_tokens = time.perf_counter(), 0, 0
    while left:
        while added < len(order) and requests[order[added]].at <= time.perf_counter() - begun:
            engine.add(order[added], requests[order[added]])
            open_tokens += requests[order[added]].output
            added += 1
        if not open_tokens:
            time.sleep(0.001)
            continue
        tokens = list(engine.step())
        now = time.perf_counter() - begun
        for number, token in tokens:
            answers[number].times.append(now)
            ids = answers[number].ids
            assert ids is not None
            ids.append(token)
        left -= len(tokens)
        open_tokens -= len(tokens)
    return answers


def parse(line: str) -> list[Request]:
    """The requests of a line."""
    return [Request(**fields) for fields in json.loads(line)["requests"]]


def serve(load: Loader) -> None:
    """An adapter's whole program; settings are the first argument, as JSON.

    What the engine prints goes to standard error: the pipe carries answers alone.
    """
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    try:
        answer, facts = load(json.loads(sys.argv[1]))
        say({"ready": facts})
        for line in sys.stdin:
            begun = time.perf_counter()
            answers = answer(parse(line))
            seconds = time.perf_counter() - begun
            say({"seconds": seconds, "outputs": [asdict(each) for each in answers]})
    except BaseException as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"})
        raise SystemExit(1) from None
