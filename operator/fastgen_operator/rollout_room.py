"""What is said about a lack of room, and whether a new pod fits where a running one is."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from fastgen_api.quantity import quantity
from fastgen_api.spec import KubernetesObject
from fastgen_operator.observed import UNSCHEDULABLE, Problem, unscheduled
from fastgen_operator.placement import without_company

LACK_OF_ROOM: Final = re.compile(
    r"\d+ (?:Insufficient |Too many pods"
    r"|node\(s\) didn't have free ports"
    r"|node\(s\) didn't (?:match|satisfy) (?:existing pods |pod )?anti-affinity"
    r"|node\(s\) didn't match pod topology spread"
    r"|node\(s\) exceed max volume count"
    r"|node\(s\) unavailable due to PersistentVolumeClaim with ReadWriteOncePod)"
)
"""Reasons of the scheduler that another pod's end can take away."""
INSUFFICIENT: Final = re.compile(r"\d+ Insufficient ([^\s,]+?)[.,]?(?=\s|$)")
EXCEEDED_QUOTA: Final = re.compile(r"exceeded quota: .*", re.DOTALL)
PREEMPTION: Final = re.compile(r"(?:no new claims to deallocate, )?preemption: .*", re.DOTALL)
"""What the scheduler adds about evicting others, which concerns only itself."""
HOPELESS: Final = re.compile(r"preemption: 0/(\d+) nodes are available: \1 Preemption is not help")
"""However many pods go: no node is large enough."""
PLACEMENT: Final = (
    "nodeSelector",
    "affinity",
    "runtimeClassName",
    "hostNetwork",
    "schedulerName",
)
"""Fields of a pod that decide on which nodes it may run at all."""
NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that admission has every pod tolerate for a while."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why there is no room for one pod more."""

    words: str
    """The scheduler's, or those of the quota."""
    resources: frozenset[str] = frozenset()
    """Names of what is too scarce; empty: something else, as free ports."""
    is_hopeless: bool = False
    """Whether no node could ever hold the pod."""


def shortage_of(pod: KubernetesObject) -> Shortage | None:
    """The shortage that keeps a pod from a node; None: it has one, or the cause is another."""
    found = unscheduled(pod)
    if found is None or not is_lack_of_room(pod):
        return None
    if pod.get("status", {}).get("nominatedNodeName"):
        return None  # The scheduler is making room.
    words = scheduler_words(found.message)
    lacking = frozenset(INSUFFICIENT.findall(words))
    return Shortage(words, lacking, HOPELESS.search(found.message) is not None)


def is_lack_of_room(pod: KubernetesObject) -> bool:
    """Whether the scheduler has found no room for the pod, but would have nodes for it."""
    found = unscheduled(pod)
    return (
        found is not None
        and found.reason == UNSCHEDULABLE
        and LACK_OF_ROOM.search(scheduler_words(found.message)) is not None
    )


def quota_shortage(failure: Problem | None, template: KubernetesObject) -> Shortage | None:
    """The shortage that keeps a Deployment from making a pod at all."""
    match = EXCEEDED_QUOTA.search(failure.message) if failure else None
    return Shortage(match[0].strip(), frozenset(requests_of(template["spec"]))) if match else None


def scheduler_words(message: str) -> str:
    """A message of the scheduler without its remarks about preemption."""
    return PREEMPTION.sub("", message).strip()


def why_not_in_place(
    newcomer: KubernetesObject, running: Iterable[KubernetesObject], shortage: Shortage
) -> str:
    """Why a pod or template might find no room even where a running pod has gone.

    Empty: it fits in the place of each of them. Only what is certain counts: whoever stops a pod
    that serves must know that another one can start.
    """
    if shortage.is_hopeless:
        return "no node is large enough for a new replica"
    wanted = requests_of(newcomer["spec"])
    pods = tuple(running)
    has_one_node = len({pod["spec"].get("nodeName") for pod in pods}) == 1
    for pod in pods:
        has = requests_of(pod["spec"])
        for resource in sorted(shortage.resources):
            if wanted.get(resource, Decimal(0)) > has.get(resource, Decimal(0)):
                return f"a new replica asks for more {resource} than a running one frees"
        for field in PLACEMENT:
            ours, its = newcomer["spec"].get(field), pod["spec"].get(field)
            if field == "affinity" and has_one_node:
                # All keep company there already, whether or not those that run say so.
                ours, its = without_company(ours), without_company(its)
            if not _same(ours, its):
                return f"{field} differs, so a new replica may not be allowed on that node"
        if not _tolerates(newcomer["spec"], pod["spec"]):
            return "tolerations differ, so a new replica may not be allowed on that node"
    return ""


def requests_of(pod_spec: Mapping[str, Any]) -> Mapping[str, Decimal]:
    """What a pod asks of its node, by resource: where only a limit is given, that is asked for."""
    total: dict[str, Decimal] = defaultdict(Decimal)
    most: dict[str, Decimal] = defaultdict(Decimal)
    for container in pod_spec.get("containers") or ():
        for name, amount in _requests(container).items():
            total[name] += amount
    for container in pod_spec.get("initContainers") or ():
        for name, amount in _requests(container).items():
            if container.get("restartPolicy") == "Always":
                total[name] += amount
            else:
                most[name] = max(most[name], amount)
    return {name: max(total[name], most[name]) for name in {**total, **most}}


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {name: quantity(amount) or Decimal(0) for name, amount in asked.items()}


def _same(newcomer: Any, running: Any) -> bool:
    # A template leaves to the API server to name the default scheduler.
    return (newcomer or None) == (running or None) or (
        newcomer is None and running == "default-scheduler"
    )


def _tolerates(newcomer: Mapping[str, Any], running: Mapping[str, Any]) -> bool:
    """Whether a pod tolerates what another does, aside from what admission adds by itself."""
    added = {*requests_of(running), *NODE_TAINTS}
    ours = newcomer.get("tolerations") or ()
    return all(
        each in ours or each.get("key") in added for each in running.get("tolerations") or ()
    )
