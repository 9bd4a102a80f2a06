"""The replicas as Kubernetes sees them: from a pod's creation to the return of its GPU."""

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from fastgen_cli.simulate.replica import Replica

LEAVE_SECONDS: Final = 5.0
"""From the last stream's end to the GPU's return: preStop and the container's exit."""


class Phase(Enum):
    PENDING = "pending"
    """Without a GPU."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Supply:
    """GPUs: `at_once` are there from the begin; others are ordered when a pod finds none, come
    after `late_seconds` and take `late_slowdown` times as long; `most` in all."""

    at_once: int = 1_000_000
    late_seconds: float = 0.0
    late_slowdown: float = 1.0
    most: float = inf


@dataclass(slots=True, eq=False)
class Pod:
    """A replica's pod. seconds are those of the simulation; None: not yet."""

    name: str
    created_at: float
    phase: Phase = Phase.PENDING
    gpu_at: float | None = None
    ready_at: float | None = None
    gone_at: float | None = None
    is_late: bool = False
    """Its GPU is one of those that came late."""
    replica: Replica | None = None

    def gpu_seconds(self, now: float) -> float:
        """How long it has held a GPU."""
        if self.gpu_at is None:
            return 0.0
        return (now if self.gone_at is None else self.gone_at) - self.gpu_at

    @property
    def rank(self) -> tuple[int, float]:
        """Who goes first when there are too many, as a ReplicaSet ranks its pods: without a node,
        then not ready, then the youngest (kubernetes pkg/controller, ActivePodsWithRanks)."""
        order = (Phase.PENDING, Phase.STARTING, Phase.READY).index(self.phase)
        return order, -(self.ready_at or self.created_at)


@dataclass(slots=True)
class Gpus:
    """The GPUs that are free or on their way. Invariant: none is given twice."""

    supply: Supply
    free: int = field(init=False)
    late_free: int = 0
    ordered: int = 0
    known: int = field(init=False)
    """Those that have ever been there."""

    def __post_init__(self) -> None:
        self.free = self.known = int(min(self.supply.at_once, self.supply.most))

    def give(self, pod: Pod) -> bool:
        """Gives the pod a GPU, of the first ones if one is free; False when there is none."""
        if self.free:
            self.free -= 1
        elif self.late_free:
            self.late_free -= 1
            pod.is_late = True
        else:
            return False
        return True

    def take_back(self, pod: Pod) -> None:
        if pod.is_late:
            self.late_free += 1
        else:
            self.free += 1

    def order(self, wanted: int) -> int:
        """Orders GPUs for so many pods without one; how many orders are new."""
        room = self.supply.most - self.known - self.ordered
        new = int(max(0, min(wanted - self.ordered, room)))
        self.ordered += new
        return new

    def arrive(self) -> None:
        """An ordered GPU is there."""
        self.ordered -= 1
        self.known += 1
        self.late_free += 1
