"""Whether as many pods may use a claim as a spec asks for."""

from collections.abc import Collection
from typing import Final

from fastgen_api.spec import ScalingMode, Spec
from fastgen_operator.delivery import CLAIM_SCHEME, Delivery, claim_name, is_of_one_pod
from fastgen_operator.observed import Problem
from fastgen_operator.owner import Owner

CLAIM_IMMUTABLE: Final = "ClaimImmutable"
CLAIM_ACCESS_MODE: Final = "ClaimAccessMode"


def claim_failure(owner: Owner, spec: Spec, delivery: Delivery) -> Problem | None:
    """Why the claim of the model cannot be, or be used, as the spec says; what runs goes on."""
    if delivery.claim_problem:
        return Problem(CLAIM_IMMUTABLE, delivery.claim_problem)
    words = access_problem(owner, spec, delivery.modes)
    return Problem(CLAIM_ACCESS_MODE, words) if words else None


def access_problem(owner: Owner, spec: Spec, modes: Collection[str]) -> str:
    """Which field asks for more replicas than a claim of these access modes lets run; empty: none.

    A claim that the pods of one node share is none: they are placed together.
    """
    if not is_of_one_pod(modes):
        return ""
    is_auto = spec.scaling.mode is ScalingMode.AUTO
    most = spec.scaling.max_replicas if is_auto else spec.replicas
    if most <= 1:
        return ""
    field = "spec.scaling.maxReplicas" if is_auto else "spec.replicas"
    is_source = spec.model.source.startswith(CLAIM_SCHEME)
    named = "spec.model.source" if is_source else "spec.model.cache.claimName"
    return (
        f"{field} is {most}, and PersistentVolumeClaim {claim_name(owner.name, spec.model)}, which "
        f"{named} names, is ReadWriteOncePod: one pod at a time can use it. Set {field} to 1, or "
        "name a claim with ReadWriteMany"
    )
