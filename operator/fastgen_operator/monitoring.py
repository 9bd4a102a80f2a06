"""Makes what a Prometheus operator reads: a PodMonitor, and a PrometheusRule with SLO alerts."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from fastgen_api import names
from fastgen_api.names import Component, Metric, MetricLabel, Outcome
from fastgen_api.spec import KubernetesObject, ScalingMode, Spec, replicas_wanted
from fastgen_operator.owner import Owner, child_metadata
from fastgen_operator.settings import MonitoringSettings

GROUP: Final = "monitoring.coreos.com"
POD_MONITOR: Final = "PodMonitor"
PROMETHEUS_RULE: Final = "PrometheusRule"
MONITORING_KINDS: Final = (POD_MONITOR, PROMETHEUS_RULE)
"""Kinds that a cluster serves only while their CustomResourceDefinitions are there."""

SCRAPE_INTERVAL: Final = "5s"
"""The autoscaler's short window of 30 s is to hold four samples and one that is late."""
LEAST_BAD_REQUESTS: Final = 5
"""In the longer window of an alert: one unlucky request at night wakes nobody."""
NO_SIGNAL: Final = "NoSignal"
"""The autoscaler's rule that decides when Prometheus tells it nothing (`rule` of its decisions)."""
BLIND_FOR: Final = "15m"


@dataclass(frozen=True, slots=True)
class Burn:
    """Bad requests that come so many times faster than the SLO allows, seen in two windows."""

    factor: Decimal
    long: str
    short: str


FAST: Final = (Burn(Decimal("14.4"), "1h", "5m"), Burn(Decimal(6), "6h", "30m"))
SLOW: Final = (Burn(Decimal(3), "1d", "2h"), Burn(Decimal(1), "3d", "6h"))
"""Windows and factors of the SRE workbook's chapter on alerting by burn rates."""


def monitoring_children(
    owner: Owner, spec: Spec, settings: MonitoringSettings, served: Collection[str]
) -> tuple[KubernetesObject, ...]:
    """Those of MONITORING_KINDS that are asked for and that the cluster knows."""
    made = {POD_MONITOR: _pod_monitor, PROMETHEUS_RULE: _rule}
    return tuple(
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": kind,
            "metadata": _metadata(owner, settings.labels),
            "spec": made[kind](owner, spec),
        }
        for kind in MONITORING_KINDS
        if settings.enabled and kind in served
    )


def _metadata(owner: Owner, labels: Mapping[str, str]) -> KubernetesObject:
    metadata = child_metadata(owner, owner.name, Component.REPLICA)
    return metadata | {"labels": {**labels, **metadata["labels"]}}


def _pod_monitor(owner: Owner, spec: Spec) -> KubernetesObject:
    return {
        "selector": {
            "matchLabels": {
                names.MANAGED_BY_LABEL: names.OPERATOR_MANAGER,
                names.DEPLOYMENT_LABEL: owner.name,
            }
        },
        "podMetricsEndpoints": [
            {
                "port": "metrics",
                "path": "/metrics",
                "interval": SCRAPE_INTERVAL,
                "scrapeTimeout": SCRAPE_INTERVAL,
            }
        ],
    }


def _rule(owner: Owner, spec: Spec) -> KubernetesObject:
    rules = [
        _burns(owner, spec, "FastGenErrorBudgetBurnsFast", FAST, "2m", "critical"),
        _burns(owner, spec, "FastGenErrorBudgetBurnsSlowly", SLOW, "15m", "warning"),
        _metrics_missing(owner),
    ]
    if replicas_wanted(spec):
        rules.append(_no_replica(owner))
    if spec.scaling.mode is not ScalingMode.DISABLED:
        rules.append(_blind(owner))
    return {"groups": [{"name": f"fastgen-{owner.namespace}-{owner.name}", "rules": rules}]}


def _burns(
    owner: Owner, spec: Spec, alert: str, burns: tuple[Burn, ...], hold: str, severity: str
) -> KubernetesObject:
    target = Decimal(spec.slo.target_percent)
    return _alert(
        owner,
        alert,
        " or ".join(f"({_burn(owner, burn, target)})" for burn in burns),
        hold,
        severity,
        f"{owner.name} misses its SLO: {{{{ $value | humanizePercentage }}}} of its requests are "
        f"not good",
        f"{spec.slo.target_percent} percent of requests are to be good (spec.slo of "
        f"FastGenDeployment {owner.namespace}/{owner.name}). Late, slow, frozen, refused and "
        f"broken answers are not; fastgen_slo_target_misses_total tells which target is missed, "
        f"and `fastgen explain {owner.name} -n {owner.namespace}` what is known about why.",
    )


def _burn(owner: Owner, burn: Burn, target_percent: Decimal) -> str:
    limit = burn_limit(burn.factor, target_percent)
    bad = _series(owner, Metric.REQUESTS, f'outcome!~"{Outcome.GOOD}|{Outcome.EXCLUDED}"')
    counted = _series(owner, Metric.REQUESTS, f'outcome!="{Outcome.EXCLUDED}"')

    def share(window: str) -> str:
        return f"sum(rate({bad}[{window}])) / sum(rate({counted}[{window}])) > {limit}"

    enough = f"sum(increase({bad}[{burn.long}])) >= {LEAST_BAD_REQUESTS}"
    return f"{share(burn.short)} and {share(burn.long)} and {enough}"


def burn_limit(factor: Decimal, target_percent: Decimal) -> Decimal:
    """Above which share of bad requests an alert fires.

    The factor times the share that the SLO allows; where that is no share any more, or nearly none
    (a target of 90 percent burns at most ten times too fast), half way from what is allowed to all.
    """
    allowed = 1 - target_percent / 100
    return min(factor * allowed, (1 + allowed) / 2).normalize()


def _metrics_missing(owner: Owner) -> KubernetesObject:
    return _alert(
        owner,
        "FastGenMetricsMissing",
        f"absent({_series(owner, Metric.ENDPOINTS)})",
        "10m",
        "warning",
        f"Prometheus has no metrics of {owner.name}'s balancers",
        "Without them nothing is known of the SLO, and the autoscaler removes no replica. Do the "
        "balancers run, and does this Prometheus scrape them?",
    )


def _no_replica(owner: Owner) -> KubernetesObject:
    return _alert(
        owner,
        "FastGenNoReplicaReady",
        f"max({_series(owner, Metric.ENDPOINTS)}) == 0",
        "5m",
        "critical",
        f"no replica of {owner.name} takes requests",
        f"Every request is refused. `fastgen explain {owner.name} -n {owner.namespace}` tells why.",
    )


def _blind(owner: Owner) -> KubernetesObject:
    every = _series(owner, Metric.DECISIONS)
    blind = _series(owner, Metric.DECISIONS, f'rule="{NO_SIGNAL}"')
    return _alert(
        owner,
        "FastGenAutoscalerBlind",
        f"sum(increase({blind}[{BLIND_FOR}])) > 0.5 * sum(increase({every}[{BLIND_FOR}]))",
        "5m",
        "warning",
        f"the autoscaler of {owner.name} does not see what it decides by",
        "It holds the number of replicas. status.lastDecision of the FastGenDeployment says what "
        "is missing: often the URL of Prometheus (spec.scaling.prometheus.url or the Helm value "
        "prometheus.url), or a Prometheus that does not scrape the replicas.",
    )


def _series(owner: Owner, metric: str, *more: str) -> str:
    """Selects by the labels that our processes put on their series, whoever scrapes them."""
    labels = (
        f"{MetricLabel.DEPLOYMENT}={json.dumps(owner.name)}",
        f"{MetricLabel.NAMESPACE}={json.dumps(owner.namespace)}",
        *more,
    )
    return f"{metric}{{{','.join(labels)}}}"


def _alert(
    owner: Owner, alert: str, expression: str, hold: str, severity: str, summary: str, words: str
) -> KubernetesObject:
    return {
        "alert": alert,
        "expr": expression,
        "for": hold,
        "labels": {
            "severity": severity,
            MetricLabel.DEPLOYMENT: owner.name,
            MetricLabel.NAMESPACE: owner.namespace,
        },
        "annotations": {"summary": summary, "description": words},
    }
