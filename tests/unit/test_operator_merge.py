"""A user's pod template over the operator's own."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.spec import Model, PodTemplate, Spec
from fastgen_operator.children import make_children
from fastgen_operator.merge import TemplateError, merge
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings

SETTINGS = Settings(Images("runtime:1", "control:1"))
OWNER = Owner("chat", "team", "uid-1")
SPEC = Spec(Model("file:///models/a.gguf"))


def template(spec: Spec) -> Any:
    made = {each["metadata"]["name"]: each for each in make_children(OWNER, spec, SETTINGS)
            if each["kind"] == "Deployment"}  # fmt: skip
    return made["chat-replica"]["spec"]["template"]


def test_the_pod_template_is_merged_last() -> None:
    theirs = PodTemplate(
        metadata={"annotations": {"team": "a"}},
        spec={
            "hostNetwork": True,
            "tolerations": [{"key": "new"}],
            "containers": [
                {"name": "runtime", "env": [{"name": "HOME", "value": "/home"}]},
                {"name": "sidecar", "image": "side:1"},
            ],
            "volumes": [{"name": "tmp", "hostPath": {"path": "/fast"}}],
        },
    )
    spec = msgspec.structs.replace(SPEC, pod_template=theirs, tolerations=({"key": "old"},))
    made = template(spec)
    assert made["metadata"]["annotations"]["team"] == "a"
    assert made["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
    pod = made["spec"]
    assert pod["hostNetwork"] is True
    assert pod["tolerations"] == [{"key": "new"}]
    assert [each["name"] for each in pod["containers"]] == ["runtime", "sidecar"]
    environment = {each["name"]: each for each in pod["containers"][0]["env"]}
    assert environment["HOME"] == {"name": "HOME", "value": "/home"}
    assert "POD_NAME" in environment
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["tmp"] == {"name": "tmp", "hostPath": {"path": "/fast"}}
    assert "slo" in volumes


def test_a_pod_template_without_a_key_is_refused_by_its_path() -> None:
    theirs = PodTemplate(spec={"containers": [{"name": "runtime", "env": [{"value": "x"}]}]})
    spec = msgspec.structs.replace(SPEC, pod_template=theirs)
    with pytest.raises(TemplateError, match=r"spec\.podTemplate\.spec\.containers\[0\]\.env\[0\]"):
        make_children(OWNER, spec, SETTINGS)


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
MAPS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@given(ours=MAPS, theirs=MAPS)
def test_merging_twice_is_merging_once(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    once = merge(ours, theirs, "spec")
    assert merge(once, theirs, "spec") == once
    assert merge(ours, {}, "spec") == ours
