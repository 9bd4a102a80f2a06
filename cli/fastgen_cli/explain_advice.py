"""What to do about it: a sentence and a command for each thing that is amiss."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fastgen_api.foreign_scaler import foreign_scalers
from fastgen_api.names import PAUSED_ANNOTATION, SHORT_NAME, Condition
from fastgen_api.names import StartupFailure as Failure
from fastgen_api.spec import ScalingMode, Spec
from fastgen_cli.explain_facts import Facts
from fastgen_cli.explain_pods import PodState
from fastgen_cli.explain_readiness import is_paused, is_ready


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do."""

    text: str
    command: str = ""
    """Ready to be pasted; words in capitals are the reader's to fill in."""


EDIT: Final = "edit fgd {name}"
CLAIMS: Final = "get persistentvolumeclaims"
LOGS: Final = "logs {pod} --all-containers --tail=50"
DESCRIBE_POD: Final = "describe pod {pod}"
PREVIOUS: Final = "logs {pod} --all-containers --previous --tail=50"

BY_REASON: Final = {
    Failure.MODEL_NOT_FOUND: ("Correct spec.model.source and spec.model.revision.", EDIT),
    Failure.MODEL_UNSUPPORTED: (
        "Choose a model and a form of weights that this version runs: docs/engine.md lists them.",
        EDIT,
    ),
    Failure.MODEL_INVALID: (
        "Replace the model's files, or name others in spec.model.source.",
        EDIT,
    ),
    Failure.OUT_OF_MEMORY: (
        "Raise spec.resources, or lower spec.engine.maxModelLength or maxConcurrentRequests.",
        EDIT,
    ),
    Failure.CONFIG_INVALID: ("Correct the field that the message names.", EDIT),
    Failure.ACCESS_DENIED: (
        "Put a token that may read the model into a Secret, and name the Secret in "
        "spec.model.tokenSecretRef.",
        "create secret generic NAME --from-literal=token=TOKEN",
    ),
    **dict.fromkeys(
        (Failure.DOWNLOAD_FAILED, "DownloadRetrying"),
        (
            "See whether pods of this namespace reach the model's server, by a proxy or from a "
            "mirror (the chart's values hub.environment and hub.endpoint); the download goes on "
            "by itself once they do.",
            LOGS,
        ),
    ),
    Failure.CHECKSUM_MISMATCH: (
        "The server sends other bytes than it announces: look at proxies and mirrors on the way.",
        LOGS,
    ),
    Failure.CACHE_FULL: ("Give the model a larger volume: raise spec.model.cache.size.", EDIT),
    Failure.ENGINE_FAILED: ("Read what the engine said before it ended.", PREVIOUS),
    "CrashLoopBackOff": ("Read what the container said before it ended.", PREVIOUS),
    "ImagePullBackOff": (
        "Correct spec.image, or name the registry's Secret in spec.imagePullSecrets.",
        EDIT,
    ),
    "InvalidImageName": ("Correct spec.image.", EDIT),
    "ErrImageNeverPull": ("Load the image onto the nodes, or let them pull it.", EDIT),
    "CreateContainerConfigError": (
        "Create the Secret or ConfigMap that the pod names, or stop naming it.",
        DESCRIBE_POD,
    ),
    "Unschedulable": (
        "Make room: ask for less in spec.resources, loosen nodeSelector and affinity, add a node, "
        "or end something else.",
        DESCRIBE_POD,
    ),
    "FailedCreate": ("A quota or an admission rule refuses the pods.", "describe resourcequota"),
    "NameConflict": (
        "Delete or rename the other object, or give this FastGenDeployment another name.",
        "get deployment,service,configmap,serviceaccount,role,rolebinding",
    ),
    "BalancerNameTaken": (
        "Give the shared balancer another name in spec.balancer.name of all that share it.",
        "get fgd -o custom-columns=NAME:.metadata.name,BALANCER:.spec.balancer.name",
    ),
    "BalancerDiffers": (
        "Make the field that the message names the same as in the oldest one that shares the "
        "balancer, or name another balancer in spec.balancer.name.",
        EDIT,
    ),
    "ServedNameTaken": (
        "Give this one another spec.model.servedName, or another balancer (spec.balancer.name).",
        EDIT,
    ),
    "RouteTargetMissing": (
        "Create the FastGenDeployment that the route names, or remove the route.",
        EDIT,
    ),
    "Contested": (
        "Let one of the two write it: change the FastGenDeployment instead, or stop the other one.",
        "get deployment,service,configmap,role,rolebinding --show-managed-fields -o yaml",
    ),
    "WaitingForDeletion": (
        "Wait: it is made again once it is gone. If it stays, look who holds it (finalizers, or "
        "streams that have not ended).",
        "get deployment,pod,pvc",
    ),
    "APIServerError": (
        "Look at what the message names, such as an admission webhook that does not answer; the "
        "operator tries again by itself.",
        "get events --sort-by=.lastTimestamp",
    ),
    "InternalError": (
        "Undo the last change, and report the error that the operator's log tells.",
        EDIT,
    ),
    "ApplyRejected": ("Correct the field that the API server names.", EDIT),
    "InvalidSpec": ("Correct the field that the message names.", EDIT),
    "PodTemplateInvalid": ("Correct spec.podTemplate as the message says.", EDIT),
    "PodTemplateRejected": ("Correct the field that the API server names.", EDIT),
    "PodTemplateForbidden": (
        "Leave out what the message names, or ask the cluster's administrator (the chart's value "
        "podTemplate.allow).",
        EDIT,
    ),
    "ClaimNotFound": ("Create the claim, or name another one.", CLAIMS),
    "ClaimPending": (
        "See why no volume is made for it; it needs a StorageClass, named or the default.",
        "describe persistentvolumeclaims",
    ),
    "ClaimTerminating": ("Somebody deletes the claim: wait, or see who still uses it.", CLAIMS),
    "ClaimImmutable": (
        "Put spec.model.cache back as it was, or delete the claim: the model is then downloaded "
        "anew.",
        CLAIMS,
    ),
    "ClaimAccessMode": (
        "Ask for one replica, or name a claim that more pods can use (ReadWriteMany).",
        EDIT,
    ),
    "FailedMount": ("Make what cannot be mounted available to the node.", DESCRIBE_POD),
    "OOMKilled": ("Raise the memory limit in spec.resources.", EDIT),
    "NoRoomToSurge": (
        "Make room for one more pod, or let the rollout go on in place, with fewer replicas for a "
        "time: spec.rollout.strategy Auto or InPlace.",
        EDIT,
    ),
    "ProgressDeadlineExceeded": ("Read what the pods say.", LOGS),
}
"""What to do about a reason that a condition or a pod gives; commands go after `kubectl FLAGS`."""

METRICS: Final = {
    "NotConfigured": (
        "Name the Prometheus that scrapes the replicas, here or for all in the chart's value "
        "prometheus.url: without it the autoscaler never scales down.",
        {"scaling": {"prometheus": {"url": "http://PROMETHEUS:9090"}}},
    ),
    "NoSeries": ("See that Prometheus scrapes the pods of this namespace.", None),
    "LabelMismatch": (
        "See that Prometheus scrapes the pods of this namespace, and that its scrape job leaves "
        "the labels deployment and deployment_namespace as the pods tell them.",
        None,
    ),
    "StaleMetrics": (
        "See why Prometheus scrapes these pods no more (its page Targets), and whether its clock "
        "is right.",
        None,
    ),
    "PartialMetrics": (
        "See which pods Prometheus does not scrape (its page Targets); replicas of an earlier "
        "version do not tell all: edit the deployment, so that they are made anew.",
        None,
    ),
    "NotANumber": ("See which series of the pods is NaN: it is a fault of the replica.", None),
    "QueryFailed": ("Read in Prometheus' log why it refuses the query.", None),
    "BadAnswer": ("See that the URL is that of Prometheus, and not of a proxy's page.", None),
    "InvalidUrl": ("Correct spec.scaling.prometheus.url or the chart's prometheus.url.", None),
    "Unreachable": ("See that Prometheus runs and that balancer pods may reach it.", None),
    "Timeout": ("See that Prometheus runs and that balancer pods may reach it.", None),
}
"""What to do when the autoscaler sees no metrics, with a patch of the spec, by its reason."""
OF_REPLICAS: Final = frozenset({"NoSeries", "LabelMismatch", "StaleMetrics", "PartialMetrics"})
"""Those that say nothing of Prometheus while no replica runs that it could scrape."""


def advice(facts: Facts, spec: Spec | None, states: tuple[PodState, ...]) -> tuple[Advice, ...]:
    """What to do, the most urgent first; nothing when all is well."""
    found = [*_operator(facts), *_by_reason(facts, states)]
    if spec is not None:
        found += [*_scaling(facts, spec), *_metrics(facts, spec)]
    if not found and not is_ready(facts):
        wait = f"wait fgd/{facts.name} --for=condition=Ready --timeout=10m"
        found.append(Advice("Nothing to do but wait:", _kubectl(facts, wait)))
    return tuple(dict.fromkeys(found))


def _kubectl(facts: Facts, words: str) -> str:
    return f"kubectl {facts.flags} {words}" if facts.flags else f"kubectl {words}"


def _patch(facts: Facts, spec: dict[str, Any]) -> str:
    body = json.dumps({"spec": spec}, separators=(",", ":"))
    return _kubectl(facts, f"patch {SHORT_NAME} {facts.name} --type=merge -p '{body}'")


def _operator(facts: Facts) -> Iterator[Advice]:
    if is_paused(facts):
        words = f"annotate {SHORT_NAME} {facts.name} {PAUSED_ANNOTATION}-"
        yield Advice("Let the operator go on:", _kubectl(facts, words))
    elif not facts.is_current:
        yield Advice(
            "See that an operator runs and watches this namespace (the chart's value "
            "watchNamespaces):",
            "kubectl get deployments -A -l app.kubernetes.io/name=fastgen-operator",
        )


def _by_reason(facts: Facts, states: tuple[PodState, ...]) -> Iterator[Advice]:
    ailing = [each for each in states if each.state not in ("Ready", "Done", "Terminating")]
    told = [
        condition["reason"]
        for kind, status in (
            (Condition.STALLED, "True"),
            (Condition.MODEL_READY, "False"),
            (Condition.CAPACITY_BLOCKED, "True"),
            (Condition.ROLLOUT_BLOCKED, "True"),
            (Condition.ROUTE_BLOCKED, "True"),
            (Condition.READY, "False"),
        )
        if (condition := facts.condition(kind)).get("status") == status
    ]
    reasons = dict.fromkeys([*told, *(each.state for each in ailing)])
    for reason in reasons:
        if reason not in BY_REASON:
            continue
        text, words = BY_REASON[reason]
        pod = next((each for each in ailing if each.state == reason), next(iter(ailing), None))
        if "{pod}" in words and pod is None:
            words = f"describe {SHORT_NAME} {facts.name}"
        words = words.format(name=facts.name, pod=pod.name if pod else "")
        yield Advice(text, _kubectl(facts, words))


def _scaling(facts: Facts, spec: Spec) -> Iterator[Advice]:
    decision = facts.status.get("lastDecision") or {}
    blockers, mode = decision.get("blockers") or (), spec.scaling.mode
    if facts.holds(Condition.SCALING_FROZEN) and mode is ScalingMode.AUTO:
        yield Advice(
            "End the freeze (the chart's value scaling.frozen), or set replicas by hand meanwhile:",
            _kubectl(facts, f"scale {SHORT_NAME}/{facts.name} --replicas=N"),
        )
    if foreign_scalers(facts.autoscalers, facts.name) and mode is ScalingMode.AUTO:
        yield Advice(
            "Let one of the two scale: delete the other autoscaler, or end ours:",
            _patch(facts, {"scaling": {"mode": "Disabled"}}),
        )
    if mode is ScalingMode.DISABLED:
        return
    if "MaxReplicas" in blockers:
        more = {"scaling": {"maxReplicas": 2 * spec.scaling.max_replicas}}
        yield Advice("Allow more replicas, if there is room for them:", _patch(facts, more))
    if decision.get("rule") == "SLOInfeasible":
        yield Advice(
            "Relax spec.slo, shorten prompts, or take a smaller model or faster hardware.",
            _kubectl(facts, EDIT.format(name=facts.name)),
        )
    wanted = decision.get("replicas")
    if mode is ScalingMode.RECOMMEND and wanted is not None and wanted != spec.replicas:
        words = f"scale {SHORT_NAME}/{facts.name} --replicas={wanted}"
        yield Advice("To do as the autoscaler advises:", _kubectl(facts, words))


def _metrics(facts: Facts, spec: Spec) -> Iterator[Advice]:
    active = facts.condition(Condition.SCALING_ACTIVE)
    if spec.scaling.mode is ScalingMode.DISABLED or active.get("status") != "False":
        return
    # One replica at most and none fewer: the metrics would change nothing.
    if spec.scaling.min_replicas >= spec.scaling.max_replicas:
        return
    if active["reason"] in OF_REPLICAS and not is_ready(facts) and not _has_replica(facts):
        return
    if active["reason"] in METRICS:
        text, patch = METRICS[active["reason"]]
        yield Advice(text, _patch(facts, patch) if patch else "")


def _has_replica(facts: Facts) -> bool:
    return int(facts.status.get("readyReplicas", 0)) > 0
