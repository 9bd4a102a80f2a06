"""What a pod needs to download a model, or to read one that was delivered."""

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from fastgen_api import names
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.arguments import literal
from fastgen_operator.confinement import CONTAINER_SECURITY, HOME
from fastgen_operator.delivery import Delivered, Delivery, Way, claim_name, way_of
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Settings

CONTAINER: Final = "download"
VOLUME: Final = "models"
DIRECTORY: Final = "/models"
"""Where pods see the cache, or the claim that holds the model."""
HUB_DIRECTORY: Final = f"{DIRECTORY}/huggingface"
HUB_SCHEME: Final = "hf://"
HUB_HOME: Final[KubernetesObject] = {"name": "HF_HOME", "value": HUB_DIRECTORY}
CLAIM_SECURITY: Final[KubernetesObject] = {"fsGroupChangePolicy": "OnRootMismatch"}
"""A volume of many files is not gone through at each start of a pod."""
RESOURCES: Final[KubernetesObject] = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"memory": "2Gi"},
}
"""Of a download, which keeps pieces of several files in memory."""


@dataclass(frozen=True, slots=True)
class ModelInPod:
    """What the model adds to a replica's pod."""

    argument: str
    """The value of `--model`."""
    volumes: tuple[KubernetesObject, ...] = ()
    mounts: tuple[KubernetesObject, ...] = ()
    init_containers: tuple[KubernetesObject, ...] = ()
    env: tuple[KubernetesObject, ...] = ()
    security: KubernetesObject = field(default_factory=dict)
    """What the volumes add to the pod's security context."""
    size_bytes: int | None = None
    modes: tuple[str, ...] = ()
    """Access modes of its claim; empty: not known, or there is none."""


def model_in_pod(owner: Owner, spec: Spec, settings: Settings, delivery: Delivery) -> ModelInPod:
    """How a replica gets the model that was delivered."""
    way = way_of(spec.model)
    if way is Way.IMAGE:
        return ModelInPod(spec.model.source)
    model = delivery.model or Delivered(key="", path="")
    argument = f"file://{DIRECTORY}/{quote(model.path)}"
    mount = {"name": VOLUME, "mountPath": DIRECTORY, "readOnly": True}
    if way is Way.CLAIM:
        # Read-only as a volume: nobody changes the owner of the user's files.
        volume = _claim_volume(owner, spec, read_only=True)
        return ModelInPod(argument, (volume,), (mount,), modes=delivery.modes)
    if way is Way.CACHE:
        return ModelInPod(
            argument,
            (_claim_volume(owner, spec),),
            (mount,),
            env=(HUB_HOME,),
            security=CLAIM_SECURITY,
            size_bytes=model.size_bytes,
            modes=delivery.modes,
        )
    download = download_container(
        spec, settings, download_arguments(spec, model.revision), volume_mounts=[]
    )
    return ModelInPod(
        argument,
        ({"name": VOLUME, "emptyDir": {}},),
        (mount,),
        (download,),
        (HUB_HOME,),
        size_bytes=model.size_bytes,
    )


def _claim_volume(owner: Owner, spec: Spec, *, read_only: bool = False) -> KubernetesObject:
    claim: KubernetesObject = {"claimName": claim_name(owner.name, spec.model)}
    return {
        "name": VOLUME,
        "persistentVolumeClaim": claim | ({"readOnly": True} if read_only else {}),
    }


def download_volume(owner: Owner, spec: Spec) -> KubernetesObject:
    """The volume that a download writes to; what was only resolved leaves nothing behind."""
    if way_of(spec.model) is Way.CACHE:
        return _claim_volume(owner, spec)
    return {"name": VOLUME, "emptyDir": {}}


def download_arguments(spec: Spec, pinned: str | None) -> list[str]:
    """Flags of `fastgen-download` that say what is to come, and where to."""
    source = spec.model.source
    revision = pinned or spec.model.revision
    if pinned and source.startswith(HUB_SCHEME):
        source = without_revision(source)
    arguments = [f"--source={source}", f"--cache={DIRECTORY}"]
    return [*arguments, f"--revision={revision}"] if revision else arguments


def without_revision(source: str) -> str:
    """An hf:// source without its @revision, which would outdo the one of the flag."""
    owner, slash, rest = source.removeprefix(HUB_SCHEME).partition("/")
    name, cut, file = rest.partition("/")
    return f"{HUB_SCHEME}{owner}{slash}{name.partition('@')[0]}{cut}{file}"


def download_container(
    spec: Spec, settings: Settings, arguments: list[str], volume_mounts: list[KubernetesObject]
) -> KubernetesObject:
    """The container that downloads; it alone gets the token."""
    return {
        "name": CONTAINER,
        "image": spec.image or settings.images.runtime,
        "imagePullPolicy": settings.images.pull_policy,
        "command": ["fastgen-download"],
        "args": literal(arguments),
        "env": _environment(spec, settings),
        "resources": RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": names.TERMINATION_MESSAGE_PATH,
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": VOLUME, "mountPath": DIRECTORY},
            {"name": "tmp", "mountPath": "/tmp"},
            *volume_mounts,
        ],
    }


def _environment(spec: Spec, settings: Settings) -> list[KubernetesObject]:
    own: list[dict[str, Any]] = [HOME, HUB_HOME]
    theirs = settings.download_environment.items()
    environment = [*({"name": name, "value": value} for name, value in theirs), *own]
    if settings.hub_endpoint:
        environment.append({"name": "HF_ENDPOINT", "value": settings.hub_endpoint})
    reference = spec.model.token_secret_ref
    if reference:
        secret = {"name": reference.name, "key": reference.key}
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    return environment
