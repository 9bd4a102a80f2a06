"""Makes the children that clients talk to: balancer Deployment, Service and access rights."""

from typing import Any, Final

from fastgen_api import names
from fastgen_api.envoy import CONFIGURATION_FILE, envoy_command
from fastgen_api.names import Component, Port
from fastgen_api.spec import Balancer, KubernetesObject, Spec, hold_seconds
from fastgen_operator import balancer_edge as edge
from fastgen_operator.arguments import literal
from fastgen_operator.confinement import (
    CONTAINER_SECURITY,
    HOME,
    POD_NAME,
    POD_SECURITY,
    local_references,
    scrape_annotations,
)
from fastgen_operator.owner import Owner, child_labels, child_metadata, selector_labels
from fastgen_operator.protection import GUARDED_LABEL
from fastgen_operator.service_account import RBAC_GROUP, TOKEN_DIRECTORY, token_volume
from fastgen_operator.settings import Images

DIRECTORY: Final = "/run/fastgen"
"""Where the pod's containers leave files for one another."""
GRACE_MARGIN_SECONDS: Final = 20
"""Above hold and drain: the time in which Envoy fails its health first, and the process' end."""
PROGRESS_DEADLINE_SECONDS: Final = 600


def balancer_children(
    owner: Owner, spec: Spec, images: Images, prometheus_url: str
) -> tuple[KubernetesObject, ...]:
    """All children of the component `balancer`.

    `prometheus_url` is the operator's default; the balancer reads the resource's own itself.
    """
    return (
        _service_account(owner),
        _role(owner),
        _role_binding(owner),
        edge.client_service(owner, spec.balancer),
        _deployment(owner, spec, images, prometheus_url),
    )


def _metadata(owner: Owner) -> KubernetesObject:
    return child_metadata(owner, names.balancer_name(owner.name), Component.BALANCER)


def _service_account(owner: Owner) -> KubernetesObject:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(owner),
        "automountServiceAccountToken": False,
    }


def _role(owner: Owner) -> KubernetesObject:
    """What the picker and its autoscaler may do; the operator must hold each of these rights."""
    return {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "Role",
        "metadata": _metadata(owner),
        "rules": [
            _rule(names.GROUP, [names.PLURAL], ["get", "list", "watch"]),
            _rule(names.GROUP, [f"{names.PLURAL}/scale"], ["update"], owner.name),
            _rule(names.GROUP, [f"{names.PLURAL}/status"], ["patch"], owner.name),
            # The name of what is created is not known to the authorizer.
            _rule("coordination.k8s.io", ["leases"], ["create"]),
            _rule(
                "coordination.k8s.io",
                ["leases"],
                ["get", "update"],
                names.balancer_name(owner.name),
                names.memo_name(owner.name),
            ),
            _rule("events.k8s.io", ["events"], ["create"]),
            _rule("", ["pods"], ["get", "list", "watch"]),
            _rule("discovery.k8s.io", ["endpointslices"], ["get", "list", "watch"]),
            # Whoever else scales the resource: the autoscaler gives way.
            _rule("autoscaling", ["horizontalpodautoscalers"], ["list", "watch"]),
        ],
    }


def _rule(
    group: str, resources: list[str], verbs: list[str], *resource_names: str
) -> KubernetesObject:
    rule: KubernetesObject = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return rule | ({"resourceNames": list(resource_names)} if resource_names else {})


def _role_binding(owner: Owner) -> KubernetesObject:
    name = names.balancer_name(owner.name)
    return {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(owner),
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }


def _deployment(owner: Owner, spec: Spec, images: Images, prometheus_url: str) -> KubernetesObject:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(owner),
        "spec": {
            "replicas": spec.balancer.replicas,
            "minReadySeconds": 1,
            "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector_labels(owner, Component.BALANCER)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {
                    "labels": child_labels(owner, Component.BALANCER) | {GUARDED_LABEL: "true"},
                    "annotations": scrape_annotations(Port.BALANCER_METRICS),
                },
                "spec": _pod(owner, spec, images, prometheus_url),
            },
        },
    }


def _pod(owner: Owner, spec: Spec, images: Images, prometheus_url: str) -> KubernetesObject:
    pod: KubernetesObject = {
        "serviceAccountName": names.balancer_name(owner.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": (
            hold_seconds(spec) + spec.rollout.drain_seconds + GRACE_MARGIN_SECONDS
        ),
        "affinity": {"podAntiAffinity": _apart(owner)},
        "initContainers": [_bootstrap(images, spec.balancer)],
        "containers": [
            _envoy(images, spec.balancer),
            _picker(owner, images, prometheus_url, spec.balancer),
        ],
        "volumes": [
            {"name": "run"} | edge.shared_directory(spec.balancer),
            {"name": "tmp", "emptyDir": {}},
            token_volume(),
            *edge.secret_volumes(spec.balancer),
        ],
    }
    secrets = [*spec.image_pull_secrets, *local_references(images.pull_secrets)]
    return pod | ({"imagePullSecrets": secrets} if secrets else {})


def _apart(owner: Owner) -> KubernetesObject:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": selector_labels(owner, Component.BALANCER)},
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"preferredDuringSchedulingIgnoredDuringExecution": preferred}


def _container(name: str, image: str, images: Images, **fields: Any) -> KubernetesObject:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": images.pull_policy,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **fields,
        "volumeMounts": [
            {"name": "run", "mountPath": DIRECTORY},
            {"name": "tmp", "mountPath": "/tmp"},
            *fields.get("volumeMounts", []),
        ],
    }


def _requests(cpu: str, memory: str) -> KubernetesObject:
    return {"requests": {"cpu": cpu, "memory": memory}}


def _bootstrap(images: Images, balancer: Balancer) -> KubernetesObject:
    return _container(
        "bootstrap",
        images.control,
        images,
        command=[
            "fastgen-balancer",
            "bootstrap",
            f"--directory={DIRECTORY}",
            *edge.bootstrap_arguments(balancer),
        ],
        env=[HOME],
        resources=_requests("20m", "64Mi"),
        volumeMounts=edge.bootstrap_mounts(balancer),
    )


def _drain() -> KubernetesObject:
    """Both containers wait for the open streams: either one's end would break them."""
    return {"preStop": {"httpGet": {"path": "/drain", "port": Port.BALANCER_HTTP}}}


def _envoy(images: Images, balancer: Balancer) -> KubernetesObject:
    name = edge.listener_name(balancer)
    own = ["fastgen-balancer", "envoy", f"--directory={DIRECTORY}"]
    foreign = envoy_command(f"{DIRECTORY}/{CONFIGURATION_FILE}")
    return _container(
        "envoy",
        images.envoy or images.control,
        images,
        command=foreign if images.envoy else own,
        env=[HOME],
        ports=[{"name": name, "containerPort": Port.BALANCER, "protocol": "TCP"}],
        readinessProbe={
            "httpGet": {"path": names.BALANCER_HEALTH_PATH} | edge.listener_probe(balancer),
            "periodSeconds": 2,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        livenessProbe={
            "tcpSocket": {"port": name},
            "initialDelaySeconds": 20,
            "periodSeconds": 15,
            "timeoutSeconds": 5,
            "failureThreshold": 8,
        },
        lifecycle=_drain(),
        resources=_requests("50m", "64Mi"),
        volumeMounts=edge.envoy_mounts(balancer),
    )


def _picker(
    owner: Owner, images: Images, prometheus_url: str, balancer: Balancer
) -> KubernetesObject:
    arguments = [
        f"--directory={DIRECTORY}",
        f"--deployment={owner.name}",
        f"--namespace={owner.namespace}",
        f"--metrics-port={Port.BALANCER_METRICS}",
        f"--peers-port={Port.BALANCER_PEERS}",
        *([f"--prometheus-url={prometheus_url}"] if prometheus_url else []),
        *edge.picker_arguments(balancer),
    ]
    http = {"port": "probes"}
    return _container(
        "picker",
        images.control,
        images,
        command=["fastgen-balancer", "picker"],
        args=literal(arguments),
        env=[POD_NAME, HOME],
        ports=[
            {"name": "probes", "containerPort": Port.BALANCER_HTTP, "protocol": "TCP"},
            {"name": "metrics", "containerPort": Port.BALANCER_METRICS, "protocol": "TCP"},
            {"name": "peers", "containerPort": Port.BALANCER_PEERS, "protocol": "TCP"},
            *edge.picker_ports(balancer),
        ],
        readinessProbe={
            "httpGet": {"path": "/readyz"} | http,
            "periodSeconds": 2,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        livenessProbe={
            "httpGet": {"path": "/healthz"} | http,
            "initialDelaySeconds": 20,
            "periodSeconds": 15,
            "timeoutSeconds": 5,
            "failureThreshold": 8,
        },
        lifecycle=_drain(),
        resources=_requests("50m", "96Mi"),
        volumeMounts=[
            {"name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": True},
            *edge.picker_mounts(balancer),
        ],
    )
