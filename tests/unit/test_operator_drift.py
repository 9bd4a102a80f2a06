"""What is applied again, what is left alone, and whose an object is."""

import copy
from typing import Any

import pytest

from fastgen_api import names
from fastgen_api.spec import Engine, Model, Resources, Spec
from fastgen_operator.children import make_children
from fastgen_operator.drift import (
    content_fingerprint,
    is_applied,
    keep_template,
    with_applied_annotation,
)
from fastgen_operator.fingerprint import POD_TEMPLATE_ANNOTATION, TEMPLATE_ANNOTATION
from fastgen_operator.owner import Owner, owner_reference
from fastgen_operator.ownership import Ownership, conflict, ownership_of
from fastgen_operator.settings import Images, Settings

OWNER = Owner("chat", "team", "uid-1")
SPEC = Spec(
    Model("file:///m.gguf"), resources=Resources(limits={"cpu": "1000m", "memory": "1024Mi"})
)
OLD = Settings(Images("runtime:1", "control:1"))
NEW = Settings(Images("runtime:2", "control:2"))


def deployment(spec: Spec = SPEC, settings: Settings = OLD) -> dict[str, Any]:
    made = make_children(OWNER, spec, settings)
    return next(child for child in made if child["metadata"]["name"] == "chat-replica"
                and child["kind"] == "Deployment")  # fmt: skip


def served(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest as an API server gives it back: defaults added, quantities rewritten."""
    seen = copy.deepcopy(manifest)
    seen["metadata"] |= {"uid": "uid-9", "resourceVersion": "7", "generation": 1}
    seen["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    pod = seen["spec"]["template"]["spec"]
    pod |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
    container = pod["containers"][0]
    container["resources"]["limits"] = {"cpu": "1", "memory": "1Gi"}
    container["startupProbe"]["successThreshold"] = 1
    container["env"].append({"name": "INJECTED", "value": "by a webhook"})
    pod["volumes"][0]["configMap"]["defaultMode"] = 420
    seen["status"] = {"replicas": 1}
    return seen


def test_defaults_and_foreign_fields_are_no_drift() -> None:
    marked = with_applied_annotation(deployment())
    assert is_applied(marked, served(marked))


def test_every_child_is_settled_by_itself() -> None:
    for child in make_children(OWNER, SPEC, OLD):
        marked = with_applied_annotation(child)
        assert is_applied(marked, copy.deepcopy(marked)), child["metadata"]["name"]


def test_an_edit_of_a_services_port_is_drift() -> None:
    made = make_children(OWNER, SPEC, OLD)
    service = next(child for child in made if child["metadata"]["name"] == "chat-replica"
                   and child["kind"] == "Service")  # fmt: skip
    marked = with_applied_annotation(service)
    for position in range(2):
        seen = copy.deepcopy(marked)
        seen["spec"]["ports"][position]["targetPort"] = 1234
        assert not is_applied(marked, seen)


def drop_argument(seen: Any) -> None:
    seen["spec"]["template"]["spec"]["containers"][0]["args"].pop()


def more_replicas(seen: Any) -> None:
    seen["spec"]["replicas"] = 5


def more_memory(seen: Any) -> None:
    seen["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "2Gi"


def drop_container(seen: Any) -> None:
    seen["spec"]["template"]["spec"]["containers"] = []


def drop_label(seen: Any) -> None:
    del seen["metadata"]["labels"][names.DEPLOYMENT_LABEL]


def drop_owner(seen: Any) -> None:
    seen["metadata"]["ownerReferences"] = []


def drop_environment(seen: Any) -> None:
    seen["spec"]["template"]["spec"]["containers"][0]["env"].pop(0)


@pytest.mark.parametrize(
    "tamper",
    [drop_argument, more_replicas, more_memory, drop_container, drop_label, drop_owner,
     drop_environment],
)  # fmt: skip
def test_an_edit_of_our_fields_is_drift(tamper: Any) -> None:
    marked = with_applied_annotation(deployment())
    seen = served(marked)
    tamper(seen)
    assert not is_applied(marked, seen)


def test_a_field_that_is_no_longer_declared_is_drift() -> None:
    before = with_applied_annotation(
        deployment(Spec(SPEC.model, resources=SPEC.resources, node_selector={"gpu": "yes"}))
    )
    assert not is_applied(with_applied_annotation(deployment()), served(before))


def test_what_the_api_server_writes_in_its_own_words_is_settled_by_memory() -> None:
    marked = with_applied_annotation(deployment())
    seen = served(marked)
    seen["spec"]["progressDeadlineSeconds"] = "in other words"
    assert not is_applied(marked, seen)
    remembered = content_fingerprint(seen)
    assert is_applied(marked, seen, remembered)
    more_replicas(seen)
    assert not is_applied(marked, seen, remembered)


def test_an_operator_upgrade_keeps_the_running_pods() -> None:
    seen = served(with_applied_annotation(deployment()))
    kept = keep_template(deployment(settings=NEW), seen, stuck=False)
    assert kept["spec"]["template"] == deployment()["spec"]["template"]
    # And so again, after the kept form was applied.
    again = copy.deepcopy(seen)
    again["metadata"]["annotations"] |= kept["metadata"]["annotations"]
    assert keep_template(deployment(settings=NEW), again, stuck=False) == kept
    assert is_applied(with_applied_annotation(kept), served(with_applied_annotation(kept)))


def test_the_owners_edit_brings_the_new_operators_pods() -> None:
    seen = served(with_applied_annotation(deployment()))
    edited = Spec(SPEC.model, resources=SPEC.resources, engine=Engine(max_model_length=5))
    moved = keep_template(deployment(edited, NEW), seen, stuck=False)
    assert moved == deployment(edited, NEW)
    assert moved["spec"]["template"]["spec"]["containers"][0]["image"] == "runtime:2"


def test_scaling_while_an_upgrade_waits_restarts_nothing() -> None:
    seen = served(with_applied_annotation(deployment()))
    scaled = Spec(SPEC.model, resources=SPEC.resources, replicas=1)
    kept = keep_template(deployment(scaled, NEW), seen, stuck=False)
    assert kept["spec"]["template"] == deployment()["spec"]["template"]


def test_pods_that_cannot_run_are_not_kept() -> None:
    seen = served(with_applied_annotation(deployment()))
    assert keep_template(deployment(settings=NEW), seen, stuck=True) == deployment(settings=NEW)


def test_the_same_operator_repairs_its_template() -> None:
    marked = with_applied_annotation(deployment())
    seen = served(marked)
    drop_argument(seen)
    kept = keep_template(deployment(), seen, stuck=False)
    assert kept == deployment()
    annotations = kept["metadata"]["annotations"]
    assert annotations[TEMPLATE_ANNOTATION] == seen["metadata"]["annotations"][TEMPLATE_ANNOTATION]


OURS = {
    "kind": "Service",
    "metadata": {
        "name": "chat",
        "labels": {
            names.MANAGED_BY_LABEL: names.OPERATOR_MANAGER,
            names.DEPLOYMENT_LABEL: "chat",
        },
    },
}


def owned_by(**changes: Any) -> dict[str, Any]:
    found = copy.deepcopy(OURS)
    found["metadata"]["ownerReferences"] = [owner_reference(OWNER) | changes]
    return found


@pytest.mark.parametrize(
    ("found", "whose"),
    [
        (None, Ownership.FREE),
        (owned_by(), Ownership.OURS),
        (OURS, Ownership.OURS),
        ({"kind": "Service", "metadata": {"name": "chat"}}, Ownership.FOREIGN),
        (owned_by(uid="uid-0"), Ownership.LEAVING),
        (owned_by(uid="uid-0", name="other"), Ownership.FOREIGN),
        (owned_by(uid="uid-0", kind="Ingress"), Ownership.FOREIGN),
    ],
    ids=["free", "ours", "orphan", "foreign", "namesake", "other", "other-kind"],
)
def test_whose_an_object_is(found: dict[str, Any] | None, whose: Ownership) -> None:
    assert ownership_of(OWNER, found) is whose


def test_a_child_that_is_being_deleted_is_waited_for() -> None:
    found = owned_by()
    found["metadata"]["deletionTimestamp"] = "2025-01-01T00:00:00Z"
    assert ownership_of(OWNER, found) is Ownership.LEAVING


def test_a_conflict_names_the_object_its_owner_and_the_way_out() -> None:
    problem = conflict(owned_by(uid="uid-0", kind="Ingress", name="web"), OWNER)
    assert problem.reason == "NameConflict"
    for word in ("Service chat", "Ingress web", "another name"):
        assert word in problem.message


def test_an_edit_by_hand_is_undone_while_an_upgrade_waits() -> None:
    seen = served(with_applied_annotation(deployment()))
    container = seen["spec"]["template"]["spec"]["containers"][0]
    running, container["image"] = container["image"], "evil:hand"
    kept = keep_template(deployment(settings=NEW), seen, stuck=False)
    assert kept["spec"]["template"]["spec"]["containers"][0]["image"] == running
    assert not is_applied(with_applied_annotation(kept), seen)


@pytest.mark.parametrize("note", [None, "{", "[]"])
def test_a_deployment_without_a_readable_note_keeps_the_template_that_it_has(
    note: str | None,
) -> None:
    seen = served(with_applied_annotation(deployment()))
    annotations = seen["metadata"]["annotations"]
    annotations.pop(POD_TEMPLATE_ANNOTATION)
    if note is not None:
        annotations[POD_TEMPLATE_ANNOTATION] = note
    kept = keep_template(deployment(settings=NEW), seen, stuck=False)
    assert kept["spec"]["template"] == seen["spec"]["template"]
