"""A whole simulation: a trace, a fleet, a balancer, Prometheus and a scaler on one clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from fastgen_api.spec import SLO, Behavior, Engine, Model, Scaling, Spec
from fastgen_balancer.load import INTERVAL_SECONDS
from fastgen_balancer.pick import Refusal
from fastgen_cli.simulate.balancing import Balancing
from fastgen_cli.simulate.call import Call
from fastgen_cli.simulate.events import Events
from fastgen_cli.simulate.fleet import Fleet, FleetSetup
from fastgen_cli.simulate.ledger import Ledger
from fastgen_cli.simulate.monitoring import CENSUS_SECONDS, SCRAPE_SECONDS, Monitoring, Outage
from fastgen_cli.simulate.pods import Phase, Supply
from fastgen_cli.simulate.profile import Profile
from fastgen_cli.simulate.result import Moment, Result, result_of
from fastgen_cli.simulate.scaler import OwnScaler, Scaler
from fastgen_cli.simulate.trace import Arrival, Trace
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.front.goodness import End, Timings

LONGEST_TAIL_SECONDS: Final = 3600.0
"""After the last arrival; whoever has no answer then gets none."""
DRAIN_SECONDS: Final = 120.0
DEFAULT_BEHAVIOR: Final = Behavior()


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated. seconds: how long replicas are scaled and paid for. initial_replicas: are
    ready at the begin. crashes: when a replica dies. scrape_seconds: between Prometheus' scrapes.

    limits_named: clients say how long an answer is to become, as `max_tokens`; else it may become
    as long as the model lets it, and nobody knows before.
    """

    trace: Trace
    seconds: float
    profile: Profile
    slo: SLO
    max_replicas: int
    min_replicas: int = 1
    initial_replicas: int = 1
    supply: Supply = field(default_factory=Supply)
    outages: tuple[Outage, ...] = ()
    crashes: tuple[float, ...] = ()
    seed: int = 0
    fast_forward: bool = True
    scrape_seconds: float = SCRAPE_SECONDS
    limits_named: bool = False


def pace_of(slo: SLO) -> Pace:
    """What the engine is told of an SLO."""
    ttft, tpot, gap = slo.time_to_first_token, slo.time_per_output_token, slo.token_gap
    return Pace(
        seconds_per_token=tpot.milliseconds / 1e3 if tpot else None,
        longest_gap_seconds=gap.max_milliseconds / 1e3 if gap else None,
        first_token_seconds=ttft.milliseconds / 1e3 if ttft else 0.0,
        seconds_per_prompt_token=ttft.per_prompt_token_microseconds / 1e6 if ttft else 0.0,
    )


def own_scaler(setup: Setup, behavior: Behavior = DEFAULT_BEHAVIOR) -> OwnScaler:
    """FastGen's, with the defaults of a FastGenDeployment."""
    spec = Spec(
        Model("file:///model"),
        Engine(max_concurrent_requests=setup.profile.max_concurrent_requests),
        setup.slo,
        scaling=Scaling(
            min_replicas=setup.min_replicas, max_replicas=setup.max_replicas, behavior=behavior
        ),
    )
    return OwnScaler(spec, setup.profile.cold_start_seconds)


def simulate(
    setup: Setup,
    scaler: Scaler,
    progress: Callable[[float], None] | None = None,
    *,
    least_good_ratio: float = 0.0,
) -> Result:
    """Runs to the end of the last request. progress: told the share that is done.

    least_good_ratio: ends as soon as so large a share of good requests is out of reach; the share
    of those that have ended is below it, too, then.
    """
    return _Simulation(setup, scaler, progress, least_good_ratio).run()


class _Simulation:
    """Invariant: `_open` holds each request that has arrived and is in no ledger yet."""

    def __init__(
        self,
        setup: Setup,
        scaler: Scaler,
        progress: Callable[[float], None] | None,
        least_good_ratio: float,
    ) -> None:
        self._setup = setup
        self._most_bad = (1 - least_good_ratio) * len(setup.trace)
        self._scaler = scaler
        self._progress = progress
        self._events = Events()
        self._open: dict[str, Call] = {}
        self._places: dict[str, str] = {}
        self._next = 0
        self._wanted = setup.initial_replicas
        self._timeline: list[Moment] = []
        self._pumping = False
        self._ledger = Ledger(setup.slo)
        self._balancing = Balancing(
            lambda: self._events.now, setup.seed, setup.profile.max_concurrent_requests
        )
        self._fleet = Fleet(
            FleetSetup(
                setup.profile, pace_of(setup.slo), setup.supply, DRAIN_SECONDS, setup.fast_forward
            ),
            self._events,
            self._balancing,
            Random(setup.seed + 1),
            self._completed,
            self._lost,
        )
        self._monitoring = Monitoring(
            self._events,
            self._fleet,
            self._balancing,
            self._ledger,
            setup.outages,
            lambda: self._wanted,
        )

    def run(self) -> Result:
        setup, events = self._setup, self._events
        self._fleet.begin(setup.initial_replicas)
        self._note()
        self._plan_arrival()
        for when in setup.crashes:
            events.at(when, self._fleet.crash)
        scrape = setup.scrape_seconds
        self._each(scrape, self._monitoring.scrape, first=scrape / 2)
        self._each(CENSUS_SECONDS, self._monitoring.take_census)
        self._each(self._scaler.interval_seconds, self._decide)
        if self._progress:
            self._each(max(1.0, setup.seconds / 100), self._tell)
        end = setup.seconds + LONGEST_TAIL_SECONDS
        while events.step() and events.now <= end:
            if not self._open and self._is_over() and events.now >= setup.seconds:
                break
            if self._ledger.num_bad > self._most_bad + 1e-6:
                break
        else:
            for call in list(self._open.values()):
                self._enter(call, End.DEADLINE)
        seconds = self._fleet.gpu_seconds(setup.seconds)
        steps = [pod.replica for pod in self._fleet.pods if pod.replica]
        return result_of(
            setup.seconds,
            self._ledger,
            tuple(self._timeline),
            seconds,
            (sum(r.num_steps for r in steps), sum(r.num_planned_steps for r in steps)),
        )

    def _is_over(self) -> bool:
        return self._next >= len(self._setup.trace)

    def _each(self, seconds: float, action: Callable[[], None], first: float | None = None) -> None:
        """Does something at regular times, until the scaled time is over."""

        def again() -> None:
            if self._events.now > self._setup.seconds:
                return
            action()
            self._events.after(seconds, again)

        self._events.after(seconds if first is None else first, again)

    def _tell(self) -> None:
        assert self._progress is not None
        self._progress(self._events.now / self._setup.seconds)

    def _plan_arrival(self) -> None:
        if not self._is_over():
            arrival = self._setup.trace[self._next]
            self._events.at(arrival.at, lambda: self._arrive(arrival))

    def _arrive(self, arrival: Arrival) -> None:
        now = self._events.now
        call = Call(
            f"{self._next}",
            now,
            arrival.prompt_tokens,
            arrival.output_tokens,
            Timings(now, prompt_tokens=arrival.prompt_tokens),
            max_tokens=arrival.output_tokens if self._setup.limits_named else None,
        )
        self._next += 1
        self._open[call.id] = call
        self._ledger.arrive(call)
        self._offer(call)
        self._plan_arrival()

    def _offer(self, call: Call) -> None:
        answer = self._balancing.offer(call)
        if answer is None:
            self._pump_soon()
        else:
            self._act(call, answer)

    def _act(self, call: Call, answer: str | Refusal) -> None:
        if isinstance(answer, Refusal):
            self._enter(call, End.REFUSED)
            return
        self._places[call.id] = answer
        self._fleet.send(answer, call)

    def _pump_soon(self) -> None:
        """Looks at the queue each time that the replicas tell of their load, beside the times that
        a request ends."""
        if self._pumping:
            return
        self._pumping = True

        def again() -> None:
            self._pumping = False
            self._pump()
            if self._balancing.queue:
                self._pump_soon()

        self._events.after(INTERVAL_SECONDS, again)

    def _pump(self) -> None:
        for call, answer in self._balancing.pump():
            self._act(call, answer)

    def _completed(self, call: Call, now: float) -> None:
        self._balancing.ended(call, self._places.pop(call.id), well=True)
        self._enter(call, End.COMPLETED)
        # As in reality the replica has begun its next step before the room it made is known.
        self._events.after(0.0, self._pump)

    def _lost(self, call: Call, begun: bool) -> None:
        """Its replica is gone: Envoy tries another one once, while no answer has begun."""
        self._places.pop(call.id, None)
        if begun or call.retried:
            self._enter(call, End.FAILED)
            return
        call.retried = True
        call.timings = Timings(call.arrived, prompt_tokens=call.prompt_tokens)
        self._offer(call)

    def _enter(self, call: Call, end: End) -> None:
        del self._open[call.id]
        self._ledger.enter(call, end, self._events.now)

    def _decide(self) -> None:
        wanted = self._scaler.decide(self._monitoring)
        wanted = max(self._setup.min_replicas, min(self._setup.max_replicas, wanted))
        if wanted != self._wanted:
            self._wanted = wanted
            self._fleet.scale(wanted)
        self._note()

    def _note(self) -> None:
        """Adds a moment to the timeline when anything differs from the last one."""
        moment = Moment(
            self._events.now,
            self._wanted,
            self._fleet.count(Phase.READY),
            self._fleet.num_gpus(),
        )
        last = self._timeline[-1] if self._timeline else None
        if last is None or (last.wanted, last.ready, last.gpus) != (
            moment.wanted,
            moment.ready,
            moment.gpus,
        ):
            self._timeline.append(moment)
