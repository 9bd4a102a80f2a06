"""Other people's autoscalers: which of them scale a FastGenDeployment or its Deployments."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fastgen_api import names
from fastgen_api.spec import KubernetesObject

AUTOSCALER_KIND: Final = "HorizontalPodAutoscaler"


@dataclass(frozen=True, slots=True)
class ForeignScaler:
    """A HorizontalPodAutoscaler, and what it scales."""

    name: str
    target_kind: str
    """FastGenDeployment or Deployment."""
    target_name: str
    maker: str = ""
    """Kind and name of its controller, such as `ScaledObject chat` of KEDA; empty: a person."""

    @property
    def words(self) -> str:
        """By which a reader finds it: what a person wrote comes first."""
        own = f"{AUTOSCALER_KIND} {self.name}"
        return f"{self.maker} ({own})" if self.maker else own


def foreign_scalers(
    autoscalers: Iterable[KubernetesObject], deployment: str
) -> tuple[ForeignScaler, ...]:
    """Those of a namespace's HorizontalPodAutoscalers that aim at FastGenDeployment `deployment`.

    At the resource itself, or at one of its two Deployments; sorted by name. A ScaledObject of
    KEDA is seen by the HorizontalPodAutoscaler that it makes.
    """
    found = (_scaler(each) for each in autoscalers)
    ours = (each for each in found if each and aim(each) == deployment)
    return tuple(sorted(ours, key=lambda each: each.name))


def aim(scaler: ForeignScaler) -> str | None:
    """The FastGenDeployment that it scales, directly or behind its back; None: another thing."""
    if scaler.target_kind == names.KIND:
        return scaler.target_name
    for suffix in (names.replica_name(""), names.balancer_name("")):
        if scaler.target_name.endswith(suffix):
            return scaler.target_name.removesuffix(suffix)
    return None


def aim_of(autoscaler: KubernetesObject) -> str | None:
    """The FastGenDeployment that a HorizontalPodAutoscaler may mean."""
    scaler = _scaler(autoscaler)
    return aim(scaler) if scaler else None


def _scaler(autoscaler: KubernetesObject) -> ForeignScaler | None:
    target = (autoscaler.get("spec") or {}).get("scaleTargetRef") or {}
    group = target.get("apiVersion", "").partition("/")[0]
    if (group, target.get("kind")) not in ((names.GROUP, names.KIND), ("apps", "Deployment")):
        return None
    metadata = autoscaler["metadata"]
    return ForeignScaler(metadata["name"], target["kind"], target.get("name", ""), _maker(metadata))


def _maker(metadata: KubernetesObject) -> str:
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return f"{reference['kind']} {reference['name']}"
    return ""
