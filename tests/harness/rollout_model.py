"""A Deployment controller, a scheduler and a few GPUs in memory, to roll out in simulated time.

The controller's arithmetic is that of Kubernetes' rolling update (`deployment/rolling.go`).
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from observed_objects import OWNER

from fastgen_api.names import Component
from fastgen_api.spec import Rollout
from fastgen_operator.fingerprint import TEMPLATE_ANNOTATION
from fastgen_operator.observed import Observed
from fastgen_operator.owner import child_labels
from fastgen_operator.rollout import IN_PLACE_ANNOTATION, carry_out, decide_rollout, rollout_state
from fastgen_operator.rollout_strategy import rolling_update

START = datetime(2025, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
NO_GPU = (
    "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, "
    "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
)


@dataclass(eq=False)
class Pod:
    """One replica pod."""

    name: str
    template: str
    seconds: int
    """How long it has had a GPU; -1: it has none."""
    left: int = -1
    """How long it still ends its streams; -1: it is not leaving."""


@dataclass
class RolloutModel:
    """A replica Deployment on `gpus` GPUs, one for each pod, and the operator that decides."""

    gpus: int
    wanted: int
    load_seconds: int
    drain_seconds: int
    rollout: Rollout = field(default_factory=Rollout)
    now: int = 0
    template: str = "form-0"
    strategy: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    waiting_since: datetime | None = None
    pods: list[Pod] = field(default_factory=list)
    changes_of_strategy: int = 0
    blocked: str = ""
    made: int = 0

    def __post_init__(self) -> None:
        self.strategy = rolling_update(self.rollout)
        for _ in range(self.wanted):
            self._create(self.template)
        self._schedule()
        for pod in self.pods:
            pod.seconds = self.load_seconds if pod.seconds == 0 else -1

    @property
    def ready(self) -> list[Pod]:
        return [pod for pod in self._staying() if pod.seconds >= self.load_seconds]

    @property
    def is_done(self) -> bool:
        """Whether all that have a GPU are of the latest form and serve, as many as can."""
        placed = [pod for pod in self.pods if pod.seconds >= 0]
        return (
            len(self.ready) == min(self.wanted, self.gpus)
            and len(placed) == len(self.ready)
            and all(pod.template == self.template for pod in self._staying())
        )

    def edit(self, template: str) -> None:
        self.template = template

    def step(self) -> None:
        """A second goes by."""
        self.now += 1
        for pod in list(self.pods):
            if pod.left == 0:
                self.pods.remove(pod)
                continue
            pod.left = max(-1, pod.left - 1)
            if pod.seconds >= 0:
                pod.seconds += 1
        self._control()
        self._schedule()
        self._operate()

    def _staying(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.left < 0]

    def _create(self, template: str) -> None:
        self.made += 1
        self.pods.append(Pod(f"pod-{self.made:03}", template, -1))

    def _schedule(self) -> None:
        for pod in self._staying():
            if pod.seconds < 0 and sum(each.seconds >= 0 for each in self.pods) < self.gpus:
                pod.seconds = 0

    def _control(self) -> None:
        surge, unavailable = self.strategy["maxSurge"], self.strategy["maxUnavailable"]
        staying = self._staying()
        new = [pod for pod in staying if pod.template == self.template]
        room = min(self.wanted + surge - len(staying), self.wanted - len(new))
        if room > 0:
            for _ in range(room):
                self._create(self.template)
            return
        minimum = self.wanted - unavailable
        new_unready = sum(pod.seconds < self.load_seconds for pod in new)
        may_go = len(staying) - minimum - new_unready
        old = [pod for pod in staying if pod.template != self.template]
        if may_go <= 0 or not old:
            return
        unready = [pod for pod in old if pod.seconds < self.load_seconds][:may_go]
        for pod in unready:
            self._stop(pod)
        spare = len(self.ready) - minimum
        serving = [pod for pod in old if pod.seconds >= self.load_seconds]
        for pod in serving[: max(0, spare)]:
            self._stop(pod)

    def _stop(self, pod: Pod) -> None:
        if pod.seconds < 0:
            self.pods.remove(pod)
        else:
            pod.left = self.drain_seconds if pod.seconds >= self.load_seconds else 1

    def _operate(self) -> None:
        now = START + timedelta(seconds=self.now)
        observed = Observed({}, tuple(self._seen(pod) for pod in self.pods))
        state = rollout_state(self._deployment(), observed, Component.REPLICA, now)
        decision = decide_rollout(self.rollout, state, self.waiting_since, now)
        self.waiting_since = decision.waiting_since
        self.blocked = decision.blocked.reason if decision.blocked else ""
        desired: dict[str, Any] = {
            "metadata": {"annotations": {}},
            "spec": {"strategy": {"rollingUpdate": rolling_update(self.rollout)}},
        }
        carried = carry_out(desired, decision, self.wanted)
        strategy = carried["spec"]["strategy"]["rollingUpdate"]
        self.changes_of_strategy += strategy != self.strategy
        self.strategy = strategy
        self.annotations = carried["metadata"]["annotations"]

    def _deployment(self) -> dict[str, Any]:
        staying = self._staying()
        return {
            "metadata": {
                "name": "chat-replica",
                "generation": 1,
                "annotations": {TEMPLATE_ANNOTATION: self.template}
                | {k: v for k, v in self.annotations.items() if k == IN_PLACE_ANNOTATION},
            },
            "spec": {"replicas": self.wanted, "template": {"spec": pod_spec()}},
            "status": {
                "observedGeneration": 1,
                "replicas": len(staying),
                "updatedReplicas": sum(pod.template == self.template for pod in staying),
                "readyReplicas": len(self.ready),
                "availableReplicas": len(self.ready),
            },
        }

    def _seen(self, pod: Pod) -> dict[str, Any]:
        conditions = [{"type": "PodScheduled", "status": "True"}]
        if pod.seconds < 0:
            conditions = [{"type": "PodScheduled", "status": "False",
                           "reason": "Unschedulable", "message": NO_GPU}]  # fmt: skip
        is_ready = pod.seconds >= self.load_seconds
        conditions.append({"type": "Ready", "status": "True" if is_ready else "False"})
        metadata: dict[str, Any] = {
            "name": pod.name,
            "labels": child_labels(OWNER, Component.REPLICA),
            "creationTimestamp": pod.name,
            "annotations": {TEMPLATE_ANNOTATION: pod.template},
        }
        if pod.left >= 0:
            until = START + timedelta(seconds=self.now + pod.left)
            metadata["deletionTimestamp"] = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        node = {"nodeName": "node-1"} if pod.seconds >= 0 else {}
        return {"metadata": metadata, "spec": pod_spec() | node,
                "status": {"conditions": conditions}}  # fmt: skip


def pod_spec(**limits: str) -> dict[str, Any]:
    """The spec of a pod with one container that asks for these, by default for one GPU."""
    resources = {"limits": limits or {GPU: "1"}}
    return {"containers": [{"name": "runtime", "resources": resources}]}
