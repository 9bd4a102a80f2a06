"""The one query that the autoscaler puts to Prometheus.

Its parts are told apart by a label, so that all of them are read at the same instant, and a part
without a series is missing in the answer instead of 0. Queries rest on the labels that our
processes put on their series, and on `instance`.
"""

import json
from dataclasses import dataclass
from typing import Final

from fastgen_api.names import Metric, MetricLabel
from fastgen_balancer.scaling_policy import (
    LATEST_WINDOW_SECONDS,
    LONG_WINDOW_SECONDS,
    SHORT_WINDOW_SECONDS,
)

PART: Final = "part"
"""Label of each sample in the answer: the part of the query that it comes from."""

OTHERS: Final = "others"
"""The part that counts series of ours, of whatever deployment."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Lengths of the rate windows; the short one holds at least four scrapes."""

    short_seconds: float = SHORT_WINDOW_SECONDS
    long_seconds: float = LONG_WINDOW_SECONDS
    latest_seconds: float = LATEST_WINDOW_SECONDS


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects the series of one FastGenDeployment."""

    deployment: str
    namespace: str

    def of(self, metric: str, window_seconds: float | None = None) -> str:
        """An instant vector, or a range vector."""
        name, namespace = json.dumps(self.deployment), json.dumps(self.namespace)
        labels = f"{MetricLabel.DEPLOYMENT}={name},{MetricLabel.NAMESPACE}={namespace}"
        window = "" if window_seconds is None else f"[{_duration(window_seconds)}]"
        return f"{metric}{{{labels}}}{window}"


def snapshot(selector: Selector, windows: Windows) -> str:
    """Everything that one decision needs."""
    parts = _replica_parts(selector, windows.short_seconds)
    parts |= _fleet_parts(selector, windows)
    return " or ".join(
        f'label_replace({expression}, "{PART}", "{name}", "", "")'
        for name, expression in parts.items()
    )


def _replica_parts(selector: Selector, window: float) -> dict[str, str]:
    running = selector.of(Metric.RUNNING_REQUESTS)
    parts = {
        "sampled": f"max by (instance) (timestamp({running}))",
        "present": f"max by (instance) ({running} offset {_duration(window)})",
        "work": f"sum by (instance) (rate({selector.of(Metric.DONE_WORK, window)}))",
        "waiting_growth": (
            f"sum by (instance) (deriv({selector.of(Metric.WAITING_REQUESTS, window)}))"
        ),
    }
    gauges = {
        "running": Metric.RUNNING_REQUESTS,
        "waiting": Metric.WAITING_REQUESTS,
        "owed": Metric.OWED_WORK,
        "kv_usage": Metric.KV_USAGE,
    }
    for name, metric in gauges.items():
        parts[name] = f"max by (instance) ({selector.of(metric)})"
        floor = f"min_over_time({selector.of(metric, window)})"
        parts[f"{name}_floor"] = f"min by (instance) ({floor})"
    return parts


def _fleet_parts(selector: Selector, windows: Windows) -> dict[str, str]:
    short, long = windows.short_seconds, windows.long_seconds
    rates = {
        "arriving": Metric.ARRIVED_WORK,
        "arriving_requests": Metric.ARRIVED_REQUESTS,
        "done": Metric.DONE_WORK,
    }
    return {name: f"sum(rate({selector.of(metric, short)}))" for name, metric in rates.items()} | {
        # Of every deployment: an empty answer to all else then has another cause.
        OTHERS: f"count({Metric.RUNNING_REQUESTS} or {Metric.QUEUED_REQUESTS})",
        "latest_requests": (
            f"sum(rate({selector.of(Metric.ARRIVED_REQUESTS, windows.latest_seconds)}))"
        ),
        "queued": f"sum({selector.of(Metric.QUEUED_REQUESTS)})",
        "queue_growth": f"sum(deriv({selector.of(Metric.QUEUED_REQUESTS, short)}))",
        "short": f"sum by (outcome) (increase({selector.of(Metric.REQUESTS, short)}))",
        "long": f"sum by (outcome) (increase({selector.of(Metric.REQUESTS, long)}))",
        "misses": f"sum by (target) (increase({selector.of(Metric.TARGET_MISSES, long)}))",
    }


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
