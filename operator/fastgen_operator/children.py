"""Makes all the Kubernetes objects that a FastGenDeployment stands for."""

from typing import Final, TypeAlias

import msgspec

from fastgen_api import names
from fastgen_api.spec import SLO, Balancer, KubernetesObject, Rollout, Scaling, Spec
from fastgen_operator.balancer import balancer_children
from fastgen_operator.fingerprint import DECLARED_ANNOTATION, TEMPLATE_ANNOTATION, fingerprint
from fastgen_operator.owner import Owner
from fastgen_operator.protection import protection_children
from fastgen_operator.replica import replica_children
from fastgen_operator.settings import Settings

Id: TypeAlias = tuple[str, str]
"""Kind and name: what tells a deployment's children apart, since all share its namespace."""

CHILD_KINDS: Final = (
    "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "PersistentVolumeClaim", "Service",
    "PodDisruptionBudget", "NetworkPolicy", "Job", "Deployment",
)  # fmt: skip
"""Kinds of children in the order in which they are applied: a pod finds all that it needs."""


def id_of(manifest: KubernetesObject) -> Id:
    """Kind and name of an object."""
    return manifest["kind"], manifest["metadata"]["name"]


def make_children(owner: Owner, spec: Spec, settings: Settings) -> tuple[KubernetesObject, ...]:
    """The manifests of all children, in the order of CHILD_KINDS.

    Raises merge.TemplateError when `spec.podTemplate` cannot be merged.
    """
    children = [
        *replica_children(owner, spec, settings.images),
        *balancer_children(owner, spec, settings.images, settings.prometheus_url),
        *protection_children(owner, spec, settings.network_policies),
    ]
    declared = {
        names.replica_name(owner.name): declared_fingerprint(spec),
        # The one setting of the operator that reaches running pods.
        names.balancer_name(owner.name): declared_fingerprint(spec, settings.prometheus_url),
    }
    for child in children:
        if child["kind"] == "Deployment":
            _mark(child, declared[child["metadata"]["name"]])
    return tuple(sorted(children, key=lambda child: CHILD_KINDS.index(child["kind"])))


def _mark(deployment: KubernetesObject, declared: str) -> None:
    """Notes on a Deployment, and on its pods, what they were made from."""
    template = deployment["spec"]["template"]
    made = fingerprint(template)
    deployment["metadata"]["annotations"] = {
        DECLARED_ANNOTATION: declared,
        TEMPLATE_ANNOTATION: made,
    }
    annotations = template["metadata"].get("annotations") or {}
    template["metadata"]["annotations"] = annotations | {TEMPLATE_ANNOTATION: made}


def declared_fingerprint(spec: Spec, *more: str) -> str:
    """Fingerprint of the part of the spec that may change pods.

    Replicas, SLO, scaling and the picker's settings reach running processes without a restart.
    """
    declared = msgspec.structs.replace(
        spec,
        replicas=1,
        slo=SLO(),
        scaling=Scaling(),
        balancer=Balancer(),
        rollout=Rollout(drain_seconds=spec.rollout.drain_seconds),
    )
    return fingerprint([msgspec.to_builtins(declared), *more])
