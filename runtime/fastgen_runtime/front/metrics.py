"""A replica's Prometheus metrics."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from fastgen_api.names import Metric, MetricLabel, Outcome, Phase, Target
from fastgen_api.spec import SLO
from fastgen_runtime.engine.channel import Report
from fastgen_runtime.engine.work import Work
from fastgen_runtime.front.finished import FinishedRequest
from fastgen_runtime.front.goodness import End, Timings, Verdict

_LABELS: Final = (MetricLabel.DEPLOYMENT, MetricLabel.NAMESPACE)
_FIRST_TOKEN_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
_TOKEN_SECONDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_PHASE_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0,
    20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
)  # fmt: skip
_RATIOS: Final = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0)
_STEP_TOKENS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Rate:
    """Tokens per second over the last `window_seconds`."""

    def __init__(self, window_seconds: float = 10.0) -> None:
        self._window_seconds = window_seconds
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int, now: float) -> None:
        self._counts.append((now, count))
        self._sum += count
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        return self._sum / self._window_seconds

    def _forget(self, now: float) -> None:
        while self._counts and self._counts[0][0] <= now - self._window_seconds:
            self._sum -= self._counts.popleft()[1]


class Metrics:
    """Every series of a replica, in a registry of its own."""

    def __init__(self, deployment: str, namespace: str, slo: SLO) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._labels = (deployment, namespace)
        self._registry = CollectorRegistry()
        self._requests = self._counters(
            Metric.REQUESTS, "Requests by how they ended.", "outcome", Outcome
        )
        self._misses = self._counters(
            Metric.TARGET_MISSES, "Requests that missed a target of the SLO.", "target", Target
        )
        self._prompt_tokens = self._counter(Metric.PROMPT_TOKENS, "Prompt tokens computed.")
        self._output_tokens = self._counter(Metric.OUTPUT_TOKENS, "Output tokens computed.")
        self._preemptions = self._counter(Metric.PREEMPTIONS, "Requests sent back to the queue.")
        self._num_preemptions = 0
        self._arrived_requests = self._counter(
            Metric.ARRIVED_REQUESTS, "Requests that the engine took."
        )
        self._arrived = self._counters(
            Metric.ARRIVED_WORK, "Engine-seconds that arriving requests will take.", "phase", Phase
        )
        self._done = self._counters(
            Metric.DONE_WORK, "Engine-seconds of work done, as predicted.", "phase", Phase
        )
        self._work = Work()
        self._prefix_queries = self._counter(
            Metric.PREFIX_QUERIES, "Prompt tokens, computed or found in the prefix cache."
        )
        self._prefix_hits = self._counter(
            Metric.PREFIX_HITS, "Prompt tokens found in the prefix cache."
        )
        self._drafted = self._counter(Metric.DRAFTED_TOKENS, "Guessed output tokens computed.")
        self._accepted = self._counter(
            Metric.ACCEPTED_TOKENS, "Guessed output tokens that were right."
        )
        self._ends = self._counters(
            Metric.REQUEST_ENDS,
            "Requests by what ended them, whoever counts their outcome.",
            "end",
            [end.value for end in End],
        )
        self._step_seconds = self._histogram(
            Metric.STEP_SECONDS, "Time of one step.", (0.001, 0.0025, 0.005, *_TOKEN_SECONDS)
        )
        self._step_tokens = self._histogram(
            Metric.STEP_TOKENS, "Tokens of one step.", tuple(map(float, _STEP_TOKENS))
        )
        self._step_ratio = self._histogram(
            Metric.STEP_RATIO, "Time of a step by what the latency model expected.", _RATIOS
        )
        self._phases = self._phase_histograms()
        self._budget_tokens = 0
        self.gauge(Metric.BUDGET_TOKENS, "Most tokens of a step, now.", lambda: self._budget_tokens)
        began = time.time()
        self.gauge(Metric.START_TIME, "When this process began, Unix time.", lambda: began)
        self._slo_target, self._target_seconds = self._slo_gauges()
        self._targets: tuple[float | None, ...] = ()
        self._latencies: tuple[Histogram, ...] = ()
        self._observed: tuple[Histogram, ...] = ()
        self.set_slo(slo)

    def _phase_histograms(self) -> tuple[Histogram, ...]:
        kinds = (
            (Metric.QUEUE_SECONDS, "Time until a request's first chunk."),
            (Metric.PREFILL_SECONDS, "Time from a request's first chunk to its first token."),
            (Metric.DECODE_SECONDS, "Time from a request's first token to its last."),
        )
        return tuple(self._histogram(name, text, _PHASE_SECONDS) for name, text in kinds)

    def _slo_gauges(self) -> tuple[Gauge, Gauge]:
        share = Gauge(
            Metric.SLO_TARGET,
            "Share of good requests that the SLO asks for.",
            _LABELS,
            registry=self._registry,
        )
        seconds = Gauge(
            Metric.TARGET_SECONDS,
            "Targets of the SLO that are set; ttft: of a prompt without tokens.",
            (*_LABELS, "target"),
            registry=self._registry,
        )
        return share.labels(*self._labels), seconds

    def set_slo(self, slo: SLO) -> None:
        """Gives the histograms a bucket at each target; they begin anew when one has moved."""
        self._slo_target.set(float(Decimal(slo.target_percent) / 100))
        first, per_token, gap = slo.time_to_first_token, slo.time_per_output_token, slo.token_gap
        targets = (
            first.milliseconds / 1e3 if first else None,
            per_token.milliseconds / 1e3 if per_token else None,
            gap.max_milliseconds / 1e3 if gap else None,
        )
        if self._latencies and targets == self._targets:
            return
        for histogram in self._latencies:
            self._registry.unregister(histogram)
        self._targets = targets
        self._target_seconds.clear()
        for target, seconds in zip(Target, targets, strict=True):
            if seconds is not None:
                self._target_seconds.labels(*self._labels, target.value).set(seconds)
        kinds = (
            (Metric.TTFT, "Time to first token, the wait at the balancer included.",
             _FIRST_TOKEN_SECONDS),
            (Metric.TPOT, "Time per output token after the first, by request.", _TOKEN_SECONDS),
            (Metric.TOKEN_GAP, "Longest time between two tokens, by request.", _TOKEN_SECONDS),
        )  # fmt: skip
        self._latencies = tuple(
            Histogram(name, text, _LABELS, registry=self._registry, buckets=with_target(b, target))
            for (name, text, b), target in zip(kinds, targets, strict=True)
        )
        self._observed = tuple(histogram.labels(*self._labels) for histogram in self._latencies)

    def gauge(
        self,
        name: str,
        text: str,
        value: Callable[[], float],
        more_labels: Mapping[str, str] | None = None,
    ) -> None:
        """A gauge that is read when it is scraped."""
        more = more_labels or {}
        gauge = Gauge(name, text, (*_LABELS, *more), registry=self._registry)
        gauge.labels(*self._labels, *more.values()).set_function(value)

    def count_request(self, verdict: Verdict) -> None:
        """Counts a request that has ended."""
        self._requests[verdict.outcome].inc()
        for target in verdict.missed:
            self._misses[target].inc()

    def observe_latencies(self, timings: Timings) -> None:
        """Notes the latencies of a request that got tokens."""
        ttft, tpot = timings.ttft_seconds, timings.tpot_seconds
        gap = timings.longest_gap if timings.output_tokens > 1 else None
        for histogram, value in zip(self._observed, (ttft, tpot, gap), strict=True):
            if value is not None:
                histogram.observe(value)

    def note_request(self, request: FinishedRequest) -> None:
        """Counts how a request ended, and notes how long it was in which phase."""
        self._ends[request.end.value].inc()
        seconds = (request.queue_seconds, request.prefill_seconds, request.decode_seconds)
        for histogram, value in zip(self._phases, seconds, strict=True):
            if value is not None:
                histogram.observe(value)

    def note_step(self, report: Report) -> None:
        """Counts what a step computed, so that rates are smooth however long requests run."""
        preempted = report.load.num_preemptions - self._num_preemptions
        self._num_preemptions = report.load.num_preemptions
        self._preemptions.inc(preempted)
        self._note_work(report.load.work)
        if report.num_step_tokens:
            self._prompt_tokens.inc(report.num_prompt_tokens)
            self._output_tokens.inc(report.num_output_tokens)
            self._step_seconds.observe(report.step_seconds)
            self._step_tokens.observe(report.num_step_tokens)
            looked_up = report.num_prompt_tokens + report.num_cached_tokens
            self._prefix_queries.inc(looked_up)
            self._prefix_hits.inc(report.num_cached_tokens)
            self._drafted.inc(report.num_drafted_tokens)
            self._accepted.inc(report.num_accepted_tokens)
            self._budget_tokens = report.budget_tokens
            if report.predicted_seconds:
                ratio = report.step_seconds / report.predicted_seconds
                self._step_ratio.observe(ratio)

    def _note_work(self, work: Work) -> None:
        last, self._work = self._work, work
        self._arrived_requests.inc(work.num_arrived - last.num_arrived)
        self._arrived[Phase.PREFILL].inc(work.arrived_prefill - last.arrived_prefill)
        self._arrived[Phase.DECODE].inc(work.arrived_decode - last.arrived_decode)
        self._done[Phase.PREFILL].inc(work.done_prefill - last.done_prefill)
        self._done[Phase.DECODE].inc(work.done_decode - last.done_decode)

    def render(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)

    # Each series exists from the start, since a rate needs the 0 before the first event, and is
    # looked up once.

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self._registry).labels(*self._labels)

    def _counters(
        self, name: str, text: str, label: str, values: Iterable[str]
    ) -> Mapping[str, Counter]:
        counter = Counter(name, text, (*_LABELS, label), registry=self._registry)
        return {value: counter.labels(*self._labels, value) for value in values}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, _LABELS, registry=self._registry, buckets=buckets)
        return histogram.labels(*self._labels)


def with_target(buckets: tuple[float, ...], target: float | None) -> tuple[float, ...]:
    """The buckets with one whose upper bound is the target, so that its share can be read off."""
    return tuple(sorted({*buckets, target} if target is not None else buckets))
