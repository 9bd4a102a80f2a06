"""Makes what a Prometheus operator reads: a PodMonitor, and a PrometheusRule with SLO alerts."""

from collections.abc import Collection, Mapping
from typing import Final

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject, ScalingMode, Spec, replicas_wanted
from fastgen_operator import alerts, burn_rates
from fastgen_operator.owner import Owner, child_metadata
from fastgen_operator.settings import MonitoringSettings

GROUP: Final = "monitoring.coreos.com"
POD_MONITOR: Final = "PodMonitor"
PROMETHEUS_RULE: Final = "PrometheusRule"
MONITORING_KINDS: Final = (POD_MONITOR, PROMETHEUS_RULE)
"""Kinds that a cluster serves only while their CustomResourceDefinitions are there."""

SCRAPE_INTERVAL: Final = "5s"
"""The autoscaler's short window of 30 s is to hold four samples and one that is late."""


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
        *burn_rates.recordings(owner),
        *burn_rates.alerts(owner, spec.slo),
        alerts.requests_fail(owner, spec.slo),
        alerts.requests_refused(owner, spec.slo),
        alerts.many_retries(owner),
        alerts.metrics_missing(owner),
        alerts.replicas_restart(owner),
    ]
    is_ours = spec.scaling.mode is ScalingMode.AUTO
    if is_ours or replicas_wanted(spec):
        rules.append(alerts.replicas_missing(owner, spec))
    if replicas_wanted(spec) and not (is_ours and spec.scaling.min_replicas == 0):
        # One that may sleep is without replicas now and then; requests that fail tell more.
        rules.append(alerts.no_replica_ready(owner))
    if spec.scaling.mode is not ScalingMode.DISABLED:
        rules.append(alerts.autoscaler_blind(owner))
        rules.append(alerts.slo_infeasible(owner))
    if is_ours:
        rules.append(alerts.at_max_replicas(owner, spec))
    group = {
        "name": f"fastgen-{owner.namespace}-{owner.name}",
        "interval": f"{burn_rates.EVALUATION_SECONDS}s",
        "rules": rules,
    }
    return {"groups": [group]}
