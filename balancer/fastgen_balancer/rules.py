"""The rules of scaling: each looks at the signals and wishes for a number of replicas, or not."""

from math import ceil

from fastgen_balancer.capacity import ABOVE, Verdict, saturated
from fastgen_balancer.decision import Blocker, Rule, Sight, Wish, count_of
from fastgen_balancer.planning import needed, wanted_for
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import Unknown

SPARE = 0.8
"""Replicas that would be fuller than this do not get a load that they never carried."""


def wish_for(sight: Sight, policy: Policy) -> Wish:
    """The wish of the rule that asks for most; without a call for more, fewer or as many."""
    current = sight.replicas
    if current < policy.min_replicas:
        text = f"{count_of(current)}, at least {policy.min_replicas} are wanted"
        return Wish(policy.min_replicas, Rule.BELOW_MINIMUM, text)
    if current > policy.max_replicas:
        text = f"{count_of(current)}, at most {policy.max_replicas} are allowed"
        return Wish(policy.max_replicas, Rule.ABOVE_MAXIMUM, text)
    if current == 0:
        return _at_zero(sight)
    calls = [
        call
        for call in (
            _queue(sight),
            _endpoints(sight),
            _slo(sight, policy),
            _demand(sight, policy),
            _in_flight(sight, policy),
        )
        if call is not None and call.replicas > sight.ready
    ]
    if calls:
        return _supplied(max(calls, key=lambda call: call.replicas), sight, policy)
    if sight.lack is not None:
        return Wish(current, Rule.NO_SIGNAL, sight.lack.message)
    return _missed(sight, policy) or _fewer(sight, policy) or _steady(sight, policy)


def _at_zero(sight: Sight) -> Wish:
    """The first replica comes at once: requests are held for it."""
    held = float(sight.local.queued_requests)
    if not isinstance(sight.metrics, Unknown):
        # Other balancers' word, which is some seconds old.
        held = max(held, sight.metrics.queued_requests or 0.0)
    if held > 0:
        text = f"{held:.0f} requests are held at the balancers until a replica comes"
        return Wish(1, Rule.FROM_ZERO, text)
    if sight.lack is not None:
        return Wish(0, Rule.NO_SIGNAL, sight.lack.message)
    return Wish(0, Rule.STEADY, "no replicas, and no requests for them")


def _supplied(call: Wish, sight: Sight, policy: Policy) -> Wish:
    """Lets a call through unless replicas that are still to come may do.

    They surely do not where more arrives than all of them carry: that is asked for even where no
    node takes those that wait, since whoever adds nodes adds them for pods. Otherwise a call that
    knows no number doubles the ready ones at most.
    """
    current, firm = sight.replicas, _firm(sight, policy)
    missing = max(0, current - sight.ready)
    if sight.blocked and firm <= current:
        text = f"no node takes {missing} of {current}, nor would one take more"
        return Wish(current, call.rule, f"{call.message}; {text}", (Blocker.CAPACITY_BLOCKED,))
    # What was wished for, and the policies let come only bit by bit, is no new wish.
    firm = max(firm, min(call.replicas, sight.held_back))
    replicas = max(firm, min(call.replicas, _most_at_once(sight, policy)))
    # With new ones just ready neither what each does nor what waits for whom is settled.
    if firm > current and not (sight.pending and not missing):
        return Wish(replicas, call.rule, call.message)
    if sight.pending and not sight.stuck:
        text = f"{missing} not ready yet" if missing else "new ones have just become ready"
        return Wish(current, call.rule, f"{call.message}; {text}", (Blocker.PENDING_REPLICAS,))
    if sight.demand is not None and sight.demand.caught_up_soon:
        text = "the backlog will be gone before another replica could help"
        return Wish(current, call.rule, f"{call.message}; {text}", (Blocker.BACKLOG_SHRINKS,))
    if replicas <= current:
        text = f"{missing} of {current} do not become ready"
        return Wish(current, call.rule, f"{call.message}; {text}", (Blocker.STUCK_REPLICAS,))
    return Wish(replicas, call.rule, call.message)


def _most_at_once(sight: Sight, policy: Policy) -> int:
    """A demand is a number while nobody is on the way to lessen it; other calls know of none."""
    double = 2 * max(1, sight.ready)
    if sight.demand is None or sight.pending:
        return double
    return max(double, wanted_for(sight.demand.total, sight.ready, sight, policy))


def _firm(sight: Sight, policy: Policy) -> int:
    """Replicas that what arrives needs, if it is more than those that there are carry."""
    if sight.demand is None:
        return 0
    return wanted_for(sight.demand.steady, sight.replicas, sight, policy)


def _queue(sight: Sight) -> Wish | None:
    local, ready = sight.local, sight.ready
    queued, in_flight = local.queued_requests, local.in_flight_requests
    if queued <= 0 or not (sight.queue_stands or queued >= max(in_flight, ready, 1)):
        return None
    share = ceil(ready * (in_flight + queued) / in_flight) if in_flight > 0 else 0
    text = f"{queued} requests queue at the balancer, {in_flight} are with {count_of(ready)}"
    return Wish(max(ready + 1, share), Rule.QUEUE_AT_BALANCER, text)


def _endpoints(sight: Sight) -> Wish | None:
    if not sight.endpoints_stay_saturated:
        return None
    text = f"all {sight.local.ready_endpoints} ready endpoints stay saturated"
    return Wish(sight.ready + 1, Rule.ENDPOINTS_SATURATED, text)


def _demand(sight: Sight, policy: Policy) -> Wish | None:
    if sight.demand is None:
        return None
    total = sight.demand.total
    wanted = wanted_for(total, sight.ready, sight, policy)
    if not wanted:
        return None
    text = (
        f"{total:.2f} engine-seconds/s are asked for{_ahead(sight)}, more than "
        f"{policy.headroom:.0%} of what {_planned_replicas(sight)} can do, {sight.most:.2f} each"
    )
    return Wish(wanted, Rule.DEMAND_ABOVE_CAPACITY, text)


def _in_flight(sight: Sight, policy: Policy) -> Wish | None:
    """The demand by the requests in flight, while nothing else tells of it."""
    if sight.demand is not None or sight.load is None:
        return None
    total = sight.load * sight.most * sight.ready
    wanted = wanted_for(total, sight.ready, sight, policy)
    if not wanted:
        return None
    text = (
        f"{sight.local.in_flight_requests} requests in flight are about {total:.2f} "
        f"engine-seconds/s, more than {policy.headroom:.0%} of what "
        f"{_planned_replicas(sight)} can do"
    )
    return Wish(wanted, Rule.DEMAND_ABOVE_CAPACITY, text)


def _planned_replicas(sight: Sight) -> str:
    """Those that are planned with: a loss as large as the last one leaves them."""
    if not sight.reserve:
        return count_of(sight.ready)
    return f"{max(0, sight.ready - sight.reserve)} of {count_of(sight.ready)}"


def _ahead(sight: Sight) -> str:
    demand = sight.demand
    if demand is None or not demand.ahead:
        return ""
    return f" in {demand.lead_seconds:.0f} s, {demand.ahead:.2f} more than now"


def _slo(sight: Sight, policy: Policy) -> Wish | None:
    if not sight.judgement.is_clear:
        return None
    missed = _goodness(sight)
    if sight.saturated:
        demand = _demand(sight, policy)
        wanted = max(sight.ready + 1, demand.replicas if demand else 0)
        text = f"{missed}, and the replicas have more to do than they can"
        return Wish(wanted, Rule.SLO_MISSED_SATURATED, text)
    if not sight.missed_long:
        return None
    most = max((r.work or 0.0 for r in sight.readings), default=0.0)
    if sight.demand is None or not sight.carried or most <= ABOVE * sight.carried:
        return None
    wanted = max(sight.ready + 1, needed(sight.demand.total, sight.carried * policy.headroom))
    text = f"{missed} at {most:.2f} engine-seconds/s per replica, it was held at "
    return Wish(wanted, Rule.SLO_MISSED_AT_NEW_LOAD, f"{text}{sight.carried:.2f}")


def _missed(sight: Sight, policy: Policy) -> Wish | None:
    """The SLO is missed though no rule sees how more replicas could help."""
    if sight.judgement.verdict is not Verdict.MISSED:
        return None
    if sight.pending or not sight.missed_long or not sight.judgement.is_clear:
        text = f"{_goodness(sight)}, which may be over"
        return Wish(sight.replicas, Rule.STEADY, text)
    text = f"{_goodness(sight)}, though {_saturated(sight, policy)}: more of them would not help"
    # Requests that are alone on their replicas are not late because of too few replicas.
    alone = max(1, ceil(_running(sight))) + sight.reserve
    return Wish(min(sight.replicas, alone), Rule.SLO_INFEASIBLE, text)


def _fewer(sight: Sight, policy: Policy) -> Wish | None:
    """Fewer replicas would do; only called when everything is known and nothing calls for more."""
    current, demand = sight.replicas, sight.demand
    if current <= policy.min_replicas or demand is None or sight.saturated:
        return None
    if sight.idle and current == 1:
        text = f"no request has arrived or run for {policy.idle_seconds:.0f} s"
        return Wish(0, Rule.TO_ZERO, text)
    if current <= 1:
        return None
    running = _running(sight)
    if demand.is_none and running == 0:
        return Wish(1, Rule.DEMAND_FITS_FEWER, "no traffic")
    wish = _fewer_busy(sight, policy, running)
    full = current * sight.most * policy.headroom
    if wish is not None and demand.present >= full * (1 - policy.down_tolerance):
        text = f"{wish.message}; the demand has not fallen by the tolerance of scaleDown"
        return Wish(current, Rule.STEADY, text, (Blocker.TOLERANCE,))
    return wish


def _fewer_busy(sight: Sight, policy: Policy, running: float) -> Wish | None:
    """Fewer replicas that carry what there is."""
    current, demand = sight.replicas, sight.demand
    assert demand is not None
    alone = max(1, ceil(running)) + sight.reserve
    if sight.judgement.verdict is Verdict.FEW_SAMPLES:
        if alone >= current:
            return None
        text = f"{running:.0f} requests run, each could have a replica of {alone} to itself"
        return Wish(alone, Rule.DEMAND_FITS_FEWER, text)
    share = policy.headroom * policy.down_margin
    # A demand per replica at which the SLO was missed is kept away from.
    least = needed(sight.highest, sight.missed * policy.down_margin) if sight.missed else 1
    if least >= current:
        return None
    if sight.carried:
        # What was carried well needs no margin, what would raise them again does.
        fits = max(1, least, needed(demand.present, min(sight.carried, sight.most * share)))
        fits += sight.reserve
        if fits < current:
            text = (
                f"{demand.present:.2f} engine-seconds/s are asked for, {count_of(fits)} did "
                f"{sight.carried:.2f} each while the SLO was held"
            )
            return Wish(fits, Rule.DEMAND_FITS_FEWER, text)
    return _one_fewer(sight, policy, share)


def _one_fewer(sight: Sight, policy: Policy, share: float) -> Wish | None:
    """One step into a load that no replica has carried yet, when there is room and no warning.

    Requests stay longer on a busier replica: as many run as load / (1 − load), as with processor
    sharing (Kleinrock, Queueing Systems II, section 4.4).
    """
    fewer = sight.replicas - 1
    present = sight.demand.present if sight.demand else 0.0
    if fewer <= sight.reserve:
        return None
    load = present / (fewer - sight.reserve)
    if load >= sight.most * share:
        return None
    fill = max(
        max(r.kv_usage or 0.0, (r.running or 0.0) / policy.max_concurrent_requests)
        for r in sight.readings
    )
    busy, busier = (load_ / sight.most for load_ in (present / sight.replicas, load))
    after = fill * sight.replicas / fewer * (1 - busy) / (1 - busier)
    if after > SPARE:
        return None
    text = f"{count_of(fewer)} would be {after:.0%} full with {load:.2f} engine-seconds/s each"
    return Wish(fewer, Rule.DEMAND_FITS_FEWER, text)


def _steady(sight: Sight, policy: Policy) -> Wish:
    if sight.judgement.verdict is Verdict.FEW_SAMPLES:
        text = f"{sight.judgement.samples:.0f} requests are too few to judge"
        return Wish(sight.replicas, Rule.FEW_SAMPLES, text)
    load = sight.demand.total if sight.demand else 0.0
    text = f"{load:.2f} engine-seconds/s are asked for; ready: {count_of(sight.ready)}"
    if load > sight.ready * sight.most * policy.headroom:
        text = f"{text}: more than planned for, within the tolerance of scaleUp"
        return Wish(sight.replicas, Rule.STEADY, text, (Blocker.TOLERANCE,))
    return Wish(sight.replicas, Rule.STEADY, text)


def _running(sight: Sight) -> float:
    running = sum((r.running or 0.0) + (r.waiting or 0.0) for r in sight.readings)
    return max(running, float(sight.local.in_flight_requests))


def _saturated(sight: Sight, policy: Policy) -> str:
    """Who is saturated, where most are not."""
    names = ", ".join(sorted(r.instance for r in sight.readings if saturated(r, policy)))
    if not names:
        return "no replica is saturated"
    return f"only {names} of {count_of(sight.ready)} has more to do than it can"


def _goodness(sight: Sight) -> str:
    ratio = sight.judgement.good_ratio or 0.0
    return f"{ratio:.1%} of {sight.judgement.samples:.0f} requests are good"
