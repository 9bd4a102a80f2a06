"""What an upgrade of the operator leaves alone: pods of specs that the release before knew."""

import json
from pathlib import Path
from typing import Any

import pytest
from observed_objects import OWNER

from fastgen_api.spec import Model, PodTemplate, Spec, parse
from fastgen_operator.children import declared_fingerprint, make_children
from fastgen_operator.delivery import Delivered, Delivery
from fastgen_operator.drift import keep_template
from fastgen_operator.rollout import Detour, RolloutDecision, carry_out
from fastgen_operator.settings import Images, Settings

PREVIOUS = json.loads((Path(__file__).parent / "golden/previous-declared.json").read_text())
"""Specs, and the fingerprints that the release before left on the Deployments made of them."""


@pytest.mark.parametrize("name", PREVIOUS)
def test_a_spec_of_the_release_before_declares_the_same_pods(name: str) -> None:
    """A pod template stays while its fingerprint does: a new field must not move it."""
    known = PREVIOUS[name]
    spec = parse(known["spec"])
    assert declared_fingerprint(spec) == known["replicas"]
    assert declared_fingerprint(spec, "http://prometheus:9090") == known["balancers"]


def test_an_edit_of_what_pods_are_made_of_declares_others() -> None:
    spec = PREVIOUS["everything"]["spec"]
    edited = parse(spec | {"nodeSelector": {"disk": "hdd"}})
    assert declared_fingerprint(edited) != PREVIOUS["everything"]["replicas"]


def made_by(version: int) -> dict[str, Any]:
    """The replica Deployment of a model that each pod downloads, as an operator makes it."""
    theirs = PodTemplate(spec={"initContainers": [{"name": "warm", "image": "team/warm:1"}]})
    spec = Spec(Model("hf://owner/name"), pod_template=theirs)
    delivery = Delivery(Delivered(key="12345678", path="name", revision="a" * 40, size_bytes=1))
    settings = Settings(Images(f"runtime:{version}", f"control:{version}"))
    made = make_children(OWNER, spec, settings, delivery)
    return next(
        each
        for each in made
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "chat-replica")
    )


def test_an_operator_upgrade_restarts_nothing_with_init_containers_and_on_a_detour() -> None:
    running = made_by(1)
    assert len(running["spec"]["template"]["spec"]["initContainers"]) == 2
    kept = keep_template(made_by(2), running, stuck=False)
    assert kept["spec"]["template"] == running["spec"]["template"]
    assert kept["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    carried = carry_out(kept, RolloutDecision(Detour(0, 1, "no GPU")), wanted=1)
    assert carried["spec"]["template"] == running["spec"]["template"]
