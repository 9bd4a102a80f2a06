"""What an upgrade of the operator leaves alone: pods of specs that the release before knew."""

import json
from pathlib import Path

import pytest

from fastgen_api.spec import parse
from fastgen_operator.children import declared_fingerprint

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
