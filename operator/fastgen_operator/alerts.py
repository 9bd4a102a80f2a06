"""Alerts on how a deployment runs, beside those on its error budget."""

from decimal import Decimal
from typing import Final

from fastgen_api.names import Metric
from fastgen_api.scaling import replicas_wanted
from fastgen_api.spec import SLO, KubernetesObject, ScalingMode, Spec
from fastgen_operator.alert import (
    COUNTED,
    CRITICAL,
    FAILED,
    REFUSED,
    WARNING,
    alert,
    series,
)
from fastgen_operator.burn_rates import (
    LEAST_BAD_REQUESTS,
    allowed_share,
    bad_requests,
    bad_share,
    without_replicas_series,
)
from fastgen_operator.owner import Owner

OUTAGE_SHARE: Final = Decimal("0.9")
TROUBLED_SHARE: Final = Decimal("0.05")
"""Of requests that are refused, or sent twice: what passes by itself stays below."""
RESTARTS: Final = 3
"""Of one replica within half an hour: one crash is a crash, three are a loop."""
NO_SIGNAL: Final = "NoSignal"
SLO_INFEASIBLE: Final = "SLOInfeasible"
"""Two of the autoscaler's rules (`rule` of its decisions)."""


def requests_fail(owner: Owner, slo: SLO) -> KubernetesObject:
    """Nearly nobody gets an answer: long windows would tell too late where the SLO is loose."""
    limit = max(OUTAGE_SHARE, (1 + allowed_share(slo)) / 2).normalize()
    return alert(
        owner,
        "FastGenRequestsFail",
        f"{_share(owner, FAILED, '2m', limit)} unless on() {without_replicas_series(owner)}",
        "0s",
        CRITICAL,
        f"{{{{ $value | humanizePercentage }}}} of the requests to {owner.name} get no answer",
        f"They are refused or broken. `fastgen explain {owner.name} -n {owner.namespace}` tells "
        f"what is known about why.",
    )


def requests_refused(owner: Owner, slo: SLO) -> KubernetesObject:
    limit = max(TROUBLED_SHARE, allowed_share(slo)).normalize()
    return alert(
        owner,
        "FastGenRequestsRefused",
        f"{_share(owner, REFUSED, '15m', limit)} unless on() {without_replicas_series(owner)}",
        "10m",
        WARNING,
        f"{owner.name} refuses {{{{ $value | humanizePercentage }}}} of its requests",
        "They found every replica full and the queue at its end, or no replica at all. More "
        "replicas help (spec.scaling.maxReplicas), or fewer requests.",
    )


def many_retries(owner: Owner) -> KubernetesObject:
    retries = f"sum(increase({series(owner, Metric.RETRIES)}[15m]))"
    picks = f"sum(increase({series(owner, Metric.PICKS, _label('result', 'picked'))}[15m]))"
    return alert(
        owner,
        "FastGenManyRetries",
        f"{retries} / {picks} > {TROUBLED_SHARE} and {retries} >= {LEAST_BAD_REQUESTS}",
        "10m",
        WARNING,
        f"{{{{ $value | humanizePercentage }}}} of {owner.name}'s requests need a second attempt",
        "A replica refuses or breaks what it is sent, and another one answers instead. Users "
        "notice no more than a delay, until there is no other one.",
    )


def metrics_missing(owner: Owner) -> KubernetesObject:
    return alert(
        owner,
        "FastGenMetricsMissing",
        f"absent({series(owner, Metric.ENDPOINTS)}) or {without_replicas_series(owner)}",
        "10m",
        WARNING,
        f"Prometheus has no metrics of {owner.name}'s balancers, or none of its replicas",
        "Without them nothing is known of the SLO, its alerts are silent, and the autoscaler "
        "removes no replica. Do the pods run, and does this Prometheus scrape them?",
    )


def replicas_restart(owner: Owner) -> KubernetesObject:
    return alert(
        owner,
        "FastGenReplicasRestart",
        f"max(changes({series(owner, Metric.START_TIME)}[30m])) >= {RESTARTS}",
        "0s",
        WARNING,
        f"a replica of {owner.name} began {{{{ $value }}}} times anew within 30 minutes",
        f"Its last words are in the status: `fastgen explain {owner.name} -n {owner.namespace}`.",
    )


def no_replica_ready(owner: Owner) -> KubernetesObject:
    return alert(
        owner,
        "FastGenNoReplicaReady",
        f"max({series(owner, Metric.ENDPOINTS)}) == 0",
        "5m",
        CRITICAL,
        f"no replica of {owner.name} takes requests",
        f"Every request is refused. `fastgen explain {owner.name} -n {owner.namespace}` tells why.",
    )


def replicas_missing(owner: Owner, spec: Spec) -> KubernetesObject:
    wanted = str(replicas_wanted(spec))
    if spec.scaling.mode is ScalingMode.AUTO:
        # The rule is to stay as it is when the autoscaler writes another number.
        wanted = f"max({series(owner, Metric.DESIRED_REPLICAS)})"
    return alert(
        owner,
        "FastGenReplicasMissing",
        f"max({series(owner, Metric.ENDPOINTS)}) < {wanted}",
        "30m",
        WARNING,
        f"only {{{{ $value }}}} replicas of {owner.name} take requests, and more are wanted",
        f"They wait for a node, load, crash or are ejected, or scaling is frozen. "
        f"`fastgen explain {owner.name} -n {owner.namespace}` tells which.",
    )


def autoscaler_blind(owner: Owner) -> KubernetesObject:
    return alert(
        owner,
        "FastGenAutoscalerBlind",
        _mostly(owner, NO_SIGNAL),
        "5m",
        WARNING,
        f"the autoscaler of {owner.name} does not see what it decides by",
        "It holds the number of replicas. status.lastDecision of the FastGenDeployment says what "
        "is missing: often the URL of Prometheus (spec.scaling.prometheus.url or the Helm value "
        "prometheus.url), or a Prometheus that does not scrape the replicas.",
    )


def slo_infeasible(owner: Owner) -> KubernetesObject:
    return alert(
        owner,
        "FastGenSLOInfeasible",
        _mostly(owner, SLO_INFEASIBLE),
        "5m",
        WARNING,
        f"{owner.name} misses its SLO with replicas that are not busy",
        "More replicas would not help. The targets of spec.slo ask for more than this model does "
        "on these machines, or something beside it slows them.",
    )


def at_max_replicas(owner: Owner, spec: Spec) -> KubernetesObject:
    limit = allowed_share(spec.slo).normalize()
    desired = f"max({series(owner, Metric.DESIRED_REPLICAS)})"
    missed = f"{series(owner, bad_share('30m'))} > {limit}"
    enough = f"{bad_requests(owner, '30m')} >= {LEAST_BAD_REQUESTS}"
    return alert(
        owner,
        "FastGenAtMaxReplicas",
        f"{desired} >= {spec.scaling.max_replicas} and on() ({missed} and {enough}) "
        f"unless on() {without_replicas_series(owner)}",
        "15m",
        WARNING,
        f"{owner.name} misses its SLO with all replicas that it may have "
        f"({spec.scaling.max_replicas})",
        "Raise spec.scaling.maxReplicas if there is room, send less, or ask for less in spec.slo.",
    )


def _share(owner: Owner, outcomes: str, window: str, limit: Decimal) -> str:
    """More than this share of the counted requests ended so, and enough of them to tell."""
    found = f"sum(increase({series(owner, Metric.REQUESTS, outcomes)}[{window}]))"
    counted = f"sum(increase({series(owner, Metric.REQUESTS, COUNTED)}[{window}]))"
    return f"({found} / {counted} > {limit} and {found} >= {LEAST_BAD_REQUESTS})"


def _mostly(owner: Owner, rule: str) -> str:
    """Most decisions of a quarter of an hour were by this rule."""
    every = f"sum(increase({series(owner, Metric.DECISIONS)}[15m]))"
    by_rule = f"sum(increase({series(owner, Metric.DECISIONS, _label('rule', rule))}[15m]))"
    return f"{by_rule} > 0.5 * {every}"


def _label(name: str, value: str) -> str:
    return f'{name}="{value}"'
