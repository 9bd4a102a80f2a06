"""What the autoscaler's query finds in the simulated Prometheus, read by the product's own parser.

The parts are those of `fastgen_balancer.promql.snapshot`, by the same names and windows.
"""

from collections.abc import Mapping

import msgspec

from fastgen_api.names import Outcome, Target
from fastgen_balancer.prometheus import parse
from fastgen_balancer.promql import PART, Selector, Windows
from fastgen_balancer.signals import MetricSignals, Unknown
from fastgen_cli.simulate.samples import Series, increase, slope

REPLICA_COLUMNS = (
    "arriving",
    "arriving_requests",
    "running",
    "waiting",
    "owed",
    "kv_usage",
    "held",
    "work",
)
"""Of a replica's series, in this order."""
GAUGES = REPLICA_COLUMNS[2:6]
FLEET_COLUMNS = ("queued", *Outcome, *Target)
"""Of the series of what is counted for all replicas together."""
SELECTOR = Selector("simulated", "default")
UNREACHABLE = Unknown("Unreachable", "Prometheus cannot be reached (outage)")

Parts = dict[str, dict[tuple[str, str], float]]


def read_signals(
    replicas: Mapping[str, Series], fleet: Series, now: float, windows: Windows
) -> MetricSignals | Unknown:
    """The answer to the autoscaler's query at `now`."""
    parts: Parts = {}
    sums: dict[str, float] = {}
    for name, series in replicas.items():
        for part, rate in _replica_parts(parts, name, series, now, windows).items():
            sums[part] = sums.get(part, 0.0) + rate
    for part, rate in sums.items():
        parts[part] = {("", ""): rate}
    _fleet_parts(parts, fleet, now, windows)
    samples = [
        {"metric": {PART: part} | ({label[0]: label[1]} if label[0] else {}),
         "value": [now, repr(value)]}
        for part, values in parts.items()
        for label, value in values.items()
    ]  # fmt: skip
    answer = {"status": "success", "data": {"resultType": "vector", "result": samples}}
    return parse(200, msgspec.json.encode(answer), SELECTOR, windows)


def _replica_parts(
    parts: Parts, name: str, series: Series, now: float, windows: Windows
) -> dict[str, float]:
    """Adds a replica's parts; its rates."""
    label, window = ("instance", name), windows.short_seconds
    latest = series.latest(now)
    times, rows = series.window(now, window)
    if latest is not None:
        parts.setdefault("sampled", {})[label] = latest[0]
    if series.was_there(now - window):
        parts.setdefault("present", {})[label] = 1.0
    columns = list(zip(*rows, strict=True)) if rows else []
    total: dict[str, float] = {}
    for index, part in ((0, "arriving"), (1, "arriving_requests"), (7, "done")):
        grown = increase(times, columns[index], now, window) if columns else None
        if grown is not None:
            total[part] = grown / window
            if part == "done":
                parts.setdefault("work", {})[label] = grown / window
    times_, latest_rows = series.window(now, windows.latest_seconds)
    latest_column = [row[REPLICA_COLUMNS.index("arriving_requests")] for row in latest_rows]
    grown = increase(times_, latest_column, now, windows.latest_seconds)
    if grown is not None:
        total["latest_requests"] = grown / windows.latest_seconds
    for index, part in enumerate(GAUGES, start=2):
        if latest is not None:
            parts.setdefault(part, {})[label] = latest[1][index]
        if columns:
            parts.setdefault(f"{part}_floor", {})[label] = min(columns[index])
    if columns:
        growth = slope(times, columns[REPLICA_COLUMNS.index("waiting")])
        if growth is not None:
            parts.setdefault("waiting_growth", {})[label] = growth
    return total


def _fleet_parts(parts: Parts, fleet: Series, now: float, windows: Windows) -> None:
    latest = fleet.latest(now)
    if latest is not None:
        parts["queued"] = {("", ""): latest[1][0]}
    times, rows = fleet.window(now, windows.short_seconds)
    if rows:
        growth = slope(times, [row[0] for row in rows])
        if growth is not None:
            parts["queue_growth"] = {("", ""): growth}
    outcomes, targets = len(Outcome), len(Target)
    for part, seconds, label, first, count in (
        ("short", windows.short_seconds, "outcome", 1, outcomes),
        ("long", windows.long_seconds, "outcome", 1, outcomes),
        ("misses", windows.long_seconds, "target", 1 + outcomes, targets),
    ):
        times, rows = fleet.window(now, seconds)
        for place in range(first, first + count):
            grown = increase(times, [row[place] for row in rows], now, seconds)
            if grown is not None:
                parts.setdefault(part, {})[label, FLEET_COLUMNS[place]] = grown
