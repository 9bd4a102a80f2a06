"""Rules of rivals made for language models, against numbers reckoned by hand."""

import pytest
from seen_fleet import Seen, pod

from fastgen_cli.simulate.rivals import dynamo, wva
from fastgen_cli.simulate.scaler import PodReading, Traffic
from fastgen_runtime.engine.latency import StepCost


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ((pod(kv=0.65), pod(kv=0.72)), 2),  # spare (0.15 + 0.08) / 2 = 0.115: the docs' example
        ((pod(kv=0.65), pod(kv=0.76)), 3),  # spare 0.095 < 0.1
        ((pod(kv=0.2, waiting=3), pod(kv=0.2, waiting=2)), 3),  # spare queue 2.5 < 3
        ((pod(kv=0.2), pod(kv=0.2)), 1),  # one would hold 0.4: spare 0.4
        ((pod(kv=0.4), pod(kv=0.4)), 2),  # one would hold 0.8: no spare
        ((pod(kv=0.9), pod(kv=0.2, waiting=6)), 3),  # both saturated
        ((pod(kv=0.9), pod(kv=0.2)), 2),  # one is not, and one alone cannot shrink
    ],
)
def test_wva_saturation(pods: tuple[PodReading, ...], wanted: int) -> None:
    assert wva.saturation_target(pods, 2, 2, wva.Saturation()) == wanted


def test_wva_leaves_variants_with_pending_pods_alone() -> None:
    pods = (pod(kv=0.9), pod(kv=0.9))
    assert wva.saturation_target(pods, 3, 2, wva.Saturation()) == 3


def test_wva_keeps_its_last_number_without_metrics() -> None:
    rule, memory = wva.Saturation(), wva.WvaMemory()
    seen = Seen(replicas=2, ready=2, pods=(pod(kv=0.78), pod(kv=0.78)))
    replicas, memory = wva.by_saturation(seen, rule, memory)
    assert replicas == 3
    for pods in ((), None):
        gap = Seen(now=1100.0, replicas=3, ready=3, pods=pods)
        assert wva.by_saturation(gap, rule, memory)[0] == 3


@pytest.mark.parametrize(
    ("held", "waiting", "wanted"),
    [
        # 10,000 tokens × 0.8 = 8,000 a replica. Up: demand / 0.85 - 16,000; down: / 0.7.
        (5000, 0, 2),  # 10,000: needs 11,765; 16,000 - 14,286 is less than one
        (7500, 0, 3),  # 15,000 / 0.85 = 17,647: one more
        (2000, 0, 1),  # 4,000 / 0.7 = 5,714: 10,286 are spare
        (5000, 3, 3),  # and 6 × 601 wait: 13,606 / 0.85 = 16,007
    ],
)
def test_wva_tokens(held: float, waiting: float, wanted: int) -> None:
    rule = wva.Tokens(kv_tokens=10_000, batched_tokens=1e9, max_requests=1e9)
    traffic = Traffic(1.0, 601.0, 100.0)
    pods = tuple(pod(waiting=waiting, tokens_held=held) for _ in range(2))
    assert wva.tokens_target(pods, traffic, 2, 2, rule, ()) == wanted


def test_wva_takes_compute_for_the_bound_where_queues_were_saturated() -> None:
    """Seen full at 3,000 tokens: 2 × 3,000 hold 5,000 / 0.85 no more, two pending ones do."""
    rule = wva.Tokens(kv_tokens=10_000)
    traffic, pods = Traffic(1.0, 600.0, 100.0), tuple(pod(tokens_held=2600) for _ in range(2))
    assert wva.tokens_target(pods, traffic, 2, 2, rule, (3000.0,)) == 3
    assert wva.tokens_target(pods, traffic, 4, 2, rule, (3000.0,)) == 4


ENGINE = dynamo.Engine(StepCost(0.05, 0.0002, 0.0, 0.0), 2000, 64, 1_000_000)
LOAD = dynamo.Load(ENGINE, 1.0, 0.0, 0.1)


def test_dynamo_estimates_by_its_regression() -> None:
    """3,500 queued and 500 of its own: two chunks of 2,000; a step of 10 and a prompt's share."""
    traffic = Traffic(1.0, 500.0, 100.0)
    queued = pod(owed_tokens=3500)
    assert dynamo.estimated_ttft(queued, traffic, ENGINE) == pytest.approx(2 * (0.05 + 0.4))
    assert dynamo.estimated_itl(pod(running=10), traffic, ENGINE) == pytest.approx(
        0.05 + 0.0002 * (10 + 0.1 * 500)
    )


@pytest.mark.parametrize(
    ("owed", "ready", "wanted"),
    [
        ((8000, 8000), 2, 3),  # all above: 8,500 tokens take 1.95 s
        ((8000, 0), 2, 2),  # one below
        ((0, 0), 2, 1),  # all below 80 % of both
        ((3000, 3000), 2, 2),  # 3,500 tokens take 0.8 s: not below 0.8
        ((8000, 8000), 1, 2),  # a change is under way
    ],
)
def test_dynamo_load_mode(owed: tuple[float, float], ready: int, wanted: int) -> None:
    pods = tuple(pod(owed_tokens=tokens) for tokens in owed)
    seen = Seen(replicas=2, ready=ready, pods=pods, told=Traffic(1.0, 500.0, 100.0))
    assert dynamo.by_load(seen, LOAD, dynamo.LoadMemory())[0] == wanted


def test_dynamo_throughput_mode_divides_the_last_rate_by_an_engines() -> None:
    """64 answers: a step holds 64 + 0.64 × 500 tokens and takes 0.1268 s; 50 of them 0.11 s; at
    0.1 s there are 41, so an engine takes 41 / (100 × 0.0992) = 4.13 requests a second."""
    traffic = Traffic(10.0, 500.0, 100.0)
    assert dynamo.engine_rate(traffic, ENGINE, 0.1) == pytest.approx(41 / (100 * 0.0992))
    rule = dynamo.Throughput(ENGINE, 0.1)
    seen = Seen(told=traffic)
    assert dynamo.by_throughput(seen, rule, dynamo.ThroughputMemory())[0] == 3
    assert dynamo.by_throughput(Seen(told=None), rule, dynamo.ThroughputMemory())[0] == 4
