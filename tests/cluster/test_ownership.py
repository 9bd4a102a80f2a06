"""Who writes `replicas`, and who owns what, on a real API server with its own HPA controller.

The images named here do not exist: nothing asks here what pods do. No metrics server is needed
either: a HorizontalPodAutoscaler raises to its minReplicas without one.
"""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from autoscaler_process import QUIET, Contender, account_kubeconfig, contenders, tell
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in
from operator_questions import delete, has_all_children, is_stalled

from fastgen_api.spec import parse
from fastgen_operator.children import make_children
from fastgen_operator.contest import REPAIRS
from fastgen_operator.owner import owner_of
from fastgen_operator.settings import Images, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

HUNGRY = replace(QUIET, queued_requests=8, in_flight_requests=4, saturated_endpoints=1)
SYNC_SECONDS = 15
"""How often the HPA controller looks."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    images = {"runtime": "127.0.0.1:1/none:1", "control": "127.0.0.1:1/none:1"}
    name = f"fastgen-ownership-{uuid.uuid4().hex[:6]}"
    with operator_in(name, tmp_path_factory.mktemp("operator"), images, 18083) as operator:
        yield operator


def replicas(operator: OperatorProcess, name: str) -> int:
    return int(operator.get("fgd", name)["spec"]["replicas"])


def made(operator: OperatorProcess, name: str) -> int:
    """The replicas of the Deployment."""
    return int(operator.get("deployment", f"{name}-replica")["spec"]["replicas"])


def autoscale(operator: OperatorProcess, name: str, target: dict[str, str], least: int) -> None:
    metric = {"type": "Resource", "resource": {
        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}  # fmt: skip
    manifest = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": 4,
                 "metrics": [metric]},
    }  # fmt: skip
    operator.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def on_resource(name: str) -> dict[str, str]:
    return {"apiVersion": "fastgen.dev/v1alpha1", "kind": "FastGenDeployment", "name": name}


def on_deployment(name: str) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}


@pytest.fixture(scope="module")
def autoscaled(installed: OperatorProcess) -> float:
    """When two FastGenDeployments got an autoscaler that raises them to 2.

    `rival`: on its Deployment; `welcome`: on the resource.
    """
    installed.start()
    for name in ("rival", "welcome"):
        installed.create(name)
    for name in ("rival", "welcome"):
        wait_until("children", lambda name=name: has_all_children(installed, name), seconds=30)
    since = time.time()
    autoscale(installed, "rival", on_deployment("rival-replica"), 2)
    autoscale(installed, "welcome", on_resource("welcome"), 2)
    return since


def test_an_autoscaler_on_the_resource_scales_it(
    operator: OperatorProcess, autoscaled: float
) -> None:
    wait_until("its number", lambda: made(operator, "welcome") == 2, seconds=40)
    assert replicas(operator, "welcome") == 2

    def conditions() -> Any:
        found = operator.get("hpa", "welcome").get("status", {}).get("conditions", [])
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    wait_until("it scales", lambda: conditions().get("AbleToScale", ("",))[0] == "True", 40)
    assert not operator.condition("welcome", "ForeignScaler")
    scaled = operator.writers_of("fastgendeployments/welcome/scale", autoscaled)
    assert scaled == ["horizontal-pod-autoscaler"]


def test_an_autoscaler_on_our_deployment_is_told(
    operator: OperatorProcess, autoscaled: float
) -> None:
    wait_until("the scaler's number", lambda: made(operator, "rival") == 2, seconds=30)
    told = wait_until("told", lambda: operator.condition("rival", "ForeignScaler"), seconds=20)
    assert "HorizontalPodAutoscaler rival scales Deployment rival-replica" in told["message"]
    assert "kind FastGenDeployment, name rival" in told["message"]
    events = operator.get("events", "--field-selector", "reason=ForeignScaler")["items"]
    assert [each["involvedObject"]["name"] for each in events] == ["rival"]

    # Neither another declared number nor a change of something else touches theirs.
    operator.kubectl("scale", "fgd", "rival", "--replicas=3")
    operator.patch("rival", {"rollout": {"progressDeadlineSeconds": 900, "drainSeconds": 5}})
    changed = lambda: operator.get("deployment", "rival-replica")["spec"]  # noqa: E731
    wait_until("a change", lambda: changed()["progressDeadlineSeconds"] == 900, seconds=20)
    assert made(operator, "rival") == 2


@dataclass(frozen=True, slots=True)
class Scene:
    """A FastGenDeployment `auto` and its autoscaler, a process with its rights."""

    operator: OperatorProcess
    autoscaler: Contender
    signals: Path

    def is_hungry(self, ready: int) -> None:
        """More replicas than the ready ones are wanted from now on."""
        tell(self.signals, replace(HUNGRY, ready_endpoints=ready, saturated_endpoints=ready))


@pytest.fixture
def scene(operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    operator.create("auto", scaling={"mode": "Auto", "minReplicas": 1, "maxReplicas": 3})
    wait_until("children", lambda: has_all_children(operator, "auto"), seconds=20)
    folder = tmp_path_factory.mktemp("autoscaler")
    kubernetes, namespace = operator.kubernetes, operator.namespace
    kubeconfig = account_kubeconfig(kubernetes, namespace, "auto-balancer", folder)
    url = kubernetes.cluster.prometheus_url or "http://127.0.0.1:9"
    with contenders(kubeconfig, namespace, "auto", folder, url, "a") as processes:
        scene = Scene(operator, processes["a"], folder / "signals.json")
        scene.is_hungry(1)
        yield scene
    operator.kubectl("delete", "hpa", "auto", "--ignore-not-found")
    delete(operator, "auto")


def held_back(operator: OperatorProcess, blocker: str) -> dict[str, Any]:
    """The autoscaler's condition once it has decided and says what holds it back."""

    def told() -> Any:
        decision = operator.get("fgd", "auto").get("status", {}).get("lastDecision") or {}
        return blocker in decision.get("blockers", ()) and decision["replicas"] == 2

    wait_until("a decision that is held back", told, seconds=40)
    active = operator.condition("auto", "ScalingActive")
    assert (active["status"], active["reason"]) == ("False", blocker)
    return active


def test_our_autoscaler_gives_way_to_another_and_resumes(scene: Scene) -> None:
    operator = scene.operator
    # Made before the autoscaler leads, so that there is something to give way to at once.
    autoscale(operator, "auto", on_resource("auto"), 1)
    since = time.time()
    scene.autoscaler.start()
    active = held_back(operator, "ForeignScaler")
    assert "HorizontalPodAutoscaler auto scales FastGenDeployment auto" in active["message"]
    assert replicas(operator, "auto") == 1
    assert not operator.writers_of("fastgendeployments/auto/scale", since)
    operator.kubectl("delete", "hpa", "auto")
    wait_until("our number", lambda: made(operator, "auto") == 2, seconds=20)
    reason = lambda: operator.condition("auto", "ScalingActive")["reason"]  # noqa: E731
    wait_until("told", lambda: reason() != "ForeignScaler", seconds=20)
    assert "ForeignScaler" not in operator.get("fgd", "auto")["status"]["lastDecision"]["blockers"]


def test_a_freeze_holds_the_autoscaler_and_nothing_else(scene: Scene) -> None:
    operator = scene.operator

    def templates() -> Any:
        kinds = [f"deployment/auto-{each}" for each in ("replica", "balancer")]
        return [each["spec"]["template"] for each in operator.get(*kinds)["items"]]

    before = templates()
    operator.stop()
    operator.start({"FASTGEN_SCALING_FROZEN": "true"})
    frozen = wait_until("told", lambda: operator.condition("auto", "ScalingFrozen"), seconds=20)
    assert (frozen["status"], frozen["reason"]) == ("True", "Frozen")
    since = time.time()
    scene.autoscaler.start()
    assert "scaling.frozen" in held_back(operator, "Frozen")["message"]
    assert replicas(operator, "auto") == 1

    # A person may scale, and the freeze holds while the operator is away.
    scene.is_hungry(2)
    operator.kubectl("scale", "fgd", "auto", "--replicas=2")
    wait_until("the person's number", lambda: made(operator, "auto") == 2, seconds=20)
    operator.stop()
    time.sleep(4)
    assert operator.writers_of("fastgendeployments/auto/scale", since) == ["admin"]
    assert templates() == before, "a freeze restarts no pod"

    operator.start()
    wait_until("thawed", lambda: not operator.condition("auto", "ScalingFrozen"), seconds=20)
    wait_until("our number", lambda: made(operator, "auto") == 3, seconds=30)
    assert templates() == before, "a thaw restarts no pod"


def test_a_child_that_others_keep_changing_is_told_and_left(operator: OperatorProcess) -> None:
    operator.create("contested")
    wait_until("children", lambda: has_all_children(operator, "contested"), seconds=20)
    fight = ("scale", "deployment", "contested-replica", "--replicas=4")
    for _ in range(REPAIRS):
        operator.kubectl(*fight)
        wait_until("put back", lambda: made(operator, "contested") == 1, seconds=20, pause=0.1)
    since = time.time()
    operator.kubectl(*fight)
    stalled = wait_until("told", lambda: is_stalled(operator, "contested"), seconds=20)
    assert stalled["reason"] == "Contested"
    assert (
        "Deployment contested-replica was changed by others, last by kubectl" in stalled["message"]
    )
    assert made(operator, "contested") == 4
    assert operator.writers_of("deployments/contested-replica?", since) == []
    operator.kubectl("scale", "fgd", "contested", "--replicas=2")
    wait_until("what is declared", lambda: made(operator, "contested") == 2, seconds=20)
    wait_until("no longer told", lambda: not is_stalled(operator, "contested"), seconds=20)
    operator.kubectl("delete", "fgd", "contested")


def test_names_that_are_taken_are_told_for_every_kind_of_child(operator: OperatorProcess) -> None:
    settings = Settings(images=Images(runtime="r:1", control="c:1"))
    operator.create("probe")
    resource = operator.get("fgd", "probe")
    operator.kubectl("delete", "fgd", "probe")
    children = make_children(owner_of(resource), parse(resource["spec"]), settings)
    taken: dict[str, str] = {}
    for child in children:
        name = f"taken-{child['kind'].lower()}"
        if child["kind"] in taken:
            continue
        taken[child["kind"]] = name
        foreign = json.loads(json.dumps(child).replace('"probe', f'"{name}'))
        del foreign["metadata"]["ownerReferences"], foreign["metadata"]["labels"]
        operator.kubectl("create", "-f", "-", stdin=json.dumps(foreign))
    for name in taken.values():
        operator.create(name)
    for kind, name in taken.items():
        stalled = wait_until("told", lambda name=name: is_stalled(operator, name), seconds=20)
        assert stalled["reason"] == "NameConflict"
        assert stalled["message"].startswith(f"{kind} {name}"), stalled["message"]
        assert not operator.children(name), "nothing is made beside a foreign object"
    operator.kubectl("delete", "fgd", *taken.values())


def test_an_autoscaler_on_our_deployment_is_not_fought(
    operator: OperatorProcess, autoscaled: float
) -> None:
    """Last in this file: what it waits for has mostly passed."""
    time.sleep(max(0.0, autoscaled + 2 * SYNC_SECONDS + 2 - time.time()))
    assert made(operator, "rival") == 2
    written = operator.writers_of("deployments/rival-replica/scale", autoscaled)
    assert written == ["horizontal-pod-autoscaler"], "once: nobody undid it"
    ours = operator.writers_of("deployments/rival-replica?", autoscaled)
    assert len(ours) <= 3, "that it gives way, the deadline, and one race that it may have lost"
    operator.kubectl("delete", "hpa", "rival")
    wait_until("the declared number", lambda: made(operator, "rival") == 3, seconds=20)
    wait_until("no condition", lambda: not operator.condition("rival", "ForeignScaler"), seconds=20)
