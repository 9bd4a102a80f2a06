"""Decides what a FastGenDeployment's status says."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fastgen_api import names
from fastgen_api.names import Component, Condition
from fastgen_api.spec import KubernetesObject, Rollout, ScalingMode
from fastgen_operator.ailments import AILMENTS
from fastgen_operator.cold_start import cold_start_seconds
from fastgen_operator.observed import Observed, deployment_of, pods_of
from fastgen_operator.owner import Owner, selector_labels
from fastgen_operator.replica import CONTAINER
from fastgen_operator.settings import Settings
from fastgen_operator.situation import Outcome, Situation, situation_of
from fastgen_operator.verdicts import Verdict, phase, verdicts

OUR_CONDITIONS: Final = frozenset(
    {
        Condition.READY,
        Condition.RECONCILING,
        Condition.STALLED,
        Condition.AVAILABLE,
        Condition.MODEL_READY,
        Condition.ROLLOUT_BLOCKED,
        Condition.CAPACITY_BLOCKED,
        Condition.ROUTE_BLOCKED,
        Condition.UPGRADE_AVAILABLE,
        Condition.SCALING_FROZEN,
        Condition.FOREIGN_SCALER,
    }
)
"""The other conditions are the balancer's."""
OUR_FIELDS: Final = (
    "observedGeneration",
    "replicas",
    "readyReplicas",
    "updatedReplicas",
    "selector",
    "url",
    "runtimeImage",
    "coldStartSeconds",
    "model",
)
DEFAULT_DEADLINE_SECONDS: Final = Rollout().progress_deadline_seconds
NOTHING_MORE: Final = Outcome()
SCHEDULER_COUNTS: Final = "nodes are available"
FIGURES: Final = re.compile(r"\d+")
REASON: Final = re.compile("[A-Za-z]([A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")
"""What the definition takes; reasons may come from objects that others write."""
NO_REASON: Final = "Unknown"
MAX_MESSAGE: Final = 4000
"""Characters: a status is read on a screen, and what others write may be of any length."""
STATUS_WORDS: Final = {True: "True", False: "False", None: "Unknown"}


@dataclass(frozen=True, slots=True)
class Notice:
    """What a Kubernetes event about the FastGenDeployment says."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


def status_of(
    owner: Owner,
    observed: Observed,
    now: datetime,
    previous: KubernetesObject,
    outcome: Outcome = NOTHING_MORE,
) -> KubernetesObject:
    """The operator's part of the status.

    `previous` is the whole status before; from it comes the time of conditions that did not change.
    `outcome` is what the reconcile knows beside what it observed.
    """
    generation = previous.get("observedGeneration", 0) if owner.paused else owner.generation
    applied = generation == owner.generation
    situation = situation_of(owner, observed, outcome, applied, now)
    fields: KubernetesObject = {
        "observedGeneration": generation,
        "replicas": situation.replicas.existing,
        "readyReplicas": situation.replicas.ready,
        "updatedReplicas": situation.replicas.updated,
        "selector": _selector(owner),
        "url": _url(observed, owner),
        "runtimeImage": _runtime_image(observed, owner),
        "coldStartSeconds": _cold_start(observed, owner, previous),
        "model": _model(situation, previous),
        "conditions": _dated(verdicts(situation), previous, now, generation),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _model(situation: Situation, previous: KubernetesObject) -> KubernetesObject:
    """What is told of the model; what is not known anew stays as it was told last."""
    delivery = situation.delivery
    told = previous.get("model") or {}
    if delivery is not None:
        told = {
            "revision": delivery.revision,
            "sizeBytes": delivery.size_bytes,
            "downloadedPercent": delivery.downloaded_percent,
        }
    kept = {name: value for name, value in told.items() if value is not None}
    return kept | {"phase": phase(situation)}


def is_frozen(raw: KubernetesObject, settings: Settings) -> bool:
    """Whether the fleet's freeze holds this resource's autoscaler; `raw` is its spec as stored.

    A spec that this version cannot read is frozen all the same.
    """
    mode = (raw.get("scaling") or {}).get("mode", ScalingMode.AUTO)
    return settings.scaling_frozen and mode == ScalingMode.AUTO


def same_status(ours: KubernetesObject, previous: KubernetesObject) -> bool:
    """Whether the previous status says what ours does, the balancer's part aside.

    The generation is told by the status itself; that a condition bears an older one is no news.
    """
    before = [each for each in previous.get("conditions") or () if each["type"] in OUR_CONDITIONS]
    return all(ours.get(field) == previous.get(field) for field in OUR_FIELDS) and (
        _comparable(before) == _comparable(ours["conditions"])
    )


def notices_of(
    previous: KubernetesObject, status: KubernetesObject, created: bool
) -> tuple[Notice, ...]:
    """What is worth telling about the step from one status to the next."""
    before = _reasons(previous)
    notices = []
    warned: dict[str, str] = {}  # Several conditions may tell of the same.
    if created and previous.get("observedGeneration", 0) <= 0:
        notices.append(Notice("Normal", "Created", "taken up: its Kubernetes objects are made"))
    for condition in status["conditions"]:
        told = before.get(condition["type"])
        if told == (condition["status"], condition["reason"]):
            continue
        if _is_warning(condition):
            warned.setdefault(condition["reason"], condition["message"])
        elif condition["type"] == Condition.READY and condition["status"] == "True":
            notices.append(Notice("Normal", "Ready", condition["message"]))
        elif condition["type"] == Condition.READY and told and told[0] == "True":
            notices.append(Notice("Normal", condition["reason"], condition["message"]))
    warnings = (Notice("Warning", reason, message) for reason, message in warned.items())
    return (*(each for each in notices if each.reason not in warned), *warnings)


def _is_warning(condition: KubernetesObject) -> bool:
    match condition["type"]:
        case Condition.STALLED | Condition.FOREIGN_SCALER:
            return bool(condition["status"] == "True")
        case Condition.CAPACITY_BLOCKED | Condition.ROLLOUT_BLOCKED | Condition.ROUTE_BLOCKED:
            return bool(condition["status"] == "True")
        case Condition.READY | Condition.MODEL_READY:
            return condition["status"] == "False" and condition["reason"] in AILMENTS
        case _:
            return False


def _reasons(status: KubernetesObject) -> dict[str, tuple[str, str]]:
    return {
        each["type"]: (each["status"], each["reason"]) for each in status.get("conditions") or ()
    }


def _comparable(conditions: Iterable[KubernetesObject]) -> dict[str, KubernetesObject]:
    return {
        each["type"]: {
            **{name: each[name] for name in each if name != "observedGeneration"},
            "message": _without_counts(each["message"]),
        }
        for each in conditions
    }


def _without_counts(message: str) -> str:
    """A message whose figures are no news: the scheduler counts all nodes of the cluster anew."""
    return FIGURES.sub("#", message) if SCHEDULER_COUNTS in message else message


def _selector(owner: Owner) -> str:
    labels = selector_labels(owner, Component.REPLICA)
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _runtime_image(observed: Observed, owner: Owner) -> str | None:
    deployment = deployment_of(observed, owner.name, Component.REPLICA)
    if deployment is None:
        return None
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return next((each.get("image") for each in containers if each["name"] == CONTAINER), None)


def _url(observed: Observed, owner: Owner) -> str:
    balancer = observed.balancer or owner.name
    service = observed.children.get(("Service", names.service_name(balancer))) or {}
    ports = service.get("spec", {}).get("ports") or ()
    speaks_tls = any(port.get("name") == "https" for port in ports)
    return names.url(balancer, owner.namespace, tls=speaks_tls)


def _cold_start(observed: Observed, owner: Owner, previous: KubernetesObject) -> int | None:
    deployment = deployment_of(observed, owner.name, Component.REPLICA)
    spec = deployment["spec"] if deployment else {}
    return cold_start_seconds(
        pods_of(observed, Component.REPLICA),
        spec.get("progressDeadlineSeconds", DEFAULT_DEADLINE_SECONDS),
        previous.get("coldStartSeconds"),
    )


def _dated(
    verdicts: Iterable[Verdict], previous: KubernetesObject, now: datetime, generation: int
) -> list[KubernetesObject]:
    """Conditions as Kubernetes writes them; the time moves only when the status does."""
    before = {each["type"]: each for each in previous.get("conditions") or ()}
    conditions = []
    for verdict in verdicts:
        status = STATUS_WORDS[verdict.status]
        last = before.get(verdict.type)
        unchanged = last is not None and last["status"] == status
        conditions.append(
            {
                "type": verdict.type,
                "status": status,
                "observedGeneration": generation,
                "reason": verdict.reason if REASON.fullmatch(verdict.reason) else NO_REASON,
                "message": verdict.message[:MAX_MESSAGE],
                "lastTransitionTime": (
                    last["lastTransitionTime"]
                    if last is not None and unchanged
                    else now.strftime("%Y-%m-%dT%H:%M:%SZ")
                ),
            }
        )
    return conditions
