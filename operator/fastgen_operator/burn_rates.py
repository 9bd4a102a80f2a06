"""How fast a deployment's error budget burns: series that are recorded, and alerts on them.

Multiple windows and burn rates as in the SRE workbook, chapter 5, "Alerting on SLOs". Only short
rates read the requests' own series; the long windows read what is recorded of these, two series
per deployment whatever the number of its pods.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from fastgen_api.names import Metric
from fastgen_api.spec import SLO, KubernetesObject
from fastgen_operator.alert import (
    BAD,
    COUNTED,
    CRITICAL,
    WARNING,
    alert,
    recording,
    series,
)
from fastgen_operator.owner import Owner

EVALUATION_SECONDS: Final = 30
"""Between two evaluations: each is a sample of what is recorded."""
LEAST_BAD_REQUESTS: Final = 5
"""In the longer window of an alert: one unlucky request at night wakes nobody."""

BAD_RATE: Final = "fastgen:bad_requests:rate2m"
COUNTED_RATE: Final = "fastgen:counted_requests:rate2m"


@dataclass(frozen=True, slots=True)
class Burn:
    """Bad requests that come so many times faster than the SLO allows, seen in two windows."""

    factor: Decimal
    long: str
    short: str


FAST: Final = (Burn(Decimal("14.4"), "1h", "5m"), Burn(Decimal(6), "6h", "30m"))
SLOW: Final = (Burn(Decimal(3), "1d", "2h"), Burn(Decimal(1), "3d", "6h"))


def bad_share(window: str) -> str:
    """Name of the recorded series: the share of bad requests in a window."""
    return f"fastgen:bad_requests:ratio_rate{window}"


def bad_requests(owner: Owner, window: str) -> str:
    """Their number in a window, from what is recorded: no less when pods have gone meanwhile."""
    return f"{EVALUATION_SECONDS} * sum_over_time({series(owner, BAD_RATE)}[{window}])"


def recordings(owner: Owner) -> tuple[KubernetesObject, ...]:
    """Short rates, and the share of bad requests in each window of FAST and SLOW."""
    windows = dict.fromkeys(window for burn in (*FAST, *SLOW) for window in (burn.short, burn.long))
    bad, counted = series(owner, BAD_RATE), series(owner, COUNTED_RATE)
    shares = (
        recording(
            owner,
            bad_share(window),
            f"sum_over_time({bad}[{window}]) / sum_over_time({counted}[{window}])",
        )
        for window in windows
    )
    return (
        recording(owner, BAD_RATE, f"sum(rate({series(owner, Metric.REQUESTS, BAD)}[2m]))"),
        recording(owner, COUNTED_RATE, f"sum(rate({series(owner, Metric.REQUESTS, COUNTED)}[2m]))"),
        *shares,
    )


def alerts(owner: Owner, slo: SLO) -> tuple[KubernetesObject, ...]:
    """The two alerts of the SLO."""
    return (
        _burns(owner, slo, "FastGenErrorBudgetBurnsFast", FAST, "1m", CRITICAL),
        _burns(owner, slo, "FastGenErrorBudgetBurnsSlowly", SLOW, "15m", WARNING),
    )


def allowed_share(slo: SLO) -> Decimal:
    """The share of bad requests that the SLO allows."""
    return 1 - Decimal(slo.target_percent) / 100


def burn_limit(factor: Decimal, allowed: Decimal) -> Decimal:
    """Above which share of bad requests an alert fires.

    The factor times the share that the SLO allows; where that is no share any more, or nearly none
    (a target of 90 percent burns at most ten times too fast), half way from what is allowed to all.
    """
    return min(factor * allowed, (1 + allowed) / 2).normalize()


def without_replicas_series(owner: Owner) -> str:
    """Holds while replicas take requests and Prometheus has no series of any of them.

    Then only the requests that the balancers count are known, all of which are bad.
    """
    endpoints = series(owner, Metric.ENDPOINTS)
    return f"(max({endpoints}) > 0 and on() absent({series(owner, Metric.RUNNING_REQUESTS)}))"


def _burns(
    owner: Owner, slo: SLO, name: str, burns: tuple[Burn, ...], hold: str, severity: str
) -> KubernetesObject:
    allowed = allowed_share(slo)
    burning = " or ".join(f"({_burn(owner, burn, allowed)})" for burn in burns)
    return alert(
        owner,
        name,
        f"({burning}) unless on() {without_replicas_series(owner)}",
        hold,
        severity,
        f"{owner.name} misses its SLO: {{{{ $value | humanizePercentage }}}} of its requests are "
        f"not good",
        f"{slo.target_percent} percent of requests are to be good (spec.slo of "
        f"FastGenDeployment {owner.namespace}/{owner.name}). Late, slow, frozen, refused and "
        f"broken answers are not; fastgen_slo_target_misses_total tells which target is missed, "
        f"and `fastgen explain {owner.name} -n {owner.namespace}` what is known about why.",
    )


def _burn(owner: Owner, burn: Burn, allowed: Decimal) -> str:
    limit = burn_limit(burn.factor, allowed)
    short, long = (series(owner, bad_share(window)) for window in (burn.short, burn.long))
    enough = f"{bad_requests(owner, burn.long)} >= {LEAST_BAD_REQUESTS}"
    return f"{short} > {limit} and {long} > {limit} and {enough}"
