"""What the operator does about somebody else's autoscaler on one of its Deployments: give way."""

import copy
from collections.abc import Iterable

from fastgen_api import names
from fastgen_api.foreign_scaler import ForeignScaler
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import id_of
from fastgen_operator.drift import with_applied_annotation
from fastgen_operator.observed import Problem

FOREIGN_SCALER = "ForeignScaler"


def give_way(
    desired: KubernetesObject,
    observed: KubernetesObject | None,
    scalers: Iterable[ForeignScaler],
) -> KubernetesObject:
    """The manifest to apply, marked, with the Deployment's own replicas where others scale it.

    They are no part of what is declared then, so the mark does not move with them. Left out of
    what is applied they would fall back to 1 while we are their only writer. The version makes the
    API server refuse what was made from an earlier number.
    """
    aims = {(each.target_kind, each.target_name) for each in scalers}
    if observed is None or id_of(desired) not in aims:
        return with_applied_annotation(desired)
    given = copy.deepcopy(desired)
    del given["spec"]["replicas"]
    given = with_applied_annotation(given)
    given["spec"]["replicas"] = observed["spec"].get("replicas", 1)
    given["metadata"]["resourceVersion"] = observed["metadata"]["resourceVersion"]
    return given


def scaler_problem(
    scalers: Iterable[ForeignScaler], deployment: str, balancer: str
) -> Problem | None:
    """What to tell about autoscalers of our Deployments; those of the resource are welcome."""
    told = [_told(each, deployment, balancer) for each in scalers if each.target_kind != names.KIND]
    return Problem(FOREIGN_SCALER, "; ".join(told)) if told else None


def _told(scaler: ForeignScaler, deployment: str, balancer: str) -> str:
    found = f"{scaler.words} scales {scaler.target_kind} {scaler.target_name}"
    if scaler.target_name == names.balancer_name(balancer):
        return f"{found}, so spec.balancer.replicas has no effect: delete it to have it again"
    return (
        f"{found}, so spec.replicas and spec.scaling have no effect: point its scaleTargetRef at "
        f"apiVersion {names.API_VERSION}, kind {names.KIND}, name {deployment}, or delete it"
    )
