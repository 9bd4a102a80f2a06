"""What a FastGenDeployment says of itself, as far as the demo shows it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkube import Client, KubeConfig
from lightkube.generic_resource import create_namespaced_resource

from fastgen_api import names
from fastgen_api.spec import Spec, parse

_RESOURCE = create_namespaced_resource(names.GROUP, names.VERSION, names.KIND, names.PLURAL)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of the status."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the autoscaler last decided."""

    time: str
    replicas: int
    rule: str
    message: str
    blockers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """Spec and status at one moment."""

    spec: Spec
    is_observed: bool
    """Whether the operator has seen the current spec."""
    replicas: int
    ready_replicas: int
    conditions: tuple[Condition, ...] = ()
    decision: Decision | None = None
    runtime_image: str = ""

    @property
    def wanted(self) -> int:
        """Replicas that whoever scales asked for."""
        return self.spec.replicas

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((one for one in self.conditions if one.type == kind), None)

    def is_settled(self, replicas: int) -> bool:
        """Ready under the current spec, with exactly so many replicas."""
        ready = self.condition(names.Condition.READY)
        return (
            self.is_observed
            and ready is not None
            and ready.status == "True"
            and self.wanted == self.replicas == self.ready_replicas == replicas
        )


def read_state(resource: dict[str, Any]) -> State:
    """The state in a resource as the API server serves it."""
    status = resource.get("status") or {}
    decision = status.get("lastDecision")
    return State(
        spec=parse(resource["spec"]),
        is_observed=status.get("observedGeneration") == resource["metadata"].get("generation"),
        replicas=status.get("replicas", 0),
        ready_replicas=status.get("readyReplicas", 0),
        conditions=tuple(
            Condition(one["type"], one["status"], one.get("reason", ""), one.get("message", ""))
            for one in status.get("conditions", [])
        ),
        decision=_decision(decision) if decision else None,
        runtime_image=status.get("runtimeImage", ""),
    )


def _decision(raw: dict[str, Any]) -> Decision:
    return Decision(
        time=raw.get("time", ""),
        replicas=raw.get("replicas", 0),
        rule=raw.get("rule", ""),
        message=raw.get("message", ""),
        blockers=tuple(raw.get("blockers", ())),
    )


def condition_changes(before: State | None, after: State) -> list[str]:
    """A line for each condition that is new or says something else."""
    known = set(before.conditions) if before else set()
    return [
        f"{one.type}={one.status} {one.reason}" + (f": {one.message}" if one.message else "")
        for one in after.conditions
        if one not in known
    ]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one FastGenDeployment; far cheaper than a kubectl for each look."""

    client: Client
    name: str
    namespace: str

    @classmethod
    def open(cls, kubeconfig: Path, name: str, namespace: str) -> "Reader":
        """A reader with the credentials of a kubeconfig."""
        config = KubeConfig.from_file(kubeconfig).get()
        return cls(Client(config=config, trust_env=False), name, namespace)

    def read(self) -> State:
        """The state now; raises lightkube's ApiError."""
        found = self.client.get(_RESOURCE, self.name, namespace=self.namespace)
        return read_state(found.to_dict())  # type: ignore[no-untyped-call]
