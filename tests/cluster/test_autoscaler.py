"""The autoscaler against a real API server, with the rights that the operator grants it.

Two contenders run as processes of this machine; what a balancer would see of its replicas comes
from a file, and nothing scrapes this deployment.
"""

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from autoscaler_process import QUIET, Contender, account_kubeconfig, contenders, tell
from cluster_access import wait_until
from commands import Commands

from fastgen_api import names
from fastgen_api.spec import parse
from fastgen_balancer.memo import read
from fastgen_operator.children import make_children
from fastgen_operator.owner import owner_of
from fastgen_operator.settings import Images, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAME = "chat"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding")
HUNGRY = replace(QUIET, queued_requests=8, in_flight_requests=4, saturated_endpoints=1)


@dataclass
class Scene:
    """One FastGenDeployment and the processes that want to scale it."""

    cluster: Commands
    namespace: str
    signals: Path
    contenders: dict[str, Contender]

    def kubectl(self, *words: str, stdin: str = "") -> str:
        return self.cluster.kubectl("-n", self.namespace, *words, stdin=stdin)

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    @property
    def resource(self) -> Any:
        return self.get("fgd", NAME, "--show-managed-fields")

    @property
    def replicas(self) -> int:
        return int(self.resource["spec"]["replicas"])

    @property
    def holder(self) -> str:
        """The pod's name in the lease."""
        found = self.kubectl("get", "lease", f"{NAME}-balancer", "--ignore-not-found", "-o", "json")
        identity = json.loads(found)["spec"].get("holderIdentity", "") if found else ""
        return str(identity).split("_")[0]

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = self.resource.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def patch(self, spec: dict[str, Any]) -> None:
        self.kubectl("patch", "fgd", NAME, "--type=merge", "-p", json.dumps({"spec": spec}))

    def writes(self, since: float) -> list[str]:
        """What the autoscaler wrote, Leases apart, by the cluster's audit log."""
        path = self.cluster.cluster.audit_log
        assert path is not None
        user = f"system:serviceaccount:{self.namespace}:{NAME}-balancer"
        # The last line may be half written.
        lines = path.read_text().split("\n")[:-1]
        events = (json.loads(line) for line in lines)
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since))
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in events
            if event["user"].get("username") == user
            and event["requestReceivedTimestamp"] >= start
            and event["objectRef"]["resource"] != "leases"
        ]


@pytest.fixture(scope="module")
def scene(
    cluster: Commands, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("autoscaler")
    manifest = {
        "apiVersion": "fastgen.dev/v1alpha1",
        "kind": "FastGenDeployment",
        # Another test's operator may watch every namespace: it leaves this one alone.
        "metadata": {"name": NAME, "annotations": {names.PAUSED_ANNOTATION: "true"}},
        "spec": {
            "model": {"source": "file:///models/none.gguf"},
            "slo": {"timeToFirstToken": {"milliseconds": 500}},
            "scaling": {"mode": "Auto", "minReplicas": 1, "maxReplicas": 3},
        },
    }
    kubectl = lambda *words, stdin="": cluster.kubectl("-n", namespace, *words, stdin=stdin)  # noqa: E731
    kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    resource = json.loads(kubectl("get", "fgd", NAME, "-o", "json"))
    kubeconfig = _balancer_kubeconfig(cluster, resource, folder)
    signals = folder / "signals.json"
    tell(signals, QUIET)
    url = cluster.cluster.prometheus_url or "http://127.0.0.1:9"
    with contenders(kubeconfig, namespace, NAME, folder, url, "a", "b") as processes:
        yield Scene(cluster, namespace, signals, processes)


def _balancer_kubeconfig(cluster: Commands, resource: Any, folder: Path) -> Path:
    """The balancer's own rights, as the operator grants them, and a kubeconfig with these alone."""
    namespace = resource["metadata"]["namespace"]
    settings = Settings(images=Images(runtime="r:1", control="c:1"))
    children = make_children(owner_of(resource), parse(resource["spec"]), settings)
    granted = [
        child
        for child in children
        if child["kind"] in RIGHTS and child["metadata"]["name"] == f"{NAME}-balancer"
    ]
    assert [child["kind"] for child in granted] == list(RIGHTS)
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": granted})
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=items)
    return account_kubeconfig(cluster, namespace, f"{NAME}-balancer", folder)


def test_a_queue_scales_up_and_says_why(scene: Scene) -> None:
    scene.contenders["a"].start()
    wait_until("a leads", lambda: scene.holder == "a", seconds=20)
    scene.contenders["b"].start()
    tell(scene.signals, HUNGRY)
    wait_until("two replicas", lambda: scene.replicas == 2, seconds=20)
    wait_until("a decision", lambda: "lastDecision" in scene.resource.get("status", {}), seconds=10)
    resource = scene.resource
    decision = resource["status"]["lastDecision"]
    assert (decision["replicas"], decision["rule"]) == (2, "QueueAtBalancer")
    assert "8 requests queue at the balancer" in decision["message"]
    writers = {
        (entry.get("subresource"), entry["operation"])
        for entry in resource["metadata"]["managedFields"]
        if entry["manager"] == "fastgen-balancer"
    }
    assert writers == {("scale", "Update"), ("status", "Apply")}
    events = [
        event
        for event in scene.get("events", "--field-selector", f"involvedObject.name={NAME}")["items"]
        if event["reportingComponent"] == names.BALANCER_MANAGER
        and event["reason"] != "ScalingDecision"
    ]
    assert [(event["reason"], event["type"]) for event in events] == [("ScaledUp", "Normal")]
    assert events[0]["message"].startswith("From 1 to 2 replicas, QueueAtBalancer: 8 requests")
    lease = scene.get("lease", f"{NAME}-balancer")
    assert lease["metadata"]["ownerReferences"][0]["uid"] == resource["metadata"]["uid"]


def test_pending_replicas_are_not_asked_for_twice(scene: Scene) -> None:
    time.sleep(8)
    assert scene.replicas == 2


def test_missing_metrics_are_told_and_change_nothing(scene: Scene) -> None:
    tell(scene.signals, replace(QUIET, ready_endpoints=2))
    active = wait_until(
        "no signals",
        lambda: (found := scene.condition("ScalingActive")).get("status") == "False" and found,
        seconds=120,
    )
    # Prometheus may know deployments of other tests.
    assert active["reason"] in ("NoSeries", "LabelMismatch")
    assert f"no series of deployment {NAME}" in active["message"]
    told = wait_until(
        "an event tells it",
        lambda: [
            event["message"]
            for event in scene.get("events")["items"]
            if event["reason"] == "ScalingDecision" and "NoSignal" in event["message"]
        ],
        seconds=20,
    )
    assert told[0].startswith("2 replicas, NoSignal")
    assert scene.resource["status"]["lastDecision"]["inputs"]["readyReplicas"] == "2"
    assert scene.condition("SLOMet")["status"] == "Unknown"
    assert scene.replicas == 2


def test_the_steady_state_writes_nothing(scene: Scene) -> None:
    time.sleep(3)
    began = time.time()
    time.sleep(20)
    assert scene.holder == "a"
    assert scene.writes(began) == []
    assert scene.writes(0)  # The log does tell of the writes before.


def test_another_takes_over_from_a_killed_leader(scene: Scene) -> None:
    scene.contenders["a"].stop(signal.SIGKILL)
    began = time.monotonic()
    wait_until("b leads", lambda: scene.holder == "b", seconds=25)
    assert time.monotonic() - began > 5
    tell(scene.signals, replace(HUNGRY, ready_endpoints=2, in_flight_requests=8))
    wait_until("three replicas", lambda: scene.replicas == 3, seconds=60)


def test_what_the_killed_leader_remembered_is_not_forgotten(scene: Scene) -> None:
    # It is written with the next renewal after the next tick.
    memory = wait_until(
        "the memo has the last number",
        lambda: (
            (found := read(_memo(scene))) is not None
            and found.memory.replicas == scene.replicas
            and found.memory
        ),
        seconds=15,
    )
    # The first change was made by a, the second one by b.
    assert [change.delta for change in memory.changes] == [1, 1]


def _memo(scene: Scene) -> str:
    annotations = scene.get("lease", names.memo_name(NAME))["metadata"]["annotations"]
    return str(annotations[names.MEMO_ANNOTATION])


def test_a_leader_that_stops_hands_over_at_once(scene: Scene) -> None:
    tell(scene.signals, replace(QUIET, ready_endpoints=3))
    scene.contenders["a"].start()
    time.sleep(3)
    scene.contenders["b"].stop()
    assert scene.holder in ("", "a")
    began = time.monotonic()
    wait_until("a leads", lambda: scene.holder == "a", seconds=10)
    assert time.monotonic() - began < 6


def test_recommend_changes_nothing(scene: Scene) -> None:
    # The policies of scaleUp count what the last leader changed within 15 s.
    time.sleep(16)
    tell(scene.signals, HUNGRY)
    scene.patch({"replicas": 1, "scaling": {"mode": "Recommend"}})

    def recommended() -> bool:
        decision = scene.resource["status"]["lastDecision"]
        return bool(decision["replicas"] == 2 and decision["rule"] == "QueueAtBalancer")

    wait_until("a recommendation", recommended, seconds=20)
    assert scene.condition("ScalingActive")["reason"] == "RecommendOnly"
    assert scene.replicas == 1


def test_disabled_says_so(scene: Scene) -> None:
    scene.patch({"scaling": {"mode": "Disabled"}})
    wait_until(
        "Disabled",
        lambda: scene.condition("ScalingActive").get("reason") == "Disabled",
        seconds=20,
    )
    assert scene.replicas == 1


def test_the_lease_goes_with_the_deployment(scene: Scene) -> None:
    for contender in scene.contenders.values():
        contender.stop()
    scene.kubectl("delete", "fgd", NAME)
    gone = lambda: not scene.kubectl("get", "leases", "-o", "name")  # noqa: E731
    wait_until("no lease", gone, seconds=30)
