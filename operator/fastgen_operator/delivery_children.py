"""Makes the children of the component `download`: one Job per model, its rights and its claim."""

from collections.abc import Collection
from typing import Any, Final

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.quantity import quantity
from fastgen_api.spec import KubernetesObject, RetentionPolicy, Spec
from fastgen_operator.confinement import POD_SECURITY
from fastgen_operator.delivery import (
    Delivery,
    JobStep,
    Way,
    foreign_claim_name,
    key_of,
    way_of,
)
from fastgen_operator.delivery_pod import (
    CLAIM_SECURITY,
    CONTAINER,
    download_arguments,
    download_container,
    download_volume,
)
from fastgen_operator.download_template import of_download, with_template
from fastgen_operator.fingerprint import DECLARED_ANNOTATION, TEMPLATE_ANNOTATION, fingerprint
from fastgen_operator.merge import their_template
from fastgen_operator.owner import Owner, child_labels, child_metadata
from fastgen_operator.placement import company_labels, placement
from fastgen_operator.service_account import RBAC_GROUP, TOKEN_DIRECTORY, token_volume
from fastgen_operator.settings import Settings

BACKOFF_LIMIT: Final = 40
"""Attempts after failures that may pass: Kubernetes waits longer each time, up to ten minutes."""
FAILS_FOR_GOOD: Final = (1, 2)
"""Exit codes of failures that no retry mends; 2: flags that the image does not know."""
GRACE_SECONDS: Final = 30
SCHEDULING: Final = (
    "imagePullSecrets", "nodeSelector", "tolerations", "affinity", "priorityClassName",
)  # fmt: skip
"""Fields that a download's pod shares with the replicas."""


def delivery_children(
    owner: Owner, spec: Spec, settings: Settings, delivery: Delivery
) -> tuple[KubernetesObject, ...]:
    """All children of the component `download`; none for a model that is where pods find it.

    Raises merge.TemplateError when `spec.podTemplate` cannot be merged into the Job.
    """
    way = way_of(spec.model)
    if way not in (Way.CACHE, Way.POD):
        return ()
    children = [_service_account(owner), _role(owner), _role_binding(owner), _config_map(owner)]
    is_leaving = delivery.claim is not None and "deletionTimestamp" in delivery.claim["metadata"]
    if way is Way.CACHE and not foreign_claim_name(owner.name, spec.model) and not is_leaving:
        children.append(_claim(owner, spec, delivery.claim))
    if delivery.job is JobStep.MAKE:
        children.append(_job(owner, spec, settings, delivery))
    return tuple(children)


def _metadata(owner: Owner, name: str) -> KubernetesObject:
    return child_metadata(owner, name, Component.DOWNLOAD)


def _service_account(owner: Owner) -> KubernetesObject:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(owner, names.download_name(owner.name)),
        "automountServiceAccountToken": False,
    }


def _role(owner: Owner) -> KubernetesObject:
    """Only to tell how far the download is; the operator must hold these rights itself."""
    return {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "Role",
        "metadata": _metadata(owner, names.download_name(owner.name)),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "verbs": ["get", "patch"],
                "resourceNames": [names.model_config_map_name(owner.name)],
            }
        ],
    }


def _role_binding(owner: Owner) -> KubernetesObject:
    name = names.download_name(owner.name)
    return {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(owner, name),
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }


def _config_map(owner: Owner) -> KubernetesObject:
    """Without data: those are the download's own, and no apply of ours may take them away."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(owner, names.model_config_map_name(owner.name)),
    }


def _claim(owner: Owner, spec: Spec, found: KubernetesObject | None) -> KubernetesObject:
    """The claim for models; of one that exists only the size may change, and only upwards.

    Without an owner reference it outlives the FastGenDeployment, and the next one of that name
    takes it back by its labels.
    """
    metadata = _metadata(owner, names.models_claim_name(owner.name))
    if spec.model.cache.retention_policy is RetentionPolicy.RETAIN:
        del metadata["ownerReferences"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": _claim_spec(spec, found),
    }


def _claim_spec(spec: Spec, found: KubernetesObject | None) -> KubernetesObject:
    cache = spec.model.cache
    existing: dict[str, Any] = found["spec"] if found else {}
    modes = existing.get("accessModes") or list(cache.access_modes)
    storage_class = existing.get("storageClassName") if found else cache.storage_class_name
    return {
        "accessModes": modes,
        "resources": {"requests": {"storage": _larger(cache.size, _size_of(existing))}},
        **({} if storage_class is None else {"storageClassName": storage_class}),
    }


def _size_of(claim_spec: KubernetesObject) -> Any:
    return claim_spec.get("resources", {}).get("requests", {}).get("storage")


def _larger(wanted: Any, existing: Any) -> Any:
    numbers = quantity(wanted), quantity(existing)
    if numbers[0] is None or numbers[1] is None:
        return wanted
    return existing if numbers[1] >= numbers[0] else wanted


def claim_problem(spec: Spec, found: KubernetesObject | None) -> str:
    """Why an existing claim can never become what the spec says; empty: it can."""
    if found is None:
        return ""
    cache, existing = spec.model.cache, found["spec"]
    name = found["metadata"]["name"]
    wishes = []
    storage_class = existing.get("storageClassName")
    if cache.storage_class_name is not None and cache.storage_class_name != storage_class:
        wishes.append(
            f"has the storage class {storage_class or '(none)'}, and "
            f"spec.model.cache.storageClassName asks for {cache.storage_class_name}"
        )
    modes = existing.get("accessModes") or []
    if set(modes) != set(cache.access_modes):
        wishes.append(
            f"has the access modes {', '.join(modes)}, and spec.model.cache.accessModes asks for "
            f"{', '.join(cache.access_modes)}"
        )
    if not wishes:
        return ""
    return (
        f"PersistentVolumeClaim {name} {' and '.join(wishes)}: a claim cannot change these. Put "
        f"them back, or delete the claim: it goes when no pod uses it, a new one is made and the "
        f"model downloaded again"
    )


def job_marks(
    owner: Owner, spec: Spec, settings: Settings, modes: Collection[str]
) -> dict[str, str]:
    """What tells a Job from one that would be made now.

    Declared: the owner's part, which may replace a Job at work. Template: all of it.
    modes: access modes of the claim that it writes to.
    """
    model = spec.model
    cache = [model.cache.type, foreign_claim_name(owner.name, model)]
    declared = [model.source, model.revision, model.token_secret_ref, cache, spec.image]
    nodes = [spec.node_selector, spec.tolerations, spec.affinity, spec.priority_class_name]
    concerned = of_download(their_template(spec))
    theirs = [concerned] if concerned else []
    pod = _pod(owner, spec, settings, None, modes)
    return {
        DECLARED_ANNOTATION: fingerprint([*declared, spec.image_pull_secrets, nodes, *theirs]),
        TEMPLATE_ANNOTATION: fingerprint([pod, *theirs] if theirs else pod),
    }


def _job(owner: Owner, spec: Spec, settings: Settings, delivery: Delivery) -> KubernetesObject:
    key = key_of(owner.name, spec.model)
    marks = job_marks(owner, spec, settings, delivery.modes)
    pod = _pod(owner, spec, settings, delivery.pinned, delivery.modes)
    labels = company_labels(owner, spec, delivery.modes)
    metadata = _metadata(owner, names.download_job_name(owner.name, key))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata | {"annotations": marks},
        "spec": {
            "backoffLimit": BACKOFF_LIMIT,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": {
                "metadata": {
                    "labels": child_labels(owner, Component.DOWNLOAD) | labels,
                    "annotations": {TEMPLATE_ANNOTATION: marks[TEMPLATE_ANNOTATION]},
                },
                "spec": with_template(pod, their_template(spec), settings.pod_templates),
            },
        },
    }


def _failure_rules() -> list[KubernetesObject]:
    """A drained node or a preempted pod is no failure; the program says what is final."""
    codes = {"containerName": CONTAINER, "operator": "In", "values": list(FAILS_FOR_GOOD)}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        {"action": "Ignore", "onPodConditions": disrupted},
        {"action": "FailJob", "onExitCodes": codes},
    ]


def _pod(
    owner: Owner, spec: Spec, settings: Settings, pinned: str | None, modes: Collection[str]
) -> KubernetesObject:
    arguments = [
        *download_arguments(spec, pinned),
        *(["--resolve-only"] if way_of(spec.model) is Way.POD else []),
        f"--namespace={owner.namespace}",
        f"--config-map={names.model_config_map_name(owner.name)}",
        f"--key={key_of(owner.name, spec.model)}",
    ]
    token = {"name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": True}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": names.download_name(owner.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY | CLAIM_SECURITY,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [download_container(spec, settings, arguments, volume_mounts=[token])],
        "volumes": [
            download_volume(owner, spec),
            {"name": "tmp", "emptyDir": {}},
            token_volume(),
        ],
        **_scheduling(owner, spec, settings, modes),
    }


def _scheduling(
    owner: Owner, spec: Spec, settings: Settings, modes: Collection[str]
) -> KubernetesObject:
    """The replicas' nodes, so that a volume of one node or zone is near them."""
    replicas = placement(owner, spec, settings.images, modes)
    return {field: replicas[field] for field in SCHEDULING if field in replicas}
