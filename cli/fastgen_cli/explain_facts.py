"""What an explanation rests on: objects of the API as a namespace's viewer may read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastgen_api.spec import KubernetesObject

Objects = tuple[KubernetesObject, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A FastGenDeployment and what is around it."""

    resource: KubernetesObject
    pods: Objects = ()
    """Of replicas and the download, and those of the balancer in front of them."""
    claims: Objects = ()
    autoscalers: Objects = ()
    """Every HorizontalPodAutoscaler of the namespace."""
    events: Objects = ()
    """Of core/v1: those of the FastGenDeployment, and the namespace's warnings."""
    last_lines: Mapping[str, str] = field(default_factory=dict)
    """The end of the log of pods that do not serve, by the name of the pod."""
    unread: tuple[str, ...] = ()
    """What could not be read, a sentence each."""
    flags: str = ""
    """What `kubectl` needs to reach the same objects, ready to be put after it."""

    @property
    def name(self) -> str:
        """Of the FastGenDeployment."""
        return str(self.resource["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Of the FastGenDeployment."""
        return str(self.resource["metadata"]["namespace"])

    @property
    def status(self) -> KubernetesObject:
        """Empty while no operator has seen the FastGenDeployment."""
        return self.resource.get("status") or {}

    @property
    def generation(self) -> int:
        """Counts the edits of the spec."""
        return int(self.resource["metadata"].get("generation", 1))

    @property
    def is_current(self) -> bool:
        """Whether the status speaks of the latest edit."""
        return int(self.status.get("observedGeneration", 0)) >= self.generation

    def condition(self, kind: str) -> KubernetesObject:
        """One condition, or an empty dict."""
        conditions = self.status.get("conditions") or ()
        return next((each for each in conditions if each["type"] == kind), {})

    def holds(self, kind: str) -> bool:
        """Whether a condition is True."""
        return bool(self.condition(kind).get("status") == "True")

    def events_of(self, kind: str, name: str) -> Objects:
        """The events about one object, newest last."""
        found = [
            each
            for each in self.events
            if (each["involvedObject"].get("kind"), each["involvedObject"].get("name"))
            == (kind, name)
        ]
        return tuple(sorted(found, key=event_time))


def balancer_of(resource: KubernetesObject) -> str:
    """Name of the balancer in front of a FastGenDeployment, also where its spec cannot be read."""
    balancer = (resource.get("spec") or {}).get("balancer") or {}
    return str(balancer.get("name") or resource["metadata"]["name"])


def event_time(event: KubernetesObject) -> str:
    """When it was seen last, in RFC 3339; events of both APIs carry it in different fields."""
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return str(next((time for time in times if time), ""))
