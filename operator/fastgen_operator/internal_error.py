"""Tells of a fault of the operator's own where whoever owns the FastGenDeployment sees it."""

import logging
from datetime import datetime
from typing import Final

from fastgen_api.spec import KubernetesObject
from fastgen_operator.cluster import Cluster
from fastgen_operator.observed import Observed, Problem
from fastgen_operator.owner import Owner, owner_of
from fastgen_operator.situation import Outcome
from fastgen_operator.status import same_status, status_of

INTERNAL_ERROR: Final = "InternalError"
CRASHES_TO_TELL: Final = 2
"""So many in a row: what a race has made passes with the next try."""

log = logging.getLogger(__name__)


async def tell_internal_error(
    cluster: Cluster, resource: KubernetesObject, error: Exception, now: datetime
) -> None:
    """Writes a status that names the type of an unexpected error; raises nothing.

    Its text may hold what does not belong into a status.
    """
    words = (
        f"the operator fails at this resource ({type(error).__name__}), and tries again; "
        "its log tells more. What runs goes on as it is"
    )
    outcome = Outcome(failure=Problem(INTERNAL_ERROR, words))
    try:
        owner = owner_of(resource)
        previous = resource.get("status") or {}
        status = _status(cluster, owner, previous, now, outcome)
        if not same_status(status, previous):
            await cluster.apply_status(owner, status)
    except Exception:
        log.exception("an internal error could not be told")


def _status(
    cluster: Cluster, owner: Owner, previous: KubernetesObject, now: datetime, outcome: Outcome
) -> KubernetesObject:
    """The status by all that is known, or by nothing where that is what the operator fails at."""
    try:
        return status_of(owner, cluster.observe(owner), now, previous, outcome)
    except Exception:
        log.exception("the status leaves out what was observed")
        return status_of(owner, Observed(), now, {}, outcome)
