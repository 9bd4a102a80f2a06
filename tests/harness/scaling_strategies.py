"""Any signals, policies and memories of the autoscaler."""

from hypothesis import settings
from hypothesis import strategies as st

from fastgen_api.names import Outcome
from fastgen_api.spec import ScalingPolicy, ScalingRules
from fastgen_balancer.behavior import Change, Wished
from fastgen_balancer.capacity import Capacity, Seen
from fastgen_balancer.decision import Memory
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import (
    LocalSignals,
    MetricSignals,
    Outcomes,
    ReplicaReading,
    Signals,
    Unknown,
)
from fastgen_balancer.trend import Sample

NOW = 10_000.0
quick = settings(max_examples=60)
maybe = st.none() | st.floats(0, 1e6)
counts = st.integers(0, 1000)
readings = st.builds(
    ReplicaReading,
    instance=st.just("r"),
    age_seconds=st.floats(0, 60),
    whole_window=st.booleans(),
    work=maybe,
    running=maybe,
    running_floor=maybe,
    waiting=maybe,
    waiting_floor=maybe,
    waiting_growth=st.none() | st.floats(-100, 100),
    owed=maybe,
    owed_floor=maybe,
    kv_usage=st.none() | st.floats(0, 1),
    kv_usage_floor=st.none() | st.floats(0, 1),
)
outcomes = st.builds(
    Outcomes,
    counts=st.dictionaries(st.sampled_from(Outcome), st.floats(0, 1e4)),
    window_seconds=st.sampled_from([30.0, 300.0]),
)
known = st.builds(
    MetricSignals,
    replicas=st.lists(readings, max_size=5).map(tuple),
    arriving=maybe,
    arriving_requests=maybe,
    done=maybe,
    queued_requests=maybe,
    queue_growth=st.none() | st.floats(-100, 100),
    short=st.none() | outcomes,
    long=st.none() | outcomes,
    latest_requests=maybe,
)
unknown = st.just(Unknown("QueryFailed", "no answer"))
local = st.builds(LocalSignals, counts, counts, st.integers(0, 12), st.integers(0, 12))
signals = st.builds(
    Signals,
    replicas=st.integers(0, 12),
    local=local,
    metrics=known | unknown,
    capacity_blocked=st.booleans(),
)
rules = st.builds(
    ScalingRules,
    stabilization_window_seconds=st.sampled_from([0, 60, 300]),
    policies=st.lists(
        st.builds(
            ScalingPolicy,
            type=st.sampled_from(["Pods", "Percent"]),
            value=st.integers(1, 200),
            period_seconds=st.integers(1, 1800),
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    select_policy=st.sampled_from(["Max", "Min", "Disabled"]),
)
policies = st.builds(
    lambda low, more, up, down, ratio, tolerance: Policy(
        low, max(1, low + more), up, down, ratio, up_tolerance=tolerance, down_tolerance=tolerance
    ),
    st.integers(0, 4),
    st.integers(0, 8),
    rules,
    rules,
    st.none() | st.floats(0.5, 1),
    st.sampled_from([0.0, 0.1, 0.5]),
)
seen = st.none() | st.builds(Seen, st.floats(0, 1e6), st.floats(0, NOW))
memories = st.builds(
    Memory,
    at=st.none() | st.floats(NOW - 100, NOW + 100),
    capacity=st.builds(Capacity, seen, seen),
    wishes=st.lists(st.builds(Wished, st.floats(NOW - 400, NOW), st.integers(0, 12))).map(tuple),
    changes=st.lists(
        st.builds(Change, st.floats(NOW - 400, NOW), st.none() | st.integers(-4, 4))
    ).map(tuple),
    replicas=st.none() | st.integers(0, 12),
    pending_since=st.none() | st.floats(NOW - 1000, NOW),
    queued_since=st.none() | st.floats(NOW - 100, NOW),
    saturated_since=st.none() | st.floats(NOW - 100, NOW),
    missed_since=st.none() | st.floats(NOW - 100, NOW),
    known_at=st.none() | st.floats(NOW - 100, NOW),
    idle_since=st.none() | st.floats(NOW - 2000, NOW),
    request_work=st.none() | st.floats(0.001, 10),
    lost_at=st.none() | st.floats(NOW - 8000, NOW),
    samples=st.lists(st.builds(Sample, st.floats(NOW - 300, NOW), st.floats(0, 100))).map(tuple),
)
