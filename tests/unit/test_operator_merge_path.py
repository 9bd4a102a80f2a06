"""An API server's words about a merged pod template, with the paths of who wrote it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_operator.merge import merge
from fastgen_operator.template_path import in_their_words

OURS: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "containers": [
            {"name": "runtime", "env": [{"name": "HOME"}], "ports": [{"containerPort": 8000}]}
        ],
        "volumes": [{"name": "slo"}],
        "nodeSelector": {"a": "b"},
    },
}
THEIRS: dict[str, Any] = {
    "metadata": {"labels": {"x y": "1"}},
    "spec": {
        "nodeName": 5,
        "containers": [
            {"name": "side"},
            {"name": "runtime", "env": [{"name": "B"}], "enviroment": 3},
        ],
        "volumes": [{"name": "v"}],
        "tolerations": [{"key": "a"}, {"key": "!"}],
    },
}
MERGED = merge(OURS, THEIRS, "spec.podTemplate")


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("spec.template.spec.containers[1].image: Required",
         "spec.podTemplate.spec.containers[0].image: Required"),
        ("[spec.template.spec.containers[0].env[1].name: Bad, spec.template.spec.volumes[1].x: A]",
         "[spec.podTemplate.spec.containers[1].env[0].name: Bad, "
         "spec.podTemplate.spec.volumes[0].x: A]"),
        ('.spec.template.spec.containers[name="runtime"].enviroment: field not declared',
         "spec.podTemplate.spec.containers[1].enviroment: field not declared"),
        ('.spec.template.spec.containers[name="runtime"].env[name="B"].q: no',
         "spec.podTemplate.spec.containers[1].env[0].q: no"),
        ("spec.template.spec.tolerations[1].key: Invalid",
         "spec.podTemplate.spec.tolerations[1].key: Invalid"),
        ("spec.template.metadata.labels: Invalid", "spec.podTemplate.metadata.labels: Invalid"),
        (".spec.template.spec.nodeName: expected string",
         "spec.podTemplate.spec.nodeName: expected string"),
        ('spec.template.spec.containers[0].volumeMounts[0].name: Not found: "z"',
         'spec.podTemplate.spec.containers[1].volumeMounts: Not found: "z"'),
        # What others wrote keeps its path.
        ("spec.template.spec.nodeSelector: bad", "spec.template.spec.nodeSelector: bad"),
        ("spec.template.spec.volumes[0].name: bad", "spec.template.spec.volumes[0].name: bad"),
        ("spec.template.spec.containers[0].env[0]: bad",
         "spec.template.spec.containers[0].env[0]: bad"),
        ("spec.template.spec.initContainers[0].name: bad",
         "spec.template.spec.initContainers[0].name: bad"),
        ("spec.template.spec.tolerations[7].key: no", "spec.template.spec.tolerations[7].key: no"),
        ("spec.replicas: bad", "spec.replicas: bad"),
    ],
)  # fmt: skip
def test_paths_are_those_of_who_wrote_them(told: str, wanted: str) -> None:
    assert in_their_words(told, MERGED, THEIRS) == wanted


@given(st.text(alphabet='spectmla.[]="0 ', max_size=60))
def test_any_words_pass(text: str) -> None:
    in_their_words(f"spec.template{text}", MERGED, THEIRS)
