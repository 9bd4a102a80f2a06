"""Deletion needs nobody: not the operator, not Prometheus, not a secret; and nothing hangs.

The images named here do not exist: what pods do is the business of test_operator_pods.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in
from operator_questions import has_all_children

from fastgen_operator.children import CHILD_KINDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

KINDS = ",".join((*CHILD_KINDS, "Pod", "ReplicaSet", "Lease", "FastGenDeployment"))
GONE: dict[str, Any] = {
    "imagePullSecrets": [{"name": "no-such-secret"}],
    "scaling": {
        "mode": "Auto",
        "maxReplicas": 2,
        "prometheus": {"url": "http://no-such-prometheus.nowhere:9090"},
    },
}
"""What a spec may name and a cluster no longer have."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    images = {"runtime": "127.0.0.1:1/none:1", "control": "127.0.0.1:1/none:1"}
    name = f"fastgen-deletion-{uuid.uuid4().hex[:6]}"
    with operator_in(name, tmp_path_factory.mktemp("operator"), images, 18085) as operator:
        yield operator


def left(operator: OperatorProcess, name: str) -> set[str]:
    """Everything that bears a FastGenDeployment's name, what is on its way out too."""
    found = operator.get(KINDS)["items"]
    return {
        f"{each['kind']} {each['metadata']['name']}"
        for each in found
        if each["metadata"]["name"] == name or each["metadata"]["name"].startswith(f"{name}-")
    }


def hanging(operator: OperatorProcess) -> list[str]:
    """Objects that wait for somebody's finalizer."""
    return [
        f"{each['kind']} {each['metadata']['name']}"
        for each in operator.get(KINDS)["items"]
        if "deletionTimestamp" in each["metadata"] and each["metadata"].get("finalizers")
    ]


def create_all(operator: OperatorProcess, *names: str, **spec: Any) -> None:
    for name in names:
        operator.create(name, **spec)
    for name in names:
        wait_until("children", lambda name=name: has_all_children(operator, name), seconds=40)


def test_it_goes_in_every_way_without_the_operator(operator: OperatorProcess) -> None:
    names = ("background", "foreground", "orphan")
    create_all(operator, *names, **GONE)
    finalizers = [each["metadata"].get("finalizers") for each in operator.get("fgd")["items"]]
    assert finalizers == [None, None, None]
    kept = {
        (each["kind"], each["metadata"]["name"]): each["metadata"]["uid"]
        for each in operator.children("orphan").values()
    }
    operator.stop()
    for name in names:
        operator.kubectl("delete", "fgd", name, f"--cascade={name}", "--timeout=60s")
        assert operator.find("fgd", name) is None
    for name in ("background", "foreground"):
        wait_until(f"{name} is gone", lambda name=name: not left(operator, name), seconds=60)
    wait_until("nothing hangs", lambda: not hanging(operator), seconds=20)

    def orphans() -> dict[tuple[str, str], Any]:
        return {key: each["metadata"] for key, each in operator.children("orphan").items()}

    assert {key: each["uid"] for key, each in orphans().items()} == kept
    assert not any(each.get("ownerReferences") for each in orphans().values())

    # One of the same name takes all of them back, as they are.
    operator.start()
    operator.create("orphan", **GONE)
    owner = operator.get("fgd", "orphan")["metadata"]["uid"]

    def owned() -> bool:
        found = [each.get("ownerReferences") or [{}] for each in orphans().values()]
        return all(references[0].get("uid") == owner for references in found)

    wait_until("taken back", owned, seconds=60)
    assert {key: each["uid"] for key, each in orphans().items()} == kept
    operator.kubectl("delete", "fgd", "orphan", "--timeout=60s")
    wait_until("gone at last", lambda: not left(operator, "orphan"), seconds=60)


def test_the_operator_brings_nothing_back(operator: OperatorProcess) -> None:
    """In the foreground the resource is still there while its children go, one by one."""
    create_all(operator, "waiting", "again")
    operator.kubectl("delete", "fgd", "waiting", "--cascade=foreground", "--timeout=60s")
    assert operator.find("fgd", "waiting") is None
    assert not operator.children("waiting")

    # Made again at once, it waits for the last one's children to go.
    before = {each["metadata"]["uid"] for each in operator.children("again").values()}
    operator.kubectl("delete", "fgd", "again", "--timeout=60s")
    operator.create("again")
    owner = operator.get("fgd", "again")["metadata"]["uid"]

    def all_new() -> bool:
        found = [each["metadata"] for each in operator.children("again").values()]
        return (
            has_all_children(operator, "again")
            and not {each["uid"] for each in found} & before
            and all(each["ownerReferences"][0]["uid"] == owner for each in found)
        )

    wait_until("children of the new one", all_new, seconds=60)
    assert not operator.children("waiting"), "nor later"
    operator.kubectl("delete", "fgd", "again", "--timeout=60s")


def test_a_claim_stays_or_goes_as_declared(operator: OperatorProcess) -> None:
    for name, policy in (("kept", "Retain"), ("dropped", "Delete")):
        create_downloaded(operator, name, policy)

    def claim(name: str) -> Any:
        return operator.find("pvc", f"{name}-models")

    made = wait_until("claims", lambda: claim("dropped") and claim("kept"), seconds=40)
    operator.kubectl("delete", "fgd", "kept", "dropped", "--timeout=60s")
    wait_until("one claim is gone", lambda: not claim("dropped"), seconds=60)
    kept = {"PersistentVolumeClaim kept-models"}
    wait_until("one claim is left", lambda: left(operator, "kept") == kept, seconds=60)

    # The next one of the name takes it, and may decide otherwise about it.
    create_downloaded(operator, "kept", "Delete")
    owner = operator.get("fgd", "kept")["metadata"]["uid"]

    def owners() -> list[str]:
        return [each["uid"] for each in claim("kept")["metadata"].get("ownerReferences", ())]

    wait_until("taken back", lambda: owners() == [owner], seconds=40)
    assert claim("kept")["metadata"]["uid"] == made["metadata"]["uid"]
    operator.kubectl("delete", "fgd", "kept", "--timeout=60s")
    wait_until("gone at last", lambda: not left(operator, "kept"), seconds=60)


def create_downloaded(operator: OperatorProcess, name: str, policy: str) -> None:
    cache = {"type": "PersistentVolumeClaim", "size": "1Mi", "retentionPolicy": policy}
    token = {"name": "no-such-secret", "key": "token"}
    source = "hf://team/model"
    operator.create(name, model={"source": source, "cache": cache, "tokenSecretRef": token})


def test_a_namespace_ends_with_all_that_is_in_it(
    operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With the operator at work, which must not make again what the namespace takes down."""
    kubernetes, namespace = operator.kubernetes, operator.namespace
    create_all(operator, "one", "two", **GONE)
    kubernetes.kubectl("delete", "namespace", namespace, "--timeout=90s")
    found = kubernetes.kubectl("get", "namespace", namespace, "--ignore-not-found")
    assert not found
