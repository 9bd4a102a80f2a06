"""Specs that the API server holds and this version does not take."""

from typing import Any

import pytest
from observed_objects import OWNER

from fastgen_operator.observed import Problem
from fastgen_operator.reconcile import declared_children
from fastgen_operator.settings import Images, Settings
from fastgen_operator.spec_reading import read_spec

SETTINGS = Settings(Images("runtime:1", "control:1"))


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"model": {"source": "file:///m"}, "engine": {"kvBlockSize": "x"}},
         "spec.engine.kvBlockSize"),
        ({"engine": {}}, "model"),
        ({"model": {"source": "file:///m"},
          "podTemplate": {"spec": {"volumes": [{"emptyDir": {}}]}}},
         "spec.podTemplate.spec.volumes[0]"),
    ],
)  # fmt: skip
def test_a_stored_spec_that_no_longer_fits_is_named(raw: dict[str, Any], path: str) -> None:
    spec = read_spec(raw)
    problem = spec if isinstance(spec, Problem) else declared_children(OWNER, spec, SETTINGS)
    assert isinstance(problem, Problem)
    assert problem.reason == ("PodTemplateInvalid" if "podTemplate" in raw else "InvalidSpec")
    assert path in problem.message
