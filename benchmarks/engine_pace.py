"""Chats that stream while long prompts arrive: who waits how long, by kind of budget."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastgen_api.spec import BudgetMode
from fastgen_runtime.device.runner import Runner
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.engine.engine import Beat, Engine
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import NewRequest
from fastgen_runtime.engine.step import Sampling

CHATS = 12
CHAT_TOKENS = 20
ANSWER_TOKENS = 100
LONG_TOKENS = 8000
LONG_EVERY_SECONDS = 6.0
WARM_UP_SECONDS = 6.0
"""Before anything counts: until then the latency model learns."""
VOCABULARY = 4000

POLICIES: dict[str, tuple[BudgetMode, int, float | None]] = {
    "whole prompts": (BudgetMode.FIXED, 8192, None),
    "Fixed 2048": (BudgetMode.FIXED, 2048, None),
    "Fixed 512": (BudgetMode.FIXED, 512, None),
    "Auto 50 ms": (BudgetMode.AUTO, 2048, 0.050),
    "Auto 30 ms": (BudgetMode.AUTO, 2048, 0.030),
}


@dataclass(slots=True)
class Times:
    """When one request's tokens came."""

    arrived: float
    is_long: bool
    tokens: list[float] = field(default_factory=list)

    @property
    def tpot(self) -> float:
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1)


class Load:
    """Closed loop of chats and open loop of long prompts; the same in each run."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        self._rng = np.random.default_rng(1)
        self._open: dict[str, Times] = {}
        self._number = 0
        self._seconds = seconds
        self.done: list[Times] = []
        self.beats: list[tuple[float, Beat, bool]] = []

    def run(self) -> None:
        begun = time.monotonic()
        next_long = begun + 1.0
        for _ in range(CHATS):
            self._add(False)
        while (now := time.monotonic()) < begun + self._seconds:
            if now >= next_long:
                next_long += LONG_EVERY_SECONDS
                self._add(True)
            streams = sum(bool(times.tokens) for times in self._open.values())
            beat = self._engine.step()
            self._take(beat, streams > 0)

    def _add(self, is_long: bool) -> None:
        self._number += 1
        name = str(self._number)
        size = LONG_TOKENS if is_long else CHAT_TOKENS
        prompt = self._rng.integers(4, VOCABULARY, size).tolist()
        now = time.monotonic()
        new = NewRequest(name, prompt, 8 if is_long else ANSWER_TOKENS, Sampling(0.0),
                         ignore_eos=True, arrived=now)  # fmt: skip
        if refusal := self._engine.add(new):
            raise RuntimeError(refusal.message)
        self._open[name] = Times(now, is_long)

    def _take(self, beat: Beat, had_streams: bool) -> None:
        now = time.monotonic()
        self.beats.append((now, beat, had_streams))
        for token in beat.committed.tokens:
            times = self._open[token.request_id]
            times.tokens.append(now)
            if token.finish is not None:
                self.done.append(self._open.pop(token.request_id))
                if not times.is_long:
                    self._add(False)


def measure_pace(load_runner: Callable[[], Runner], seconds: float) -> list[dict[str, Any]]:
    """One row per policy, each with a fresh engine on the same model."""
    runner = load_runner()
    return [_row(name, runner, seconds) for name in POLICIES]


def _row(name: str, runner: Runner, seconds: float) -> dict[str, Any]:
    mode, tokens, target = POLICIES[name]
    limits = Limits(
        budget_tokens=tokens,
        budget_mode=mode,
        max_running=64,
        max_waiting=64,
        max_length=LONG_TOKENS + ANSWER_TOKENS,
        prefix_caching=False,
    )
    engine = Engine(runner, limits)
    engine.set_pace(Pace(target))
    load = Load(engine, seconds + WARM_UP_SECONDS)
    load.run()
    counted = load.beats[0][0] + WARM_UP_SECONDS
    beats = [(beat, had_streams) for ended, beat, had_streams in load.beats if ended > counted]
    steps = [beat.step_seconds for beat, had_streams in beats if had_streams]
    errors = [
        abs(beat.predicted_seconds / beat.step_seconds - 1)
        for beat, _ in beats
        if beat.predicted_seconds
    ]
    done = [times for times in load.done if times.arrived > counted]
    chats = [times for times in done if not times.is_long]
    longs = [times for times in done if times.is_long]
    tpots = [times.tpot for times in chats]
    if not tpots:
        raise RuntimeError(f"{name}: no chat ended in {seconds:g} s; measure for longer")
    row: dict[str, Any] = {
        "budget": name,
        "step_p50_ms": 1e3 * float(np.quantile(steps, 0.5)),
        "step_p99_ms": 1e3 * float(np.quantile(steps, 0.99)),
        "step_max_ms": 1e3 * max(steps),
        "tpot_p50_ms": 1e3 * float(np.quantile(tpots, 0.5)),
        "tpot_p99_ms": 1e3 * float(np.quantile(tpots, 0.99)),
        "chats": len(chats),
        "chats_on_target_percent": (
            100 * float(np.mean(np.array(tpots) <= target)) if target else None
        ),
        "chat_ttft_p90_ms": 1e3
        * float(np.quantile([times.tokens[0] - times.arrived for times in chats], 0.9)),
        "long_prompts": len(longs),
        "long_ttft_p50_ms": (
            1e3 * float(np.median([times.tokens[0] - times.arrived for times in longs]))
            if longs else None
        ),
        "prediction_error_p50_percent": 100 * float(np.median(errors)),
        "tokens_per_second": sum(beat.num_step_tokens for beat, _ in beats) / seconds,
    }  # fmt: skip
    return row
