"""Makes the children that serve a model: Deployment, headless Service, SLO, ServiceAccount."""

from typing import Final

from fastgen_api import names
from fastgen_api.names import Component, Port
from fastgen_api.scaling import replicas_wanted
from fastgen_api.spec import (
    KubernetesObject,
    Quantity,
    Quantization,
    Spec,
    Speculation,
    most_step_tokens,
    slo_json,
)
from fastgen_operator.arguments import literal
from fastgen_operator.confinement import (
    CONTAINER_SECURITY,
    HOME,
    POD_NAME,
    POD_SECURITY,
    scrape_annotations,
)
from fastgen_operator.delivery import Way, way_of
from fastgen_operator.delivery_pod import ModelInPod
from fastgen_operator.download_template import without_download
from fastgen_operator.merge import merge, their_template
from fastgen_operator.owner import Owner, child_labels, child_metadata, selector_labels
from fastgen_operator.placement import company_labels, placement
from fastgen_operator.probes import probes
from fastgen_operator.protection import GUARDED_LABEL
from fastgen_operator.rollout_strategy import rolling_update
from fastgen_operator.settings import Images
from fastgen_operator.template_contract import PATH, check_contract

CONTAINER: Final = "runtime"
SLO_DIRECTORY: Final = "/etc/fastgen"
SLO_FILE: Final = "slo.json"
PRE_STOP_SECONDS: Final = 2
"""Balancers stop picking a pod within a second of its deletion; only then does it hear SIGTERM."""
GRACE_MARGIN_SECONDS: Final = 15
"""From the end of the drain to the end of the process, before the kubelet kills it."""
MIN_READY_SECONDS: Final = 2
"""How long a new replica serves before an old one may go: time for balancers to find it."""
TENSOR_PARALLEL_SHARED_MEMORY: Final = "1Gi"
"""Size of /dev/shm when ranks talk through it: NCCL takes some MiB per pair of ranks and channel,
and the 64 MiB that container runtimes give are too few."""


def replica_children(
    owner: Owner, spec: Spec, images: Images, model: ModelInPod, metric_aliases: str = ""
) -> tuple[KubernetesObject, ...]:
    """All children of the component `replica`.

    metric_aliases: another engine, under whose names they tell their load too; empty: nobody's.
    Raises merge.TemplateError when `spec.podTemplate` cannot be merged.
    """
    return (
        _service_account(owner),
        _slo_config_map(owner, spec),
        _headless_service(owner),
        _deployment(owner, spec, images, model, metric_aliases),
    )


def runtime_image(spec: Spec, images: Images) -> str:
    """The image that a replica made now would run."""
    return spec.image or images.runtime


def runtime_arguments(owner: Owner, spec: Spec, model: str) -> list[str]:
    """Flags of `fastgen-runtime`."""
    engine = spec.engine
    flags: dict[str, str | int | None] = {
        "--model": model,
        "--served-name": spec.model.served_name or owner.name,
        "--deployment": owner.name,
        "--namespace": owner.namespace,
        "--dtype": str(engine.dtype),
        "--quantization": (
            None if engine.quantization is Quantization.AUTO else str(engine.quantization)
        ),
        "--max-model-length": engine.max_model_length,
        "--max-concurrent-requests": engine.max_concurrent_requests,
        "--kv-block-size": engine.kv_block_size,
        "--token-budget-mode": str(engine.token_budget.mode),
        "--token-budget": most_step_tokens(
            engine.token_budget.mode, engine.token_budget.max_tokens
        ),
        "--memory-percent": engine.memory_percent,
        "--slo-file": f"{SLO_DIRECTORY}/{SLO_FILE}",
        "--drain-seconds": spec.rollout.drain_seconds,
        "--http-port": Port.REPLICA_HTTP,
        "--grpc-port": Port.REPLICA_GRPC,
        "--metrics-port": Port.REPLICA_METRICS,
        "--tensor-parallel-size": (
            engine.tensor_parallel_size if engine.tensor_parallel_size > 1 else None
        ),
        "--speculation": (
            None if engine.speculation is Speculation.NONE else str(engine.speculation)
        ),
    }
    # One word per flag: a value that begins with a dash stays a value.
    arguments = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    return [*arguments, "--prefix-caching" if engine.prefix_caching else "--no-prefix-caching"]


def shared_memory(spec: Spec) -> Quantity | None:
    """Size of /dev/shm; None: as the container runtime makes it. It counts as the pod's memory."""
    if spec.shared_memory is None and spec.engine.tensor_parallel_size > 1:
        return TENSOR_PARALLEL_SHARED_MEMORY
    return spec.shared_memory


def _service_account(owner: Owner) -> KubernetesObject:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": child_metadata(owner, names.replica_name(owner.name), Component.REPLICA),
        "automountServiceAccountToken": False,
    }


def _slo_config_map(owner: Owner, spec: Spec) -> KubernetesObject:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(owner, names.slo_config_map_name(owner.name), Component.REPLICA),
        "data": {SLO_FILE: slo_json(spec.slo)},
    }


def _headless_service(owner: Owner) -> KubernetesObject:
    """Exists for its EndpointSlices, from which balancers learn the replicas' addresses."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(owner, names.replica_name(owner.name), Component.REPLICA),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": False,
            "selector": selector_labels(owner, Component.REPLICA),
            "ports": [
                {"name": "http", "port": Port.REPLICA_HTTP, "targetPort": "http",
                 "protocol": "TCP"},
                {"name": "grpc", "port": Port.REPLICA_GRPC, "targetPort": "grpc",
                 "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"},
            ],
        },
    }  # fmt: skip


def _deployment(
    owner: Owner, spec: Spec, images: Images, model: ModelInPod, metric_aliases: str
) -> KubernetesObject:
    ours = _template(owner, spec, images, model, metric_aliases)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(owner, names.replica_name(owner.name), Component.REPLICA),
        "spec": {
            "replicas": replicas_wanted(spec),
            "minReadySeconds": MIN_READY_SECONDS,
            "progressDeadlineSeconds": spec.rollout.progress_deadline_seconds,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector_labels(owner, Component.REPLICA)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update(spec.rollout)},
            "template": _merged(spec, ours),
        },
    }


def _merged(spec: Spec, ours: KubernetesObject) -> KubernetesObject:
    theirs = their_template(spec)
    check_contract(ours, theirs)
    merged = merge(ours, theirs, PATH)
    return without_download(merged) if way_of(spec.model) is Way.CACHE else merged


def _template(
    owner: Owner, spec: Spec, images: Images, model: ModelInPod, metric_aliases: str
) -> KubernetesObject:
    pod = {
        "serviceAccountName": names.replica_name(owner.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY | model.security,
        "terminationGracePeriodSeconds": (
            PRE_STOP_SECONDS + spec.rollout.drain_seconds + GRACE_MARGIN_SECONDS
        ),
        **({"initContainers": list(model.init_containers)} if model.init_containers else {}),
        "containers": [_container(owner, spec, images, model, metric_aliases)],
        "volumes": [*_volumes(owner, spec), *model.volumes],
        **placement(owner, spec, images, model.modes),
    }
    return {
        "metadata": {
            "labels": (
                child_labels(owner, Component.REPLICA)
                | {GUARDED_LABEL: "true"}
                | company_labels(owner, spec, model.modes)
            ),
            "annotations": scrape_annotations(Port.REPLICA_METRICS),
        },
        "spec": pod,
    }


def _container(
    owner: Owner, spec: Spec, images: Images, model: ModelInPod, metric_aliases: str
) -> KubernetesObject:
    # A variable, not an argument: an older image of the resource's own knows no such argument.
    aliases = [{"name": "FASTGEN_METRIC_ALIASES", "value": metric_aliases}]
    return {
        "name": CONTAINER,
        "image": runtime_image(spec, images),
        "imagePullPolicy": images.pull_policy,
        "command": ["fastgen-runtime"],
        "args": literal(runtime_arguments(owner, spec, model.argument)),
        "env": [POD_NAME, HOME, *(aliases if metric_aliases else []), *model.env],
        "ports": [
            {"name": "http", "containerPort": Port.REPLICA_HTTP, "protocol": "TCP"},
            {"name": "grpc", "containerPort": Port.REPLICA_GRPC, "protocol": "TCP"},
            {"name": "metrics", "containerPort": Port.REPLICA_METRICS, "protocol": "TCP"},
        ],
        **probes(model.size_bytes, spec.rollout.progress_deadline_seconds),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "resources": _resources(spec),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": names.TERMINATION_MESSAGE_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "slo", "mountPath": SLO_DIRECTORY, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *([{"name": "shared-memory", "mountPath": "/dev/shm"}] if shared_memory(spec) else []),
            *model.mounts,
        ],
    }


def _resources(spec: Spec) -> KubernetesObject:
    fields = {"limits": dict(spec.resources.limits), "requests": dict(spec.resources.requests)}
    return {field: value for field, value in fields.items() if value}


def _volumes(owner: Owner, spec: Spec) -> list[KubernetesObject]:
    volumes: list[KubernetesObject] = [
        {"name": "slo", "configMap": {"name": names.slo_config_map_name(owner.name)}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if size := shared_memory(spec):
        memory = {"medium": "Memory", "sizeLimit": size}
        volumes.append({"name": "shared-memory", "emptyDir": memory})
    return volumes
