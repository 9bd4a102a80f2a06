"""Makes all the Kubernetes objects that a FastGenDeployment stands for."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from fastgen_api import names
from fastgen_api.spec import (
    SLO,
    Balancer,
    Cache,
    KubernetesObject,
    Model,
    Rollout,
    Scaling,
    Spec,
)
from fastgen_operator.balancer import balancer_children
from fastgen_operator.balancer_edge import declared_edge
from fastgen_operator.delivery import (
    MODELS_ANNOTATION,
    Delivery,
    Way,
    models_annotation,
    not_started,
    way_of,
)
from fastgen_operator.delivery_children import delivery_children
from fastgen_operator.delivery_pod import model_in_pod
from fastgen_operator.drift import put_running_template
from fastgen_operator.fingerprint import (
    DECLARED_ANNOTATION,
    POD_TEMPLATE_ANNOTATION,
    TEMPLATE_ANNOTATION,
    fingerprint,
)
from fastgen_operator.merge import their_template
from fastgen_operator.monitoring import (
    MONITORING_KINDS,
    balancer_monitoring,
    monitoring_children,
)
from fastgen_operator.owner import Owner
from fastgen_operator.party import Party, Surroundings, alone
from fastgen_operator.privileges import check_privileges
from fastgen_operator.protection import balancer_protection, protection_children
from fastgen_operator.replica import replica_children
from fastgen_operator.settings import Settings

Id: TypeAlias = tuple[str, str]
"""Kind and name: what tells a deployment's children apart, since all share its namespace."""

CHILD_KINDS: Final = (
    "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "PersistentVolumeClaim", "Service",
    "PodDisruptionBudget", "NetworkPolicy", "Job", "Deployment",
)  # fmt: skip
"""Kinds of children in the order in which they are applied: a pod finds all that it needs."""

LONGEST_NOTE: Final = 100_000
"""Characters of a pod template that is noted on its Deployment: annotations may have 256 KiB."""


def id_of(manifest: KubernetesObject) -> Id:
    """Kind and name of an object."""
    return manifest["kind"], manifest["metadata"]["name"]


def make_children(
    owner: Owner,
    spec: Spec,
    settings: Settings,
    delivery: Delivery | None = None,
    served: Collection[str] = (),
    surroundings: Surroundings | None = None,
) -> tuple[KubernetesObject, ...]:
    """The manifests of all children, in the order of CHILD_KINDS and MONITORING_KINDS.

    `delivery` tells how far the model is; None: nothing was observed. Until it is delivered, the
    replicas' Deployment is as it runs, or left out. `served`: those of MONITORING_KINDS that the
    cluster knows. `surroundings`: what of its namespace matters; None: no other deployment does.
    All members of a party make the same objects of its balancer. Raises merge.TemplateError when
    `spec.podTemplate` cannot be merged, or asks for more than the settings allow.
    """
    delivery = delivery or not_started(owner.name, spec.model)
    surroundings = surroundings or alone(owner, spec)
    party = surroundings.party
    children = [
        *_before_gate(owner, spec, settings, delivery),
        *delivery_children(owner, spec, settings, delivery),
        *protection_children(owner, spec, settings.network_policies, surroundings),
        *monitoring_children(
            owner, spec, settings.monitoring, served, shares_balancer=party.is_shared
        ),
    ]
    gated = _behind_gate(children, names.replica_name(owner.name), delivery)
    return in_order([*gated, *party_children(party, settings, served)])


def party_children(
    party: Party, settings: Settings, served: Collection[str] = ()
) -> tuple[KubernetesObject, ...]:
    """The manifests of a balancer's objects, whichever of its deployments asks for them."""
    children = [
        *balancer_children(party, settings.images, settings.prometheus_url),
        *balancer_protection(party, settings.network_policies),
        *balancer_monitoring(party, settings.monitoring, served),
    ]
    for child in children:
        if child["kind"] == "Deployment":
            _mark(child, _declared_of_balancer(party, settings))
    return in_order(children)


def in_order(children: Iterable[KubernetesObject]) -> tuple[KubernetesObject, ...]:
    """The children in the order in which they are applied."""
    order = (*CHILD_KINDS, *MONITORING_KINDS)
    return tuple(sorted(children, key=lambda child: order.index(child["kind"])))


def _declared_of_balancer(party: Party, settings: Settings) -> str:
    """What moves a balancer's pods.

    The one setting of the operator that reaches running pods, the balancer's edge, how long its
    pods may have to wait for what they hold, and the same edits of a member as move its replicas.
    """
    held = (f"hold {party.hold_seconds}",) if party.hold_seconds else ()
    more = (settings.prometheus_url, *declared_edge(party.edge), *held)
    declared = [declared_fingerprint(each.spec, *more) for each in party.members]
    return fingerprint(declared) if party.is_shared else declared[0]


def wanted_replicas(
    owner: Owner, spec: Spec, settings: Settings, delivery: Delivery | None = None
) -> KubernetesObject:
    """The replicas' Deployment as the spec wants it, whether or not its model is there yet.

    Raises merge.TemplateError as `make_children` does.
    """
    delivery = delivery or not_started(owner.name, spec.model)
    children = _before_gate(owner, spec, settings, delivery)
    return next(child for child in children if child["kind"] == "Deployment")


def _before_gate(
    owner: Owner, spec: Spec, settings: Settings, delivery: Delivery
) -> tuple[KubernetesObject, ...]:
    model = model_in_pod(owner, spec, settings, delivery)
    aliases = settings.metric_aliases
    children = replica_children(owner, spec, settings.images, model, aliases)
    name = names.replica_name(owner.name)
    for child in children:
        if child["kind"] == "Deployment":
            template = child["spec"]["template"]
            check_privileges(settings.pod_templates, template, their_template(spec), name)
            _mark(child, declared_fingerprint(spec, *_delivered(spec, delivery)))
    return children


def _delivered(spec: Spec, delivery: Delivery) -> tuple[str, ...]:
    """What a download found out about the model of new pods."""
    if delivery.model is None or way_of(spec.model) in (Way.IMAGE, Way.CLAIM):
        return ()
    return delivery.model.path, delivery.model.revision or ""


def _behind_gate(
    children: Iterable[KubernetesObject], name: str, delivery: Delivery
) -> Iterator[KubernetesObject]:
    """The children, where the replicas' Deployment keeps its pods until their model is there."""
    for child in children:
        if (child["kind"], child["metadata"]["name"]) != ("Deployment", name):
            yield child
        elif delivery.model is not None:
            child["metadata"]["annotations"] |= models_annotation(delivery)
            yield child
        elif delivery.held is not None:
            running = delivery.held["metadata"].get("annotations") or {}
            kept = (DECLARED_ANNOTATION, MODELS_ANNOTATION)
            child["metadata"]["annotations"] = {
                each: running[each] for each in kept if each in running
            }
            put_running_template(child, delivery.held)
            yield child


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
    text = msgspec.json.encode(template, order="sorted").decode()
    if len(text) <= LONGEST_NOTE:
        deployment["metadata"]["annotations"][POD_TEMPLATE_ANNOTATION] = text


def declared_fingerprint(spec: Spec, *more: str) -> str:
    """Fingerprint of the part of the spec that may change pods.

    Replicas, SLO, scaling and the picker's settings reach running processes without a restart.
    """
    declared = msgspec.structs.replace(
        spec,
        model=_in_pods(spec.model),
        replicas=1,
        slo=SLO(),
        scaling=Scaling(),
        balancer=Balancer(),
        rollout=Rollout(drain_seconds=spec.rollout.drain_seconds),
    )
    return fingerprint([msgspec.to_builtins(declared), *more])


def _in_pods(model: Model) -> Model:
    """The model without what its download alone heeds."""
    if way_of(model) is not Way.CACHE:
        return model
    cache = Cache(type=model.cache.type, claim_name=model.cache.claim_name)
    return msgspec.structs.replace(model, cache=cache, token_secret_ref=None)
