"""Scrapes of the simulated pods, outages of Prometheus, and what a scaler sees."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Final

from fastgen_api.names import Outcome, Target
from fastgen_balancer.promql import Windows
from fastgen_balancer.signals import LocalSignals, MetricSignals, Unknown
from fastgen_cli.simulate.balancing import Balancing
from fastgen_cli.simulate.events import Events
from fastgen_cli.simulate.fleet import Fleet
from fastgen_cli.simulate.ledger import TTFT_BOUNDS, Ledger
from fastgen_cli.simulate.pods import Phase
from fastgen_cli.simulate.samples import Series, increase, quantile
from fastgen_cli.simulate.scaler import PodReading, Traffic
from fastgen_cli.simulate.sensing import UNREACHABLE, read_signals

SCRAPE_SECONDS: Final = 5.0
"""As the operator's PodMonitor has it."""
PEAK_SECONDS: Final = 60.0
CENSUS_SECONDS: Final = 1.0
CENSUS_KEPT: Final = 600


class OutageKind(Enum):
    """What is amiss with the metrics."""

    UNREACHABLE = "unreachable"
    """Prometheus is down: queries fail, and nothing is scraped."""
    EMPTY = "empty"
    """Prometheus answers, but its scrapes fail: its series become stale, then run dry."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Seconds of the simulation."""

    begin: float
    end: float
    kind: OutageKind = OutageKind.EMPTY

    def holds(self, now: float) -> bool:
        return self.begin <= now < self.end


class Monitoring:
    """Prometheus, and each scaler's own eyes; all that an `Observation` offers."""

    def __init__(
        self,
        events: Events,
        fleet: Fleet,
        balancing: Balancing,
        ledger: Ledger,
        outages: tuple[Outage, ...],
        replicas_wanted: Callable[[], int],
    ) -> None:
        self._events = events
        self._fleet = fleet
        self._balancing = balancing
        self._ledger = ledger
        self._outages = outages
        self._wanted = replicas_wanted
        self._pods: dict[str, Series] = {}
        self._counts = Series()
        self._traffic = Series()
        self._census: deque[int] = deque(maxlen=CENSUS_KEPT)

    @property
    def now(self) -> float:
        return self._events.now

    @property
    def replicas(self) -> int:
        return self._wanted()

    @property
    def ready(self) -> int:
        return self._fleet.count(Phase.READY)

    @property
    def capacity_blocked(self) -> bool:
        return self._fleet.count(Phase.PENDING) > 0

    def scrape(self) -> None:
        """One scrape of everything, `SCRAPE_SECONDS` after the last."""
        now = self.now
        serving = {
            replica.name: replica
            for phase in (Phase.READY, Phase.DRAINING)
            for replica in self._fleet.replicas(phase)
        }
        fails = any(outage.holds(now) for outage in self._outages)
        for name, series in list(self._pods.items()):
            if fails or name not in serving:
                series.end(now)
            if not series.times or now - series.times[-1] > CENSUS_KEPT:
                del self._pods[name]
        if fails:
            self._counts.end(now)
            self._traffic.end(now)
            return
        for name, replica in serving.items():
            replica.settle(now)
            row = (
                (work := replica.work).arrived_prefill + work.arrived_decode,
                float(work.num_arrived),
                float(replica.num_running),
                float(replica.num_waiting),
                work.owed,
                replica.kv_usage,
                float(replica.num_tokens_held),
                work.done_prefill + work.done_decode,
            )
            self._pods.setdefault(name, Series()).append(now, row)
        ledger = self._ledger
        queued = float(len(self._balancing.queue))
        outcomes = (float(ledger.outcomes[outcome]) for outcome in Outcome)
        misses = (float(ledger.misses[target]) for target in Target)
        self._counts.append(now, (queued, *outcomes, *misses))
        self._traffic.append(
            now,
            (
                float(ledger.arrived),
                float(ledger.arrived_prompt_tokens),
                float(len(ledger.entries)),
                float(ledger.ended_output_tokens),
                *map(float, accumulate(ledger.first_tokens)),
            ),
        )

    def take_census(self) -> None:
        """Counts the requests in the system, `CENSUS_SECONDS` after the last time."""
        self._census.append(self._balancing.in_flight + len(self._balancing.queue))

    def local(self) -> LocalSignals:
        return self._balancing.signals()

    def metrics(self, windows: Windows) -> MetricSignals | Unknown:
        if self._is_unreachable():
            return UNREACHABLE
        return read_signals(self._pods, self._counts, self.now, windows)

    def live(self) -> tuple[PodReading, ...]:
        found = []
        for replica in self._fleet.replicas(Phase.READY):
            replica.settle(self.now)
            waiting, usage = float(replica.num_waiting), replica.kv_usage
            found.append(
                PodReading(
                    replica.name,
                    float(replica.num_running),
                    waiting,
                    float(replica.num_owed),
                    usage,
                    usage,
                    waiting,
                    float(replica.num_tokens_held),
                )
            )
        return tuple(found)

    def scraped(self) -> tuple[PodReading, ...] | None:
        if self._is_unreachable():
            return None
        ready = {replica.name for replica in self._fleet.replicas(Phase.READY)}
        found = []
        for name, series in self._pods.items():
            latest = series.latest(self.now)
            if latest is None or name not in ready:
                continue
            _, rows = series.window(self.now, PEAK_SECONDS)
            row = latest[1]
            kv_peak = max((one[5] for one in rows), default=row[5])
            waiting_peak = max((one[3] for one in rows), default=row[3])
            found.append(
                PodReading(name, row[2], row[3], row[4], row[5], kv_peak, waiting_peak, row[6])
            )
        return tuple(found)

    def concurrency(self, seconds: float) -> float:
        count = max(1, round(seconds / CENSUS_SECONDS))
        last = list(self._census)[-count:]
        return sum(last) / len(last) if last else 0.0

    def ttft(self, quantile_: float, seconds: float) -> float | None:
        if self._is_unreachable():
            return None
        times, rows = self._traffic.window(self.now, seconds)
        counts = []
        for place in range(4, 4 + len(TTFT_BOUNDS)):
            grown = increase(times, [row[place] for row in rows], self.now, seconds)
            if grown is None:
                return None
            counts.append(grown)
        return quantile(quantile_, TTFT_BOUNDS, counts)

    def traffic(self, seconds: float) -> Traffic | None:
        if self._is_unreachable():
            return None
        times, rows = self._traffic.window(self.now, seconds)
        grown = [increase(times, [r[i] for r in rows], self.now, seconds) for i in range(4)]
        if any(one is None for one in grown):
            return None
        arrived, prompts, ended, outputs = (one or 0.0 for one in grown)
        return Traffic(
            arrived / min(seconds, max(self.now, 1.0)),
            prompts / arrived if arrived else 0.0,
            outputs / ended if ended else 0.0,
        )

    def _is_unreachable(self) -> bool:
        return any(
            outage.holds(self.now) and outage.kind is OutageKind.UNREACHABLE
            for outage in self._outages
        )
