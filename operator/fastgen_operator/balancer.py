"""Makes what clients talk to: a balancer's Deployment, Service and access rights."""

from typing import Any, Final

from fastgen_api import names, sharing
from fastgen_api.envoy import CONFIGURATION_FILE, envoy_command
from fastgen_api.names import Component, Port
from fastgen_api.spec import Balancer, KubernetesObject
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
from fastgen_operator.owner import child_labels, selector_labels
from fastgen_operator.party import Party
from fastgen_operator.protection import GUARDED_LABEL
from fastgen_operator.service_account import RBAC_GROUP, TOKEN_DIRECTORY, token_volume
from fastgen_operator.settings import Images

DIRECTORY: Final = "/run/fastgen"
"""Where the pod's containers leave files for one another."""
GRACE_MARGIN_SECONDS: Final = 20
"""Above hold and drain: the time in which Envoy fails its health first, and the process' end."""
PROGRESS_DEADLINE_SECONDS: Final = 600


def balancer_children(
    party: Party, images: Images, prometheus_url: str
) -> tuple[KubernetesObject, ...]:
    """What runs a balancer, and lets clients find it.

    `prometheus_url` is the operator's default; the balancer reads its members' own itself.
    """
    return (
        _service_account(party),
        _role(party),
        _role_binding(party),
        edge.client_service(party),
        _deployment(party, images, prometheus_url),
    )


def _metadata(party: Party) -> KubernetesObject:
    return party.metadata(names.balancer_name(party.name))


def _service_account(party: Party) -> KubernetesObject:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(party),
        "automountServiceAccountToken": False,
    }


def _role(party: Party) -> KubernetesObject:
    """What the picker and its autoscalers may do; the operator must hold each of these rights."""
    members = [each.owner.name for each in party.members]
    leases = [lease(each) for each in members for lease in (names.balancer_name, names.memo_name)]
    # Who is to be woken for a request that a route leads elsewhere: that autoscaler's leader.
    asked = [names.balancer_name(each) for each in party.targets]
    return {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "Role",
        "metadata": _metadata(party),
        "rules": [
            _rule(names.GROUP, [names.PLURAL], ["get", "list", "watch"]),
            _rule(names.GROUP, [f"{names.PLURAL}/scale"], ["update"], members),
            _rule(names.GROUP, [f"{names.PLURAL}/status"], ["patch"], members),
            # The name of what is created is not known to the authorizer.
            _rule("coordination.k8s.io", ["leases"], ["create"]),
            _rule("coordination.k8s.io", ["leases"], ["get", "update"], leases),
            *([_rule("coordination.k8s.io", ["leases"], ["get"], asked)] if asked else []),
            _rule("events.k8s.io", ["events"], ["create"]),
            _rule("", ["pods"], ["get", "list", "watch"]),
            _rule("discovery.k8s.io", ["endpointslices"], ["get", "list", "watch"]),
            # Whoever else scales the resource: the autoscaler gives way.
            _rule("autoscaling", ["horizontalpodautoscalers"], ["list", "watch"]),
        ],
    }


def _rule(
    group: str, resources: list[str], verbs: list[str], called: list[str] | None = None
) -> KubernetesObject:
    rule: KubernetesObject = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return rule | ({"resourceNames": called} if called else {})


def _role_binding(party: Party) -> KubernetesObject:
    name = names.balancer_name(party.name)
    return {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(party),
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": party.namespace}],
    }


def _deployment(party: Party, images: Images, prometheus_url: str) -> KubernetesObject:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(party),
        "spec": {
            "replicas": sharing.pods_of([each.declared for each in party.members]),
            "minReadySeconds": 1,
            "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector_labels(party.identity, Component.BALANCER)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {
                    "labels": child_labels(party.identity, Component.BALANCER)
                    | {GUARDED_LABEL: "true"},
                    "annotations": scrape_annotations(Port.BALANCER_METRICS),
                },
                "spec": _pod(party, images, prometheus_url),
            },
        },
    }


def _pod(party: Party, images: Images, prometheus_url: str) -> KubernetesObject:
    balancer = party.edge
    pod: KubernetesObject = {
        "serviceAccountName": names.balancer_name(party.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": (
            party.hold_seconds + party.drain_seconds + GRACE_MARGIN_SECONDS
        ),
        "affinity": {"podAntiAffinity": _apart(party)},
        "initContainers": [_bootstrap(images, balancer)],
        "containers": [
            _envoy(images, balancer),
            _picker(party, images, prometheus_url),
        ],
        "volumes": [
            {"name": "run"} | edge.shared_directory(balancer),
            {"name": "tmp", "emptyDir": {}},
            token_volume(),
            *edge.secret_volumes(balancer),
        ],
    }
    secrets: list[KubernetesObject] = []
    for each in party.members:
        secrets += (one for one in each.spec.image_pull_secrets if one not in secrets)
    secrets += local_references(images.pull_secrets)
    return pod | ({"imagePullSecrets": secrets} if secrets else {})


def _apart(party: Party) -> KubernetesObject:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": selector_labels(party.identity, Component.BALANCER)},
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


def _picker(party: Party, images: Images, prometheus_url: str) -> KubernetesObject:
    balancer = party.edge
    arguments = [
        f"--directory={DIRECTORY}",
        f"--balancer={party.name}",
        f"--namespace={party.namespace}",
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
