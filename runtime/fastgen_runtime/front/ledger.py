"""What has become of requests: counted against the SLO, and told to whoever wants to know."""

import time
from collections.abc import Callable, Sequence

from fastgen_api.spec import SLO
from fastgen_runtime.front.finished import FinishedRequest, finished_request
from fastgen_runtime.front.goodness import End, classify, is_counted_by_balancer
from fastgen_runtime.front.metrics import Metrics
from fastgen_runtime.front.submission import Submission
from fastgen_runtime.log import log_problem

Observer = Callable[[FinishedRequest], None]


class Ledger:
    """Takes each request once, when it has ended. slo: the one that holds now."""

    def __init__(
        self, metrics: Metrics, slo: SLO, model: str, observers: Sequence[Observer]
    ) -> None:
        self.slo = slo
        self._metrics = metrics
        self._model = model
        self._observers = tuple(observers)

    def enter(
        self,
        submission: Submission,
        end: End,
        message: str | None = None,
    ) -> None:
        """message: the error that the client got."""
        timings, generation = submission.timings, submission.generation
        ended = time.monotonic()
        verdict = classify(timings, end, ended, self.slo)
        is_left = is_counted_by_balancer(end) and not generation.is_unwitnessed
        if generation.waited_seconds is None or not is_left:
            self._metrics.count_request(verdict)
            self._metrics.observe_latencies(timings)
        if not self._observers:
            return
        finished = finished_request(
            submission,
            self._model,
            end,
            verdict.outcome,
            ended - timings.arrived,
            message,
        )
        for observe in self._observers:
            try:
                observe(finished)
            except Exception as error:  # an observer's defect is not the client's
                log_problem("an observer of ended requests failed", error)
