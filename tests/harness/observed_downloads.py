"""What an API server might hold of the download of FastGenDeployment `chat`'s model."""

from datetime import timedelta
from typing import Any

import msgspec
from observed_objects import NOW, OWNER

from fastgen_api import names
from fastgen_api.delivery import DeliveryField
from fastgen_api.names import Component
from fastgen_api.spec import Cache, CacheType, Model, SecretKeyRef, Spec
from fastgen_operator.children import make_children
from fastgen_operator.delivery import Delivery, key_of, modes_of
from fastgen_operator.delivery_children import job_marks
from fastgen_operator.delivery_state import delivery_of
from fastgen_operator.observed import Observed
from fastgen_operator.owner import child_labels
from fastgen_operator.settings import Images, Settings

SETTINGS = Settings(Images("runtime:1", "control:1"))
CACHE = Cache(
    type=CacheType.PERSISTENT_VOLUME_CLAIM,
    size="20Gi",
    storage_class_name="fast",
    access_modes=("ReadWriteMany",),
)
HUB = Model("hf://owner/name", revision="main", token_secret_ref=SecretKeyRef("hf", "token"))
CACHED = Spec(Model(HUB.source, HUB.revision, HUB.token_secret_ref, cache=CACHE))
IN_PODS = Spec(HUB)
COMMIT = "c0ffee" * 6 + "cafe"
PATH = f"huggingface/hub/models--owner--name/snapshots/{COMMIT}"
GIGABYTE = 10**9


def with_model(spec: Spec, **changes: Any) -> Spec:
    return msgspec.structs.replace(spec, model=msgspec.structs.replace(spec.model, **changes))


def with_cache(**changes: Any) -> Spec:
    return with_model(CACHED, cache=msgspec.structs.replace(CACHE, **changes))


def at(seconds: float) -> str:
    """A time so many seconds before NOW, as the API server writes it."""
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def job(
    spec: Spec = CACHED, settings: Settings = SETTINGS, *, ended: float | None = None, **fields: Any
) -> dict[str, Any]:
    """The Job of a spec; `ended`: it succeeded so many seconds ago; `failed`: why it failed."""
    status: dict[str, Any] = {}
    if ended is not None:
        complete = {"type": "Complete", "status": "True"}
        status = {"completionTime": at(ended), "conditions": [complete]}
    if failed := fields.pop("failed", None):
        status = {"conditions": [{"type": "Failed", "status": "True", "message": failed}]}
    name = names.download_job_name("chat", key_of("chat", spec.model))
    metadata = {"name": name, "annotations": job_marks(
        OWNER, spec, settings, modes_of("chat", spec.model, None)),
                "labels": child_labels(OWNER, Component.DOWNLOAD)}  # fmt: skip
    return {"kind": "Job", "metadata": metadata | fields, "status": status}


def report(spec: Spec = CACHED, **fields: Any) -> dict[str, Any]:
    """What the download told: `DeliveryField`s in their own spelling, the key left out."""
    data = {DeliveryField.KEY: key_of("chat", spec.model)} | fields
    return {
        "kind": "ConfigMap",
        "metadata": {"name": "chat-model", "labels": child_labels(OWNER, Component.DOWNLOAD)},
        "data": {name: str(value) for name, value in data.items()},
    }


def downloading(gigabytes: float, of: float = 16, spec: Spec = CACHED, **more: Any) -> Any:
    return report(
        spec,
        state="Downloading",
        revision=COMMIT,
        path=PATH,
        sizeBytes=int(of * GIGABYTE),
        downloadedBytes=int(gigabytes * GIGABYTE),
        **more,
    )


def delivered(spec: Spec = CACHED, revision: str = COMMIT) -> dict[str, Any]:
    path = PATH.replace(COMMIT, revision)
    return report(spec, state="Delivered", revision=revision, path=path, sizeBytes=16 * GIGABYTE)


def claim(uid: str = "claim-1", *, made: float = 1000, **fields: Any) -> dict[str, Any]:
    """The claim of CACHED as it came into being `made` seconds ago."""
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "chat-models", "uid": uid, "creationTimestamp": at(made),
                     "labels": child_labels(OWNER, Component.DOWNLOAD)},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "fast",
                 "resources": {"requests": {"storage": "20Gi"}}},
        "status": {"phase": "Bound"},
    } | fields  # fmt: skip


def pod(phase: str = "Running", spec: Spec = CACHED, name: str = "try-1", **status: Any) -> Any:
    """The pod of an attempt."""
    job_name = names.download_job_name("chat", key_of("chat", spec.model))
    labels = child_labels(OWNER, Component.DOWNLOAD) | {
        "batch.kubernetes.io/job-name": job_name,
    }
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": at(60)},
        "status": {"phase": phase} | status,
    }


def seen(*objects: Any, pods: tuple[Any, ...] = ()) -> Observed:
    return Observed({(each["kind"], each["metadata"]["name"]): each for each in objects}, pods)


def read(
    spec: Spec,
    observed: Observed,
    settings: Settings = SETTINGS,
    previous: dict[str, Any] | None = None,
) -> Delivery:
    return delivery_of(OWNER, spec, settings, observed, previous or {}, NOW)


def made(spec: Spec, delivery: Delivery | None = None, settings: Settings = SETTINGS) -> Any:
    """The children by kind and name."""
    children = make_children(OWNER, spec, settings, delivery)
    return {(each["kind"], each["metadata"]["name"]): each for each in children}


def running(spec: Spec = CACHED, *, objects: tuple[Any, ...] = ()) -> Any:
    """The replica Deployment as it was made when the spec's model was delivered."""
    found = objects or (job(spec, ended=100), delivered(spec), claim())
    deployment = made(spec, read(spec, seen(*found)))["Deployment", "chat-replica"]
    deployment["metadata"]["generation"] = 1
    return deployment
