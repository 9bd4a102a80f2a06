"""How a model comes to the replicas, and what is known of one that is on its way."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

import msgspec

from fastgen_api import names
from fastgen_api.delivery import ModelPhase
from fastgen_api.spec import CacheType, KubernetesObject, Model
from fastgen_operator.delivery_report import MAX_BYTES, is_path, is_revision
from fastgen_operator.fingerprint import fingerprint

MODELS_ANNOTATION: Final = f"{names.GROUP}/models"
"""On the replica Deployment: the models that were delivered last, as JSON."""
REMEMBERED: Final = 4
"""How many of them: as many as the Deployment keeps forms of its pods."""
CLAIM_SCHEME: Final = "pvc://"
DOWNLOADED: Final = ("hf://", "https://")
KEY_LENGTH: Final = 8
UID_LENGTH: Final = 36


class Way(Enum):
    """How a model comes to a replica."""

    IMAGE = "image"
    """It is part of the runtime image."""
    CLAIM = "claim"
    """It lies in a claim of the user's."""
    CACHE = "cache"
    """A Job downloads it once, into a claim that all replicas read."""
    POD = "pod"
    """A Job resolves it once, and each pod downloads what was resolved."""


class JobStep(Enum):
    """What the operator does about the download's Job."""

    NONE = "none"
    MAKE = "make"
    KEEP = "keep"
    """It is left exactly as it is: a Job's pods cannot be changed."""
    REPLACE = "replace"
    """It is deleted, and made anew when it has gone."""


class Delivered(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A model that replicas can get."""

    key: str
    """Tells the models of a deployment apart; see `key_of`."""
    path: str
    """Its file or folder, relative to the root of cache or claim."""
    revision: str | None = None
    """The commit that an hf:// source was resolved to."""
    size_bytes: int | None = None
    claim_uid: str | None = None
    """The claim that it lies in: another one of the same name does not hold it."""


SHARED_MODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
"""Access modes of volumes that several nodes may use."""
EXCLUSIVE_MODES: Final = frozenset({"ReadWriteOncePod"})
"""Access modes of volumes that one pod at a time may use."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How far the model of a spec is on its way, and what the operator does about it."""

    model: Delivered | None
    """What new replicas load; None: it is not there yet, and what runs serves on."""
    phase: ModelPhase | None = None
    """Pending, Downloading or Failed; None: it is there."""
    reason: str = ""
    message: str = ""
    """Why it is not there."""
    revision: str | None = None
    size_bytes: int | None = None
    downloaded_percent: int | None = None
    job: JobStep = JobStep.NONE
    pinned: str | None = None
    """The commit that a Job made now must bring, whatever the revision means by now."""
    claim: KubernetesObject | None = None
    """The claim for downloaded models as it is."""
    claim_problem: str = ""
    """Why the claim cannot become what the spec says."""
    modes: tuple[str, ...] = ()
    """Access modes of the claim that the replicas mount; empty: not known, or there is none."""
    again: timedelta | None = None
    """When to look again although nothing tells that there is news."""
    held: KubernetesObject | None = None
    """The replica Deployment that serves on."""
    remembered: tuple[Delivered, ...] = ()
    kept: frozenset[tuple[str, str]] = frozenset()
    """Kind and name of the children that stay although no manifest is made of them."""

    @property
    def is_failed(self) -> bool:
        """Whether nothing will change by itself."""
        return self.phase is ModelPhase.FAILED


def way_of(model: Model) -> Way:
    """How the model of a spec comes to the replicas."""
    if model.source.startswith(CLAIM_SCHEME):
        return Way.CLAIM
    if not model.source.startswith(DOWNLOADED):
        return Way.IMAGE
    is_cache = model.cache.type is CacheType.PERSISTENT_VOLUME_CLAIM
    return Way.CACHE if is_cache else Way.POD


def claim_name(deployment: str, model: Model) -> str | None:
    """The claim that the replicas mount, if any."""
    match way_of(model):
        case Way.CLAIM:
            return model.source.removeprefix(CLAIM_SCHEME).partition("/")[0]
        case Way.CACHE:
            return model.cache.claim_name or names.models_claim_name(deployment)
        case _:
            return None


def modes_of(deployment: str, model: Model, claim: KubernetesObject | None) -> tuple[str, ...]:
    """Access modes of the claim that the replicas mount: as it is, else as it is to be made."""
    if claim_name(deployment, model) is None:
        return ()
    if claim is not None:
        return tuple((claim.get("spec") or {}).get("accessModes") or ())
    return () if foreign_claim_name(deployment, model) else model.cache.access_modes


def is_of_one_node(modes: Collection[str]) -> bool:
    """Whether only the pods of one node can share a claim of these access modes."""
    return bool(modes) and SHARED_MODES.isdisjoint(modes)


def is_of_one_pod(modes: Collection[str]) -> bool:
    """Whether one pod at a time can use a claim of these access modes."""
    return bool(modes) and EXCLUSIVE_MODES.issuperset(modes)


def foreign_claim_name(deployment: str, model: Model) -> str | None:
    """The claim that the replicas mount, where it is the user's."""
    name = claim_name(deployment, model)
    is_own = way_of(model) is Way.CACHE and model.cache.claim_name is None
    return None if is_own else name


def key_of(deployment: str, model: Model) -> str:
    """What tells this model from others: its source, its revision as declared, its place.

    Neither the token nor the pods' nodes make it another model.
    """
    place = claim_name(deployment, model) or ""
    return fingerprint([model.source, model.revision, place])[:KEY_LENGTH]


def not_started(deployment: str, model: Model) -> Delivery:
    """What is known of a model when nothing was observed."""
    match way_of(model):
        case Way.IMAGE:
            return Delivery(Delivered(key="", path=""))
        case Way.CLAIM:
            path = model.source.removeprefix(CLAIM_SCHEME).partition("/")[2]
            return Delivery(Delivered(key=key_of(deployment, model), path=path))
        case _:
            return Delivery(
                None,
                ModelPhase.PENDING,
                "Downloading",
                "the download has not started yet",
                job=JobStep.MAKE,
                modes=modes_of(deployment, model, None),
            )


def remembered_models(deployment: KubernetesObject | None) -> tuple[Delivered, ...]:
    """The models that a replica Deployment bears in mind; none when that cannot be read."""
    annotations: Mapping[str, str] = (deployment or {}).get("metadata", {}).get("annotations") or {}
    try:
        models = msgspec.json.decode(
            annotations.get(MODELS_ANNOTATION, "[]"), type=tuple[Delivered, ...]
        )
    except (msgspec.MsgspecError, RecursionError):
        return ()
    return tuple(each for each in models if _is_sound(each))


def _is_sound(model: Delivered) -> bool:
    """Whether the operator may have written it; others can write the annotation, too."""
    size_bytes = model.size_bytes
    return (
        len(model.key) == KEY_LENGTH
        and is_path(model.path)
        and (model.revision is None or is_revision(model.revision))
        and (size_bytes is None or 0 <= size_bytes <= MAX_BYTES)
        and len(model.claim_uid or "") <= UID_LENGTH
    )


def models_annotation(delivery: Delivery) -> dict[str, str]:
    """The annotation that `remembered_models` reads: the model in use, and those before it."""
    model = delivery.model
    models = [each for each in delivery.remembered if model is None or each.key != model.key]
    # A model that lies ready by itself needs no remembering.
    if model is not None and model.revision is None and model.size_bytes is None:
        model = None
    models = ([model] if model else []) + models
    if not models:
        return {}
    return {MODELS_ANNOTATION: msgspec.json.encode(models[:REMEMBERED]).decode()}
