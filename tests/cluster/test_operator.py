"""The operator against a real API server, with the rights that the chart gives it.

The images named here do not exist: what pods do is the business of test_operator_pods.
"""

import json
import time
from typing import Any

import pytest
from cluster_access import wait_until
from operator_process import OperatorProcess
from operator_questions import pull_failed_and_quiet, settled_writes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_a_resource_becomes_children_that_it_owns(operator: OperatorProcess, chat: str) -> None:
    resource = operator.get("fgd", chat)
    for child in operator.children(chat).values():
        (reference,) = child["metadata"]["ownerReferences"]
        assert reference["uid"] == resource["metadata"]["uid"]
        assert reference["controller"] is True
        managers = {each["manager"]: each["operation"] for each in managed_fields(operator, child)}
        assert managers["fastgen-operator"] == "Apply"
    status = resource["status"]
    assert status["observedGeneration"] == 1
    assert status["url"] == f"http://chat.{operator.namespace}.svc/v1"
    assert status["runtimeImage"] == "127.0.0.1:1/none:1"


def managed_fields(operator: OperatorProcess, child: Any) -> Any:
    name = child["metadata"]["name"]
    return operator.get(child["kind"], name, "--show-managed-fields")["metadata"]["managedFields"]


def test_kopf_leaves_no_trace_on_the_resource(operator: OperatorProcess, chat: str) -> None:
    pull_failed_and_quiet(operator, chat)
    resource = operator.get("fgd", chat, "--show-managed-fields")
    metadata = resource["metadata"]
    assert not metadata.get("finalizers")
    assert not metadata.get("annotations")
    assert set(resource["status"]) <= {
        "observedGeneration", "replicas", "readyReplicas", "updatedReplicas", "selector", "url",
        "runtimeImage", "coldStartSeconds", "model", "conditions",
    }  # fmt: skip
    ours = [each for each in metadata["managedFields"] if each.get("subresource") == "status"]
    assert [each["manager"] for each in ours] == ["fastgen-operator"]
    assert not any("kopf" in write for write in operator.writes(0))


def test_deleted_children_come_back(operator: OperatorProcess, chat: str) -> None:
    before = {key: each["metadata"]["uid"] for key, each in operator.children(chat).items()}
    for kind, name in before:
        operator.kubectl("delete", kind, name, "--wait")

    def all_new() -> bool:
        after = {key: each["metadata"]["uid"] for key, each in operator.children(chat).items()}
        return after.keys() == before.keys() and not set(after.values()) & set(before.values())

    wait_until("all children again", all_new, seconds=30)


EDITS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Deployment", "chat-replica", {"spec": {
        "replicas": 4, "template": {"spec": {"terminationGracePeriodSeconds": 500}}}}),
    ("Deployment", "chat-balancer",
     {"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": 1}}}}),
    ("Service", "chat", {"spec": {"ports": [{"port": 80, "targetPort": 1234}]}}),
    ("ConfigMap", "chat-slo", {"data": {"slo.json": "{}"}}),
    ("Role", "chat-balancer", {"rules": []}),
    ("PodDisruptionBudget", "chat-replica", {"spec": {"maxUnavailable": 0}}),
    ("NetworkPolicy", "chat-replica", {"spec": {"ingress": [{}]}}),
    ("ServiceAccount", "chat-balancer", {"metadata": {"labels": {
        "app.kubernetes.io/instance": "other"}}}),
)  # fmt: skip


def test_edits_of_children_are_undone(operator: OperatorProcess, chat: str) -> None:
    def contents() -> Any:
        return {key: [each["metadata"]["labels"], each.get("spec"), each.get("data"),
                      each.get("rules")]
                for key, each in operator.children(chat).items()}  # fmt: skip

    before = contents()
    for kind, name, patch in EDITS:
        operator.kubectl("patch", kind, name, "-p", json.dumps(patch))
    wait_until("the repair", lambda: contents() == before, seconds=30)


def test_what_others_add_to_a_child_stays(operator: OperatorProcess, chat: str) -> None:
    operator.kubectl("annotate", "service", chat, "team.example/cost=42")
    operator.patch(chat, {"slo": {"targetPercent": "90"}})
    wait_until(
        "the new SLO",
        lambda: '"90"' in operator.get("configmap", "chat-slo")["data"]["slo.json"],
        seconds=20,
    )
    annotations = operator.get("service", chat)["metadata"]["annotations"]
    assert annotations["team.example/cost"] == "42"


def test_a_new_slo_or_scale_makes_no_new_pod_template(operator: OperatorProcess, chat: str) -> None:
    operator.patch(chat, {"slo": {"targetPercent": "91"}, "replicas": 1})

    def templates() -> list[Any]:
        return [
            operator.get("deployment", f"chat-{each}")["spec"]["template"]
            for each in ("replica", "balancer")
        ]

    before = templates()
    scaling = {"mode": "Disabled", "maxReplicas": 3}
    operator.patch(chat, {"slo": {"targetPercent": "95"}, "replicas": 2, "scaling": scaling})
    wait_until(
        "two replicas",
        lambda: operator.get("deployment", "chat-replica")["spec"]["replicas"] == 2,
        seconds=20,
    )
    assert templates() == before


def test_kubectl_scale_reaches_the_deployment(operator: OperatorProcess, chat: str) -> None:
    operator.kubectl("scale", "fgd", chat, "--replicas=3")
    wait_until(
        "three replicas", lambda: operator.get("fgd", chat)["status"]["replicas"] == 3, seconds=20
    )
    scale = json.loads(
        operator.kubectl(
            "get", "--raw",
            f"/apis/fastgen.dev/v1alpha1/namespaces/{operator.namespace}/fastgendeployments/{chat}/scale",
        )
    )  # fmt: skip
    assert scale["status"]["replicas"] == 3
    pods = operator.get("pods", "-l", scale["status"]["selector"])["items"]
    assert len(pods) == 3


def test_in_auto_the_scale_stays_within_its_bounds(operator: OperatorProcess, chat: str) -> None:
    operator.patch(chat, {"scaling": {"mode": "Auto", "minReplicas": 2, "maxReplicas": 3}})
    for asked, wanted in ((9, 3), (1, 2)):
        operator.kubectl("scale", "fgd", chat, f"--replicas={asked}")
        wait_until(
            f"{wanted} replicas",
            lambda wanted=wanted: (
                operator.get("deployment", "chat-replica")["spec"]["replicas"] == wanted
            ),
            seconds=20,
        )
    operator.patch(chat, {"scaling": {"mode": "Disabled"}, "replicas": 1})


def test_paused_means_that_nothing_is_reconciled(operator: OperatorProcess, chat: str) -> None:
    generation = operator.get("fgd", chat)["metadata"]["generation"]
    wait_until(
        "reconciled",
        lambda: operator.get("fgd", chat)["status"]["observedGeneration"] == generation,
        seconds=20,
    )
    operator.kubectl("annotate", "fgd", chat, "fastgen.dev/paused=true")
    wait_until(
        "paused",
        lambda: operator.condition(chat, "Reconciling").get("reason") == "Paused",
        seconds=20,
    )
    operator.kubectl("delete", "service", chat)
    lost = wait_until(
        "its loss",
        lambda: (ready := operator.condition(chat, "Ready")).get("reason") == "Paused" and ready,
        seconds=20,
    )
    assert lost["message"].startswith(f"missing: Service {chat}; nothing is reconciled")
    assert operator.condition(chat, "Stalled")["status"] == "False"
    operator.patch(chat, {"replicas": 2})
    time.sleep(2)
    assert operator.find("service", chat) is None
    assert operator.get("deployment", "chat-replica")["spec"]["replicas"] == 1
    assert operator.get("fgd", chat)["status"]["observedGeneration"] == generation
    operator.kubectl("annotate", "fgd", chat, "fastgen.dev/paused-")
    wait_until("the service again", lambda: operator.find("service", chat), seconds=20)
    wait_until(
        "two replicas",
        lambda: operator.get("deployment", "chat-replica")["spec"]["replicas"] == 2,
        seconds=20,
    )


def test_what_is_no_longer_wanted_is_pruned(operator: OperatorProcess, chat: str) -> None:
    child = operator.get("configmap", "chat-slo")
    old = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "chat-of-an-earlier-version",
            "labels": child["metadata"]["labels"],
            "ownerReferences": child["metadata"]["ownerReferences"],
        },
    }
    # Somebody copied the labels.
    mine = old | {"metadata": {"name": "chat-of-mine", "labels": child["metadata"]["labels"]}}
    operator.kubectl("create", "-f", "-", stdin=json.dumps(mine))
    operator.kubectl("create", "-f", "-", stdin=json.dumps(old))
    wait_until(
        "it is gone",
        lambda: operator.find("configmap", "chat-of-an-earlier-version") is None,
        seconds=20,
    )
    assert operator.find("configmap", "chat-of-mine")
    operator.kubectl("delete", "configmap", "chat-of-mine")


def test_the_steady_state_writes_nothing(operator: OperatorProcess, chat: str) -> None:
    pull_failed_and_quiet(operator, chat)
    since = time.time()
    for number in range(3):  # Each asks for a reconcile.
        operator.kubectl("annotate", "--overwrite", "fgd", chat, f"touched={number}")
        time.sleep(1)
    assert settled_writes(operator, since) == []
    operator.stop()
    operator.start()
    assert settled_writes(operator, since) == []


def test_the_operator_never_reads_a_secret(operator: OperatorProcess) -> None:
    answer = operator.kubernetes.kubectl(
        "auth", "can-i", "--list", "-n", operator.namespace, f"--as={operator.user}"
    )
    assert "secrets" not in answer
    assert "fastgendeployments.fastgen.dev/status" in answer
