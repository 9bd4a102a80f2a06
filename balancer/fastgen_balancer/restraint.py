"""Why the autoscaler must not write what it decides: somebody else scales, or all is frozen."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.resources.autoscaling_v2 import HorizontalPodAutoscaler

from fastgen_api import names
from fastgen_api.foreign_scaler import ForeignScaler, foreign_scalers
from fastgen_balancer.decision import Blocker, Recommendation
from fastgen_balancer.watch import follow

FROZEN_MESSAGE: Final = (
    "scaling is frozen for all deployments of the operator: status.lastDecision tells what Auto "
    "would do; spec.replicas can be set by hand; the chart's value scaling.frozen ends it"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restraint:
    """What keeps the autoscaler from writing, as its condition tells it."""

    blocker: Blocker
    message: str


def restraint_of(
    status: Mapping[str, Any], scalers: Iterable[ForeignScaler], deployment: str
) -> Restraint | None:
    """Judges by the FastGenDeployment's status and by who else scales it."""
    ours = ((names.KIND, deployment), ("Deployment", names.replica_name(deployment)))
    theirs = [each for each in scalers if (each.target_kind, each.target_name) in ours]
    if theirs:
        found = " and ".join(f"{each.words} scales {each.target_kind} {each.target_name}"
                             for each in theirs)  # fmt: skip
        text = f"{found}: what Auto decides is not written until it is gone; see docs/operating.md"
        return Restraint(Blocker.FOREIGN_SCALER, text)
    for condition in status.get("conditions") or ():
        if condition.get("type") == names.Condition.SCALING_FROZEN:
            return Restraint(Blocker.FROZEN, FROZEN_MESSAGE) if _holds(condition) else None
    return None


def restrain(
    decision: Recommendation, replicas: int, restraint: Restraint | None
) -> Recommendation:
    """The decision as it may be told: one that is held back says so."""
    if restraint is None or decision.replicas == replicas:
        return decision
    return replace(decision, blockers=(*decision.blockers, restraint.blocker))


def _holds(condition: Mapping[str, Any]) -> bool:
    return condition.get("status") == "True"


class ScalerWatch:
    """The foreign autoscalers of one FastGenDeployment, as they are just now."""

    def __init__(self, deployment: str) -> None:
        self._deployment = deployment
        self.scalers: tuple[ForeignScaler, ...] = ()
        self._listed = asyncio.Event()

    async def first_list(self, limit_seconds: float) -> None:
        """Waits until it is known who scales, or for as long as may be waited."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                await self._listed.wait()

    async def run(self, client: AsyncClient, namespace: str) -> None:
        """Follows them until it is cancelled; without an answer what was known stays."""
        await follow(client, HorizontalPodAutoscaler, namespace, self.changed)

    def changed(self, objects: Mapping[str, Any]) -> None:
        """All HorizontalPodAutoscalers of the namespace, by name."""
        found = (each.to_dict() for each in objects.values())
        scalers = foreign_scalers(found, self._deployment)
        if scalers != self.scalers:
            log.info("foreign autoscalers", extra={"scalers": [each.words for each in scalers]})
        self.scalers = scalers
        self._listed.set()
