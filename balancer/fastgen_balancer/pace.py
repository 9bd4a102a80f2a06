"""How fast a wish may come true: bounds, windows, policies, and a brake on flapping."""

from dataclasses import replace
from typing import Final

import msgspec

from fastgen_balancer import behavior
from fastgen_balancer.decision import Blocker, Memory, Recommendation, Rule, Wish
from fastgen_balancer.recollection import GAP_SECONDS, KEPT_SECONDS, turns
from fastgen_balancer.scaling_policy import Policy

CALM_TURNS: Final = 2
"""Turns from up to down or back within an hour that are no flapping."""
LONGEST_FACTOR: Final = 4


def bounded(wish: Wish, policy: Policy) -> Wish:
    """Within the user's bounds; only `ToZero` takes the last replica."""
    if wish.replicas > policy.max_replicas:
        text = f"{wish.message}; maxReplicas is {policy.max_replicas}"
        blockers = (*wish.blockers, Blocker.MAX_REPLICAS)
        return replace(wish, replicas=policy.max_replicas, message=text, blockers=blockers)
    if wish.rule in (Rule.TO_ZERO, Rule.NO_SIGNAL, Rule.STEADY):
        # The latter two keep the number, which may be none.
        return replace(wish, replicas=max(wish.replicas, policy.min_replicas))
    return replace(wish, replicas=max(wish.replicas, policy.min_replicas, 1))


def paced(wish: Wish, current: int, policy: Policy, memory: Memory, now: float) -> Recommendation:
    """Applies the stabilisation windows and the policies of `spec.scaling.behavior`."""
    up, down = policy.scale_up, policy.scale_down
    blockers, text = wish.blockers, wish.message
    steady = behavior.stabilise(current, wish.replicas, memory.wishes, up, down, now)
    if steady != wish.replicas:
        blockers = (*blockers, Blocker.STABILIZATION_WINDOW)
        window = (up if wish.replicas > current else down).stabilization_window_seconds
        text = f"{text}; {wish.replicas} must do for {window} s first"
    seconds = _window(memory, policy, now)
    if steady < current and seconds > down.stabilization_window_seconds:
        longer = msgspec.structs.replace(down, stabilization_window_seconds=round(seconds))
        calm = behavior.stabilise(current, steady, memory.wishes, up, longer, now)
        if calm != steady:
            turned = turns(memory.changes, now - KEPT_SECONDS)
            blockers = (*blockers, Blocker.FLAPPING)
            text = f"{text}; the number turned {turned} times within the hour, so "
            text += f"{wish.replicas} must do for {seconds:.0f} s"
            steady = calm
    highest = behavior.up_limit(current, memory.changes, up, now)
    lowest = behavior.down_limit(current, memory.changes, down, now)
    replicas = max(lowest, min(highest, steady))
    if replicas != steady:
        blockers = (*blockers, Blocker.SCALING_POLICY)
        text = f"{text}; the scaling policies allow {replicas} now"
    return replace(wish, replicas=replicas, message=text, blockers=blockers)


def remember(memory: Memory, wish: Wish, policy: Policy, now: float) -> Memory:
    """With the wish, for the windows to come; a short loss of the metrics is no wish to stay."""
    known = memory.known_at
    if wish.rule is Rule.NO_SIGNAL and known is not None and now - known < GAP_SECONDS:
        return memory
    up, down = policy.scale_up, policy.scale_down
    longest = LONGEST_FACTOR * down.stabilization_window_seconds
    keep = max(1, up.stabilization_window_seconds, longest)
    return replace(memory, wishes=behavior.remember(memory.wishes, wish.replicas, now, keep))


def _window(memory: Memory, policy: Policy, now: float) -> float:
    """How long fewer replicas must do: longer for one whose number goes up and down."""
    turned = turns(memory.changes, now - KEPT_SECONDS)
    factor = min(LONGEST_FACTOR, 2 ** max(0, turned - CALM_TURNS + 1)) if turned else 1
    return float(policy.scale_down.stabilization_window_seconds * factor)
