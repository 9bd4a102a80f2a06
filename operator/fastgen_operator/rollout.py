"""Decides how new replicas take the place of running ones, and what holds that up."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject, Rollout, RolloutStrategy
from fastgen_operator.ailments import first_ailment
from fastgen_operator.observed import (
    Observed,
    Problem,
    Replicas,
    is_placed,
    is_ready,
    latest_of,
    leaving_pods_of,
    live_pods_of,
    replicas_of,
    unscheduled,
)
from fastgen_operator.rollout_room import (
    Shortage,
    is_lack_of_room,
    quota_shortage,
    shortage_of,
    why_not_in_place,
)
from fastgen_operator.rollout_strategy import unavailable_of

NO_ROOM_TO_SURGE: Final = "NoRoomToSurge"
PATIENCE: Final = timedelta(seconds=20)
"""How long a new replica waits for room before the rollout counts as blocked."""
IN_PLACE_ANNOTATION: Final = f"{names.GROUP}/in-place"
"""On a Deployment: that its rollout goes on in place for lack of room, and why."""


class Detour(msgspec.Struct, frozen=True, rename="camel"):
    """A rollout that goes on in place: it holds until the rollout has ended."""

    keep: int
    """Fewest replicas that go on serving, as far as they served at all."""
    wanted: int
    because: str
    """The words of whoever says that there is no room."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """What the decision is made from, of one Deployment."""

    replicas: Replicas
    latest: tuple[KubernetesObject, ...] = ()
    """Pods of the latest template."""
    earlier: tuple[KubernetesObject, ...] = ()
    """Pods of other templates."""
    leaving: tuple[KubernetesObject, ...] = ()
    """Pods that end their streams, and then free their room."""
    template: KubernetesObject | None = None
    ailment: Problem | None = None
    """Why a pod of the latest template does not start, lack of room aside."""
    detour: Detour | None = None


@dataclass(frozen=True, slots=True)
class RolloutDecision:
    """How the rollout goes on."""

    detour: Detour | None = None
    """Set: in place, whatever is declared."""
    blocked: Problem | None = None
    """What holds the rollout up."""
    waiting_since: datetime | None = None
    """Since when a new replica has waited for room, with nothing on the way that would make it."""
    again: timedelta | None = None
    """After which time the decision may be another one, although nothing happened."""


def rollout_state(
    deployment: KubernetesObject | None, observed: Observed, component: Component, now: datetime
) -> RolloutState:
    """Gathers what `decide_rollout` needs to know."""
    pods = live_pods_of(observed, component)
    latest = latest_of(deployment, pods)
    return RolloutState(
        replicas=replicas_of(deployment, pods),
        latest=latest,
        earlier=tuple(pod for pod in pods if pod not in latest),
        leaving=leaving_pods_of(observed, component, now),
        template=deployment["spec"]["template"] if deployment else None,
        ailment=first_ailment(
            (pod for pod in latest if not is_lack_of_room(pod)), observed.warnings
        ),
        detour=detour_of(deployment),
    )


def decide_rollout(
    rollout: Rollout,
    state: RolloutState,
    waiting_since: datetime | None,
    now: datetime,
    patience: timedelta = PATIENCE,
) -> RolloutDecision:
    """How a rollout goes on; `waiting_since` comes from the decision before.

    A detour is taken once and kept until the rollout has ended, so nothing goes to and fro.
    """
    detour = None if _is_over(state, rollout) else state.detour
    if state.ailment and state.earlier:
        return RolloutDecision(detour, _held_up(state, state.ailment))
    if detour:
        return RolloutDecision(detour, _no_room(_goes_in_place(detour), detour.because))
    shortage = standstill(state)
    if shortage is None:
        return RolloutDecision()
    since = waiting_since or now
    if now - since < patience:
        return RolloutDecision(waiting_since=since, again=patience - (now - since))
    return _blocked(rollout, state, shortage, since)


def standstill(state: RolloutState) -> Shortage | None:
    """The shortage for which the rollout does not go on; None: it does, or something else is amiss.

    It goes on while a new replica is on its way to ready, or an old one frees its room.
    """
    if not state.replicas.is_current or state.leaving or state.template is None:
        return None
    if not state.earlier:
        return None
    if any(not is_ready(pod) and not unscheduled(pod) for pod in state.latest):
        return None
    shortages = (shortage_of(pod) for pod in state.latest)
    found = next(filter(None, shortages), None)
    return found or quota_shortage(state.replicas.failure, state.template)


def _is_over(state: RolloutState, rollout: Rollout) -> bool:
    """Whether a detour ends: all that had room is replaced, or another strategy is declared."""
    if state.detour is None or rollout.strategy is not RolloutStrategy.AUTO:
        return True
    replicas = state.replicas
    return (
        replicas.is_current
        and replicas.existing == replicas.updated
        and replicas.available >= min(replicas.wanted, state.detour.keep + 1)
    )


def carry_out(
    desired: KubernetesObject, decision: RolloutDecision, wanted: int
) -> KubernetesObject:
    """The desired Deployment with the strategy decided on; `wanted`: the replicas that it gets."""
    detour = decision.detour
    if detour is None:
        return desired
    carried = copy.deepcopy(desired)
    unavailable = max(1, wanted - detour.keep)
    carried["spec"]["strategy"]["rollingUpdate"] = {"maxSurge": 0, "maxUnavailable": unavailable}
    carried["metadata"]["annotations"][IN_PLACE_ANNOTATION] = msgspec.json.encode(detour).decode()
    return carried


def detour_of(deployment: KubernetesObject | None) -> Detour | None:
    """The detour that a Deployment's rollout is on; None also when the note cannot be read."""
    annotations = (deployment or {}).get("metadata", {}).get("annotations") or {}
    try:
        return msgspec.json.decode(annotations.get(IN_PLACE_ANNOTATION, "null"), type=Detour | None)
    except msgspec.MsgspecError:
        return None


def _blocked(
    rollout: Rollout, state: RolloutState, shortage: Shortage, since: datetime
) -> RolloutDecision:
    running = [pod for pod in state.earlier if is_placed(pod)]
    if rollout.strategy is RolloutStrategy.SURGE:
        way = (
            f"Surge waits for it, {_serve_on(running)}: make room, or set spec.rollout.strategy to "
            f"Auto or InPlace, which stop a running replica first"
        )
        return RolloutDecision(None, _no_room(way, shortage.words), since)
    if unavailable_of(rollout, state.replicas.wanted) > 0:
        way = (
            f"As many replicas are stopped as spec.rollout.maxUnavailable allows, "
            f"{_serve_on(running)}: make room, or raise it"
        )
        return RolloutDecision(None, _no_room(way, shortage.words), since)
    newcomer = next(filter(shortage_of, state.latest), state.template or {})
    doubt = why_not_in_place(newcomer, running, shortage)
    if doubt:
        way = (
            f"Auto waits for it, {_serve_on(running)}, because {doubt}: make room, ask for less, "
            f"or set spec.rollout.strategy to InPlace, which stops a running replica all the same"
        )
        return RolloutDecision(None, _no_room(way, shortage.words), since)
    placed = sum(is_placed(pod) for pod in (*state.latest, *state.earlier))
    detour = Detour(max(0, placed - 1), state.replicas.wanted, shortage.words)
    return RolloutDecision(detour, _no_room(_goes_in_place(detour), detour.because))


def _no_room(way: str, words: str) -> Problem:
    said = words.rstrip(".")
    message = f"there is no room for a new replica beside the running ones ({said}). {way}"
    return Problem(NO_ROOM_TO_SURGE, message)


def _goes_in_place(detour: Detour) -> str:
    serving = (
        "nothing serves from then until the new one has loaded the model"
        if detour.keep == 0
        else f"at least {detour.keep} of {detour.wanted} go on serving"
    )
    return (
        f"The rollout goes on in place: a running replica ends its streams and stops, then a new "
        f"one takes its room; {serving}"
    )


def _held_up(state: RolloutState, ailment: Problem) -> Problem:
    serving = _serve_on(state.earlier)
    return Problem(ailment.reason, f"the new replicas do not start, {serving}: {ailment.message}")


def _serve_on(running: Iterable[KubernetesObject]) -> str:
    serving = sum(map(is_ready, running))
    if serving == 0:
        return "no earlier replica serves"
    return (
        "an earlier replica serves on" if serving == 1 else f"{serving} earlier replicas serve on"
    )
