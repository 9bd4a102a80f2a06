"""The simulated pods: created and deleted as the scaler wants, each with its replica."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from fastgen_cli.simulate.balancing import Balancing
from fastgen_cli.simulate.call import Call
from fastgen_cli.simulate.events import Events
from fastgen_cli.simulate.pods import LEAVE_SECONDS, Gpus, Phase, Pod, Supply
from fastgen_cli.simulate.profile import Profile
from fastgen_cli.simulate.replica import Replica
from fastgen_runtime.engine.budget import Pace

COLD_START_SPREAD: Final = 0.1
"""Cold starts are longer or shorter than the profile's by up to this share."""


@dataclass(frozen=True, slots=True)
class FleetSetup:
    """What a fleet is made of. drain_seconds: a draining pod ends its streams within this."""

    profile: Profile
    pace: Pace
    supply: Supply
    drain_seconds: float = 120.0
    fast_forward: bool = True


class Fleet:
    """Invariant: the balancer knows exactly the ready and draining replicas, and each replica with
    work has an event at the end of its step."""

    def __init__(
        self,
        setup: FleetSetup,
        events: Events,
        balancing: Balancing,
        rng: Random,
        on_end: Callable[[Call, float], None],
        on_lost: Callable[[Call, bool], None],
    ) -> None:
        """on_end: a stream is complete. on_lost: its replica is gone; whether it had begun."""
        self.pods: list[Pod] = []
        self.gone: list[Pod] = []
        self._setup = setup
        self._events = events
        self._balancing = balancing
        self._rng = rng
        self._gpus = Gpus(setup.supply)
        self._created = 0
        self._on_end = on_end
        self._on_lost = on_lost

    def replicas(self, phase: Phase) -> list[Replica]:
        return [pod.replica for pod in self.pods if pod.phase is phase and pod.replica]

    def count(self, phase: Phase) -> int:
        return sum(pod.phase is phase for pod in self.pods)

    def num_gpus(self) -> int:
        """GPUs that pods hold."""
        return sum(pod.gpu_at is not None for pod in self.pods)

    def gpu_seconds(self, until: float) -> float:
        """GPU time of all pods, cold starts and drains included."""
        return sum(
            max(0.0, min(until, pod.gone_at if pod.gone_at is not None else until) - pod.gpu_at)
            for pod in (*self.gone, *self.pods)
            if pod.gpu_at is not None
        )

    def begin(self, count: int) -> None:
        """So many replicas are ready from the begin."""
        for _ in range(count):
            pod = self._create()
            if self._gpus.give(pod):
                pod.gpu_at = self._events.now
                self._ready(pod)

    def scale(self, count: int) -> None:
        """There should be so many replicas."""
        here = [pod for pod in self.pods if pod.phase is not Phase.DRAINING]
        for _ in range(count - len(here)):
            self._create()
        for pod in sorted(here, key=lambda one: one.rank)[: max(0, len(here) - count)]:
            self._delete(pod)
        self._place()

    def send(self, name: str, call: Call) -> None:
        """A picked request comes to its replica."""
        pod = next(pod for pod in self.pods if pod.name == name)
        assert pod.replica is not None
        call.timings.arrived = self._events.now
        call.timings.waited = self._events.now - call.arrived
        pod.replica.take(call, self._events.now)
        self._follow(pod)

    def crash(self) -> None:
        """The ready replica with most to do dies with all it has, and starts anew."""
        ready = [pod for pod in self.pods if pod.phase is Phase.READY and pod.replica]
        if not ready:
            return
        pod = max(ready, key=lambda one: len(one.replica.calls) if one.replica else 0)
        calls = self._lose(pod)
        pod.phase, pod.ready_at = Phase.STARTING, None
        self._tell()
        self._start(pod)
        for call in calls:
            self._on_lost(call, call.timings.first is not None)

    def _create(self) -> Pod:
        self._created += 1
        pod = Pod(f"replica-{self._created}", self._events.now)
        self.pods.append(pod)
        return pod

    def _place(self) -> None:
        """Gives pending pods their GPUs, oldest first, and orders what is missing."""
        pending = [pod for pod in self.pods if pod.phase is Phase.PENDING]
        for pod in pending:
            if self._gpus.give(pod):
                pod.gpu_at = self._events.now
                self._start(pod)
        for _ in range(self._gpus.order(self.count(Phase.PENDING))):
            self._events.after(self._setup.supply.late_seconds, self._arrived)

    def _arrived(self) -> None:
        self._gpus.arrive()
        self._place()

    def _start(self, pod: Pod) -> None:
        pod.phase = Phase.STARTING
        spread = self._rng.uniform(1 - COLD_START_SPREAD, 1 + COLD_START_SPREAD)

        def ready() -> None:
            if pod.phase is Phase.STARTING:
                self._ready(pod)

        self._events.after(self._setup.profile.cold_start_seconds * spread, ready)

    def _ready(self, pod: Pod) -> None:
        setup = self._setup
        slowdown = setup.supply.late_slowdown if pod.is_late else 1.0
        profile = setup.profile.slowed(slowdown)
        pod.replica = Replica(
            pod.name, profile, setup.pace, self._ended, fast_forward=setup.fast_forward
        )
        pod.phase, pod.ready_at = Phase.READY, self._events.now
        self._tell()

    def _delete(self, pod: Pod) -> None:
        if pod.phase is not Phase.READY:
            self._leave(pod)
            return
        pod.phase = Phase.DRAINING
        self._tell()
        self._leave_when_empty(pod)
        self._events.after(self._setup.drain_seconds, lambda: self._kill(pod))

    def _leave_when_empty(self, pod: Pod) -> None:
        if pod.phase is Phase.DRAINING and pod.replica and not pod.replica.calls:
            self._events.after(LEAVE_SECONDS, lambda: self._leave(pod))

    def _kill(self, pod: Pod) -> None:
        """The drain has lasted too long."""
        if pod.phase is not Phase.DRAINING:
            return
        calls = self._lose(pod)
        self._leave(pod)
        for call in calls:
            self._on_lost(call, True)

    def _lose(self, pod: Pod) -> list[Call]:
        assert pod.replica is not None
        calls = list(pod.replica.calls.values())
        for call in calls:
            self._balancing.ended(call, pod.name, well=False)
        pod.replica = None
        return calls

    def _leave(self, pod: Pod) -> None:
        if pod.phase is Phase.GONE:
            return
        pod.phase, pod.gone_at = Phase.GONE, self._events.now
        self.pods.remove(pod)
        self.gone.append(pod)
        if pod.gpu_at is not None:
            self._gpus.take_back(pod)
        self._tell()
        self._place()

    def _tell(self) -> None:
        self._balancing.set_endpoints(self.replicas(Phase.READY), self.replicas(Phase.DRAINING))

    def _ended(self, call: Call, now: float) -> None:
        self._on_end(call, now)

    def _follow(self, pod: Pod) -> None:
        """Plans the end of the pod's step; a plan for another time than its `ends_at` is void."""
        replica = pod.replica
        if replica is None or replica.ends_at is None:
            return
        ends_at = replica.ends_at

        def end() -> None:
            if pod.replica is replica and replica.ends_at == ends_at:
                replica.finish_step()
                self._follow(pod)
                self._leave_when_empty(pod)

        self._events.at(ends_at, end)
