"""What the picker is told by a FastGenDeployment, and what Envoy bears of it."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from fastgen_api.spec import parse
from fastgen_balancer.envoy_listener import Limits, listener
from fastgen_balancer.envoy_routes import Reach, routes
from fastgen_balancer.envoy_security import Security
from fastgen_balancer.reception import HOLD_MARGIN_SECONDS
from fastgen_balancer.settings import MAX_HOLD_SECONDS, settings_of

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"source": "file:///m.gguf"}


@pytest.mark.parametrize(
    ("scaling", "seconds"),
    [
        ({}, 0),
        ({"minReplicas": 1}, 0),
        ({"minReplicas": 0}, 600),
        ({"minReplicas": 0, "scaleToZero": {"idleSeconds": 5}}, 600),
        ({"minReplicas": 0, "scaleToZero": {"holdSeconds": 45}}, 45),
        # Whoever scales may bring the first replica.
        ({"minReplicas": 0, "mode": "Disabled", "scaleToZero": {"holdSeconds": 45}}, 45),
    ],
)
def test_a_request_is_held_where_a_first_replica_may_come(
    scaling: dict[str, Any], seconds: int
) -> None:
    settings = settings_of(parse({"model": MODEL, "scaling": scaling}))
    assert settings.hold_seconds == seconds
    assert settings.drain_limit_seconds == seconds + settings.drain_seconds


def test_envoy_bears_the_longest_hold_that_may_be_declared() -> None:
    reference = runpy.run_path(str(ROOT / "docs/api_reference.py"))
    schema = reference["read_definition"]()["properties"]["spec"]["properties"]["scaling"]
    hold = schema["properties"]["scaleToZero"]["properties"]["holdSeconds"]
    assert hold["maximum"] == MAX_HOLD_SECONDS
    limits = Limits()
    assert limits.max_hold_seconds > MAX_HOLD_SECONDS + HOLD_MARGIN_SECONDS
    # From the last byte of the request to the first of the answer nothing moves.
    assert limits.stream_idle_seconds - 120 > MAX_HOLD_SECONDS


def test_envoy_has_the_bounds_that_it_is_given() -> None:
    limits = Limits(max_hold_seconds=7, stream_idle_seconds=9)
    config = listener("127.0.0.1", 1, limits, Security(), "/run")
    manager = config["filter_chains"][0]["filters"][0]["typed_config"]
    (processor,) = [each for each in manager["http_filters"] if "ext_proc" in each["name"]]
    assert processor["typed_config"]["max_message_timeout"] == "7s"
    assert manager["stream_idle_timeout"] == "9s"
    (host,) = routes(Reach(("chat", "batch"), "chat", ("chat",)), 9)["virtual_hosts"]
    assert host["request_body_buffer_limit"] == 9
    routed = [route["route"] for route in host["routes"] if "route" in route]
    assert routed
    assert {route["timeout"] for route in routed} == {"0s"}
