"""A leader's ticks: what it reads, decides, writes and tells, and what it leaves to the next."""

from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from scaling_scenes import IDLE, local

from fastgen_api.foreign_scaler import ForeignScaler
from fastgen_api.names import Metric
from fastgen_api.spec import parse
from fastgen_balancer.autoscaler_metrics import AutoscalerMetrics
from fastgen_balancer.deployment_access import Deployment
from fastgen_balancer.heritage import Heritage
from fastgen_balancer.leader import Autoscaler
from fastgen_balancer.memo import read
from fastgen_balancer.promql import Windows
from fastgen_balancer.signals import LocalSignals, MetricSignals

NOW = 1_700_000_000.0
HUNGRY = local(1, queued=8, in_flight=4, saturated=1)


@dataclass
class Resource:
    """One FastGenDeployment, of which writes are kept; `read` gives what they made of it."""

    mode: str = "Auto"
    replicas: int = 1
    status: dict[str, Any] = field(default_factory=dict)
    scaled: list[int] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    name: str = "chat"
    namespace: str = "team"

    async def read(self) -> Deployment:
        spec = {
            "model": {"source": "file:///m"},
            "slo": {"timeToFirstToken": {"milliseconds": 500}},
            "replicas": self.replicas,
            "scaling": {"mode": self.mode, "maxReplicas": 8},
        }
        return Deployment("uid", "1", 1, False, parse(spec), dict(self.status))

    async def scale(self, _: Deployment, replicas: int) -> None:
        self.replicas = replicas
        self.scaled.append(replicas)

    async def apply_status(self, _: Deployment, status: dict[str, Any]) -> None:
        old = {each["type"]: each for each in self.status.get("conditions", ())}
        new = {each["type"]: each for each in status["conditions"]}
        self.status |= status | {"conditions": list((old | new).values())}

    async def tell(self, _: Deployment, reason: str, note: str) -> None:
        self.events.append((reason, note))


@dataclass
class Lease:
    """A lease that is held, and what its holders leave."""

    memo: str = ""
    seconds_left: float = 10.0
    write_seconds: float = 4.0
    terms: int = 1
    decided_at: float | None = None
    writes: int = 0
    is_away: bool = False

    @property
    def leads(self) -> bool:
        return self.seconds_left > 0

    async def take(self) -> str:
        return self.memo

    async def leave(self, memo: str) -> None:
        if self.is_away:
            raise TimeoutError
        self.memo, self.writes = memo, self.writes + 1


class Life:
    """A leader over one resource; nothing answers at its Prometheus."""

    def __init__(self, resource: Resource, lease: Lease, seen: LocalSignals = HUNGRY) -> None:
        self.seen, self.registry = seen, CollectorRegistry()
        self.scalers: tuple[ForeignScaler, ...] = ()
        self.autoscaler = Autoscaler(
            resource,
            lease,
            Heritage(lease, lease),
            httpx2.AsyncClient(),
            self.local_signals,
            "http://127.0.0.1:9",
            Windows(),
            AutoscalerMetrics(self.registry, "chat", "team"),
            lambda: self.scalers,
        )

    async def local_signals(self) -> LocalSignals:
        return self.seen

    async def ticks(self, begin: float, seconds: int, every: int = 2) -> None:
        for second in range(0, seconds, every):
            await self.autoscaler.tick(NOW + begin + second)

    def metric(self, name: str, **labels: str) -> float | None:
        every = {"deployment": "chat", "deployment_namespace": "team"} | labels
        return self.registry.get_sample_value(name, every)


async def test_what_is_decided_is_written_told_and_counted() -> None:
    resource, lease = Resource(), Lease()
    life = Life(resource, lease)
    await life.ticks(0, 2)
    assert resource.scaled == [2]
    assert [reason for reason, _ in resource.events] == ["ScaledUp"]
    decision = resource.status["lastDecision"]
    assert (decision["replicas"], decision["rule"]) == (2, "QueueAtBalancer")
    assert decision["inputs"]["queuedHere"] == "8"
    assert decision["inputs"]["metrics"] == "Unreachable"
    assert len(decision["inputs"]) <= 32
    assert life.metric(Metric.DECISIONS, rule="QueueAtBalancer") == 1
    assert life.metric(Metric.CAPACITY) == 1
    assert life.metric(Metric.DEMAND) is None, "what is not known is no 0"
    memo = read(lease.memo)
    assert memo is not None
    assert memo.memory.decided == 2


async def test_a_trouble_that_lasts_is_told_once_with_its_reason() -> None:
    resource = Resource(replicas=2)
    life = Life(resource, Lease(), local(2))
    await life.ticks(0, 28)
    assert resource.events == []
    await life.ticks(28, 200)
    ((reason, note),) = resource.events
    assert reason == "ScalingDecision"
    assert note.startswith("2 replicas, NoSignal: Prometheus cannot be reached")
    assert life.metric(Metric.DECISIONS, rule="NoSignal") == 114


async def test_full_nodes_are_read_from_the_resource() -> None:
    blocked = {"type": "CapacityBlocked", "status": "True", "reason": "Unschedulable"}
    resource = Resource(replicas=3, status={"conditions": [blocked]})
    life = Life(resource, Lease())
    await life.ticks(0, 60)
    assert resource.scaled == []
    assert resource.status["lastDecision"]["blockers"] == ["CapacityBlocked"]
    assert life.metric(Metric.BLOCKED_DECISIONS, blocker="CapacityBlocked") == 30


async def test_recommend_decides_and_changes_nothing() -> None:
    resource = Resource(mode="Recommend")
    await Life(resource, Lease()).ticks(0, 4)
    assert resource.scaled == []
    assert resource.status["lastDecision"]["replicas"] == 2
    assert [reason for reason, _ in resource.events] == ["ScalingDecision"]


async def test_a_foreign_scaler_is_given_way_to() -> None:
    resource = Resource()
    life = Life(resource, Lease())
    life.scalers = (ForeignScaler("hpa", "FastGenDeployment", "chat"),)
    await life.ticks(0, 4)
    assert resource.scaled == []
    assert resource.status["lastDecision"]["blockers"] == ["ForeignScaler"]


async def test_the_next_leader_goes_on_where_the_last_one_was() -> None:
    """Replicas stay pending for as long as if nothing had happened, and are not asked for twice."""
    resource, lease = Resource(), Lease()
    await Life(resource, lease).ticks(0, 20)
    assert resource.scaled == [2]
    second = Life(resource, lease)
    await second.ticks(36, 200)
    assert resource.scaled == [2]
    memo = read(lease.memo)
    assert memo is not None
    assert memo.memory.pending_since == NOW + 2
    assert [change.delta for change in memo.memory.changes] == [1]


async def test_a_lead_that_was_lost_and_won_between_two_ticks_heeds_who_led_meanwhile() -> None:
    """Its own memory is of before, and must not go out over the other's words."""
    resource, lease = Resource(), Lease()
    life = Life(resource, lease)
    await life.ticks(0, 20)
    assert resource.scaled == [2]
    other = Life(resource, lease)
    other.seen = local(2)
    await other.ticks(20, 40)
    resource.replicas, left = 5, lease.memo
    lease.terms += 1
    life.seen = local(5)
    await life.ticks(62, 2)
    before, memo = read(left), read(lease.memo)
    assert before is not None
    assert memo is not None
    assert before.memory.changes == memo.memory.changes[:-1], "what happened under the other"
    assert memo.memory.changes[-1].delta == 3


async def test_a_tick_that_a_new_term_overtakes_leaves_no_memo() -> None:
    """It read and decided by what was known before the other one led."""
    resource, lease = Resource(), Lease()
    life = Life(resource, lease)
    await life.ticks(0, 2)

    async def lose_and_win() -> LocalSignals:
        lease.memo, lease.terms, lease.decided_at = "the other's", lease.terms + 1, NOW + 99
        return HUNGRY

    life.autoscaler._local_signals = lose_and_win
    await life.ticks(2, 2)
    assert (lease.memo, lease.decided_at) == ("the other's", NOW + 99)


async def test_without_traffic_the_memory_is_written_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And still the next leader knows that nothing arrived all the time."""

    async def rest(*_: Any) -> MetricSignals:
        return IDLE

    monkeypatch.setattr("fastgen_balancer.leader.read_metrics", rest)
    resource, lease = Resource(), Lease()
    await Life(resource, lease, local(1)).ticks(0, 20)
    begun, lease.writes = lease.writes, 0
    assert begun <= 3
    life = Life(resource, lease, local(1))
    await life.ticks(20, 600)
    assert 8 <= lease.writes <= 11
    assert lease.decided_at == NOW + 618
    memo = read(lease.memo)
    assert memo is not None
    assert memo.memory.idle_since == NOW
    # Killed in the middle of a minute: its lease ends 15 s later.
    after = Life(resource, lease, local(1))
    await after.ticks(635, 2)
    assert after.autoscaler._state is not None
    memory = after.autoscaler._state.memory
    assert memory.idle_since == NOW
    assert [wish.replicas for wish in memory.wishes] == [1]


async def test_a_memory_that_could_not_be_kept_is_no_decision() -> None:
    resource, lease = Resource(), Lease()
    life = Life(resource, lease)
    await life.ticks(0, 4)
    assert lease.decided_at == NOW + 2
    lease.is_away, resource.replicas = True, 7
    await life.ticks(4, 6)
    assert lease.decided_at == NOW + 2, "the next leader must see the time since as a gap"
    lease.is_away = False
    await life.ticks(10, 2)
    assert lease.decided_at == NOW + 10


async def test_reversals_of_earlier_leaders_are_not_counted_again() -> None:
    resource, lease = Resource(), Lease()
    first = Life(resource, lease, local(1))
    for second, replicas in enumerate((1, 3, 2)):
        resource.replicas = replicas
        await first.ticks(second, 1)
    assert first.metric(Metric.REVERSALS) == 1
    next_ = Life(resource, lease, local(2))
    await next_.ticks(20, 4)
    assert next_.metric(Metric.REVERSALS) == 0


@pytest.mark.parametrize("seconds_left", [0.0, -3.0])
async def test_who_may_lead_no_longer_writes_nothing(seconds_left: float) -> None:
    resource = Resource()
    await Life(resource, replace(Lease(), seconds_left=seconds_left)).ticks(0, 60)
    assert (resource.scaled, resource.events, resource.status) == ([], [], {})


def test_series_exist_from_the_start_and_go_with_the_lead() -> None:
    registry = CollectorRegistry()
    metrics = AutoscalerMetrics(registry, "chat", "team")
    text = generate_latest(registry).decode()
    for rule in ("FromZero", "ToZero", "NoSignal"):
        assert f'rule="{rule}"' in text
    for blocker in ("CapacityBlocked", "Flapping", "Tolerance"):
        assert f'blocker="{blocker}"' in text
    metrics.leads(False)
    assert f"{Metric.DESIRED_REPLICAS}{{" not in generate_latest(registry).decode()
