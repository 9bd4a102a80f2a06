"""Each rival's rule against numbers reckoned by hand from what its makers published."""

import pytest
from seen_fleet import Seen, fleet

from fastgen_cli.simulate.monitoring import Outage
from fastgen_cli.simulate.profile import LLAMA8B_L4
from fastgen_cli.simulate.rivals import hpa, keda, knative, ray_serve
from fastgen_cli.simulate.rivals.grid import RIVALS, Rival, World
from fastgen_cli.simulate.scaler import Observation, PodReading, Traffic
from fastgen_cli.simulate.scenarios import PROFILE, SLO_OF_ALL
from fastgen_cli.simulate.simulation import Setup, simulate
from fastgen_cli.simulate.workload import poisson, step


@pytest.mark.parametrize(
    ("each", "wanted"),
    [
        (5, 4),  # at the target
        (5.4, 4),  # within 10 %
        (6, 5),  # 24 / 5 = 4.8
        (15, 8),  # 60 / 5 = 12, but at most doubled or four more in 15 s
        (1, 4),  # 4 / 5: one would do, but the window of 300 s remembers four
    ],
)
def test_hpa_on_running_requests(each: float, wanted: int) -> None:
    seen = Seen(pods=fleet(4, running=each))
    assert hpa.by_running_requests(seen, hpa.RunningRequests(), hpa.NEW)[0] == wanted


def test_hpa_shrinks_when_its_window_is_over() -> None:
    rule, memory, replicas = hpa.RunningRequests(), hpa.NEW, 4
    for now in range(0, 301, 15):
        seen = Seen(now=float(now), replicas=replicas, pods=fleet(4, running=1))
        replicas, memory = hpa.by_running_requests(seen, rule, memory)
        assert replicas == (4 if now < 300 else 1)


@pytest.mark.parametrize("pods", [None, ()])
def test_hpa_without_its_metric_changes_nothing(pods: tuple[PodReading, ...] | None) -> None:
    assert hpa.by_running_requests(Seen(pods=pods), hpa.RunningRequests(), hpa.NEW)[0] == 4


@pytest.mark.parametrize(
    ("p95", "ready", "wanted"),
    [
        (0.54, 4, 4),  # within 10 %
        (0.75, 4, 6),  # 1.5 × 4
        (2.0, 4, 8),  # 4 × 4 = 16, at most doubled
        (0.75, 2, 4),  # of the ready ones: 1.5 × 2 = 3, and the window remembers four
        (None, 4, 4),
    ],
)
def test_hpa_on_a_latency_ratio(p95: float | None, ready: int, wanted: int) -> None:
    seen = Seen(p95=p95, ready=ready)
    assert hpa.by_latency_ratio(seen, hpa.LatencyRatio(), hpa.NEW)[0] == wanted


@pytest.mark.parametrize(
    ("waiting", "wanted"),
    [(5, 4), (10, 8), (7, 6), (0, 4)],  # 20/5, 40/5, 28/5 → 6, 0 → the window remembers
)
def test_keda_on_queue_depth(waiting: float, wanted: int) -> None:
    seen = Seen(pods=fleet(4, waiting=waiting))
    assert keda.by_queue_depth(seen, keda.QueueDepth(), keda.KedaMemory())[0] == wanted


def test_keda_takes_missing_metrics_for_an_empty_queue() -> None:
    """keda#3065: the fleet falls to the minimum at peak, once the window of 300 s is over."""
    memory, replicas = keda.KedaMemory(), 4
    for now in range(0, 301, 15):
        seen = Seen(now=float(now), replicas=replicas, pods=())
        replicas, memory = keda.by_queue_depth(seen, keda.QueueDepth(), memory)
    assert replicas == 1


def test_keda_holds_while_prometheus_cannot_be_reached() -> None:
    memory = keda.KedaMemory()
    for now in range(0, 601, 15):
        seen = Seen(now=float(now), pods=None)
        replicas, memory = keda.by_queue_depth(seen, keda.QueueDepth(), memory)
        assert replicas == 4


def test_keda_falls_back_at_the_third_failure() -> None:
    rule = keda.QueueDepth(ignore_null_values=False, fallback_replicas=6)
    memory, found = keda.KedaMemory(), []
    for now in (0.0, 15.0, 30.0):
        replicas, memory = keda.by_queue_depth(Seen(now=now, pods=()), rule, memory)
        found.append(replicas)
    assert found == [4, 4, 6]
    _, memory = keda.by_queue_depth(Seen(now=45.0, replicas=6, pods=fleet(6)), rule, memory)
    assert memory.failures == 0


@pytest.mark.parametrize(
    ("stable", "panic", "wanted", "panics"),
    [
        (140, 140, 2, False),  # 140 / 70 = 2; 4 / 2 is as far down as it goes
        (70, 70, 2, False),
        (420, 420, 6, False),  # 6 / 4 < 2
        (300, 560, 8, True),  # 560 / 70 = 8 = 2 × 4
        (0, 0, 2, False),
    ],
)
def test_knative_scales_by_concurrency(
    stable: float, panic: float, wanted: int, panics: bool
) -> None:
    seen = Seen(means={60.0: stable, 6.0: panic})
    replicas, memory = knative.by_concurrency(seen, knative.Concurrency(), knative.KpaMemory())
    assert (replicas, memory.panicked_at is not None) == (wanted, panics)


def test_knative_never_shrinks_in_panic_and_leaves_it_after_a_stable_window() -> None:
    rule, memory = knative.Concurrency(), knative.KpaMemory()
    seen = Seen(now=0.0, means={60.0: 300, 6.0: 700})
    replicas, memory = knative.by_concurrency(seen, rule, memory)
    assert replicas == 10
    calm = {60.0: 210.0, 6.0: 210.0}
    for now, wanted in ((30.0, 10), (60.0, 10), (62.0, 5)):
        seen = Seen(now=now, replicas=10, ready=10, means=calm)
        replicas, memory = knative.by_concurrency(seen, rule, memory)
        assert replicas == wanted


def test_ray_serve_waits_thirty_seconds_to_grow() -> None:
    rule, memory = ray_serve.OngoingRequests(), ray_serve.RayMemory()
    found = []
    for _ in range(32):
        replicas, memory = ray_serve.by_ongoing_requests(Seen(means={30.0: 20}), rule, memory)
        found.append(replicas)
    assert found[:30] == [4] * 30
    assert found[30] == 10  # 20 requests at two each


def test_ray_serve_waits_ten_minutes_to_shrink_and_starts_over_when_load_returns() -> None:
    rule, memory = ray_serve.OngoingRequests(), ray_serve.RayMemory()
    for _ in range(600):
        replicas, memory = ray_serve.by_ongoing_requests(Seen(means={30.0: 2}), rule, memory)
        assert replicas == 4
    assert memory.counter == -600
    assert ray_serve.by_ongoing_requests(Seen(means={30.0: 2}), rule, memory)[0] == 1
    _, memory = ray_serve.by_ongoing_requests(Seen(means={30.0: 8}), rule, memory)
    assert memory.counter == 0


def test_every_setting_of_every_grid_can_decide() -> None:
    world = World(SLO_OF_ALL, LLAMA8B_L4, 16)
    means = dict.fromkeys((60.0, 6.0, 30.0), 10.0)
    seen: Observation = Seen(
        pods=fleet(4, 5, 1, 0.3), means=means, p95=0.7, told=Traffic(4.0, 900.0, 150.0)
    )
    for rival in RIVALS:
        texts = [setting.text for setting in (rival.published, *rival.grid)]
        assert len(set(texts)) == len(texts) >= 4
        for setting in (rival.published, *rival.grid):
            scaler = setting.make(world)
            assert scaler.interval_seconds > 0
            assert 1 <= scaler.decide(seen) <= 64


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_every_rival_scales_a_simulated_fleet(rival: Rival) -> None:
    """A load of three replicas meets one, and goes again; metrics are missing for a while."""
    trace = poisson(step(0.2, 4.0, 20.0, 110.0), 4.0, 150.0, 1)
    setup = Setup(trace, 150.0, PROFILE, SLO_OF_ALL, max_replicas=6, outages=(Outage(65.0, 80.0),))
    result = simulate(setup, rival.grid[0].make(World(SLO_OF_ALL, PROFILE, 6)))
    assert result.requests == len(trace)
    assert result.most_replicas > 1
    assert result.replica_hours < 6 * 150 / 3600
