"""Requests of `fastgen bench` in this process: an engine without a front, timed by its steps."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fastgen_cli.bench.record import Failure, Record
from fastgen_cli.bench.requests import Request
from fastgen_runtime.engine.engine import Beat, Engine
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling

TOKEN_IDS: Final = (1000, 4000)
"""Of prompts: any words do, special tokens do not."""
IDLE_SECONDS: Final = 0.001


@dataclass(slots=True)
class _Open:
    request: Request
    sent: float
    tokens: list[float] = field(default_factory=list)


class EngineLoop:
    """Runs requests on an engine, in a closed or an open loop, one after the other.

    Prompts are token ids of the asked number, drawn by the request's number; answers have all the
    tokens that were asked for.
    """

    def __init__(self, engine: Engine, now: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._now = now
        self._open: dict[str, _Open] = {}
        self._records: list[Record] = []
        self.beats: list[Beat] = []
        """Of the last run."""

    def closed(self, requests: Iterable[Request], clients: int) -> list[Record]:
        """So many clients send one request after the other's answer, until all are answered."""
        begun = self._begin()
        waiting = iter(requests)
        while True:
            while len(self._open) < clients and (request := next(waiting, None)) is not None:
                self._add(request, begun, self._now() - begun)
            if not self._open:
                return self._records
            self._step(begun)

    def open(self, requests: Iterable[Request]) -> list[Record]:
        """Requests come when they are due, as an engine sees them: between two steps."""
        begun = self._begin()
        waiting = list(requests)[::-1]
        while waiting or self._open:
            while waiting and waiting[-1].at_seconds <= self._now() - begun:
                request = waiting.pop()
                # Whoever came during a step has waited since: that is part of his time.
                self._add(request, begun, request.at_seconds)
            if self._open:
                self._step(begun)
            else:
                time.sleep(IDLE_SECONDS)
        return self._records

    def _begin(self) -> float:
        self._records, self.beats = [], []
        return self._now()

    def _add(self, request: Request, begun: float, sent: float) -> None:
        """sent: seconds after `begun`."""
        rng = np.random.default_rng(request.number)
        prompt = rng.integers(*TOKEN_IDS, request.prompt_tokens).tolist()
        name = str(request.number)
        new = NewRequest(name, prompt, request.output_tokens, Sampling(0.0), ignore_eos=True,
                         arrived=begun + sent)  # fmt: skip
        if refusal := self._engine.add(new):
            failure = Failure(refusal.kind.value, 429, refusal.message)
            self._records.append(_record(_Open(request, sent), sent, failure))
            return
        self._open[name] = _Open(request, sent)

    def _step(self, begun: float) -> None:
        beat = self._engine.step()
        self.beats.append(beat)
        now = self._now() - begun
        for name, refusal in beat.committed.failed:
            failure = Failure(refusal.kind.value, 500, refusal.message)
            self._records.append(_record(self._open.pop(name), now, failure))
        for token in beat.committed.tokens:
            one = self._open[token.request_id]
            one.tokens.append(now)
            if token.finish is not None:
                self._records.append(_record(self._open.pop(token.request_id), now, None))


def _record(one: _Open, ended: float, failure: Failure | None) -> Record:
    request = one.request
    return Record(
        asked_prompt_tokens=request.prompt_tokens,
        asked_output_tokens=request.output_tokens,
        sent_seconds=one.sent,
        ended_seconds=ended,
        token_seconds=tuple(one.tokens),
        prompt_tokens=request.prompt_tokens,
        output_tokens=len(one.tokens),
        failure=failure,
    )
