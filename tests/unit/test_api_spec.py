"""Reading a FastGenDeployment's spec."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.scaling import replicas_wanted
from fastgen_api.spec import (
    SLO,
    BudgetMode,
    RolloutStrategy,
    Routing,
    ScalingMode,
    Spec,
    TimePerOutputToken,
    TimeToFirstToken,
    TokenGap,
    parse,
    slo_from_json,
    slo_json,
)

MODEL = {"source": "file:///models/m.gguf"}
targets = st.integers(min_value=1, max_value=600_000)
slos = st.builds(
    SLO,
    target_percent=st.sampled_from(["99", "99.9", "50"]),
    time_to_first_token=st.none() | st.builds(TimeToFirstToken, targets, targets),
    time_per_output_token=st.none() | st.builds(TimePerOutputToken, targets),
    token_gap=st.none() | st.builds(TokenGap, targets),
)


def test_defaults_claim_only_what_this_version_does() -> None:
    spec = parse({"model": MODEL})
    assert spec.engine.token_budget.mode is BudgetMode.AUTO
    assert spec.engine.prefix_caching is True
    assert spec.balancer.routing is Routing.PREFIX
    assert spec.rollout.strategy is RolloutStrategy.AUTO


def test_each_direction_of_scaling_has_its_own_defaults() -> None:
    """A rule left out takes the default of its direction."""
    behavior = {"scaleDown": {"selectPolicy": "Min"}, "scaleUp": {"stabilizationWindowSeconds": 30}}
    found = parse({"model": MODEL, "scaling": {"behavior": behavior}}).scaling.behavior
    assert found.scale_down.stabilization_window_seconds is None
    assert found.scale_down.select_policy == "Min"
    assert [(p.type, p.value, p.period_seconds) for p in found.scale_down.policies] == [
        ("Percent", 100, 15)
    ]
    assert found.scale_up.stabilization_window_seconds == 30
    assert [(p.type, p.value, p.period_seconds) for p in found.scale_up.policies] == [
        ("Percent", 100, 15),
        ("Pods", 4, 15),
    ]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({}, "model"),
        ({"model": {"source": 5}}, "$.model.source"),
        ({"model": MODEL, "scaling": {"mode": "auto"}}, "$.scaling.mode"),
        ({"model": MODEL, "slo": {"tokenGap": {}}}, "maxMilliseconds"),
        ({"model": MODEL, "engine": {"kvBlockSize": "64"}}, "$.engine.kvBlockSize"),
    ],
)
def test_a_resource_that_no_longer_fits_is_refused_by_field(raw: Any, path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refusal:
        parse(raw)
    assert path in str(refusal.value)


def test_a_field_of_a_later_version_does_not_stop_an_older_operator() -> None:
    assert parse({"model": MODEL | {"later": 1}, "later": {}}).model.source == MODEL["source"]


@given(
    replicas=st.integers(0, 1000),
    low=st.integers(0, 1000),
    span=st.integers(0, 1000),
    mode=st.sampled_from(ScalingMode),
)
def test_replicas_are_held_between_the_bounds_in_auto_only(
    replicas: int, low: int, span: int, mode: ScalingMode
) -> None:
    scaling = {"mode": str(mode), "minReplicas": low, "maxReplicas": low + span}
    wanted = replicas_wanted(parse({"model": MODEL, "replicas": replicas, "scaling": scaling}))
    if mode is ScalingMode.AUTO:
        assert low <= wanted <= low + span
        assert wanted == replicas or not low <= replicas <= low + span
    else:
        assert wanted == replicas


@given(slos)
def test_slo_survives_its_way_to_the_replica(slo: SLO) -> None:
    assert slo_from_json(slo_json(slo)) == slo


def test_slo_file_has_the_form_of_the_resource() -> None:
    raw = {"tokenGap": {"maxMilliseconds": 250}, "targetPercent": "99.9"}
    spec = parse({"model": MODEL, "slo": raw})
    assert json.loads(slo_json(spec.slo)) == raw


def test_slo_file_errors_name_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.tokenGap\.maxMilliseconds"):
        slo_from_json('{"tokenGap": {"maxMilliseconds": "soon"}}')


def test_specs_are_values() -> None:
    assert parse({"model": MODEL}) == Spec(model=parse({"model": MODEL}).model)
    with pytest.raises(AttributeError):
        parse({"model": MODEL}).replicas = 2
