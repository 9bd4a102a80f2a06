"""Makes what a Prometheus operator reads: a PodMonitor, and a PrometheusRule with SLO alerts."""

from collections.abc import Collection, Mapping
from typing import Final

from fastgen_api import names
from fastgen_api.names import Component
from fastgen_api.scaling import replicas_wanted
from fastgen_api.spec import KubernetesObject, ScalingMode, Spec
from fastgen_operator import alerts, burn_rates
from fastgen_operator.owner import Owner, child_metadata, selector_labels
from fastgen_operator.party import Party
from fastgen_operator.settings import MonitoringSettings

GROUP: Final = "monitoring.coreos.com"
POD_MONITOR: Final = "PodMonitor"
PROMETHEUS_RULE: Final = "PrometheusRule"
MONITORING_KINDS: Final = (POD_MONITOR, PROMETHEUS_RULE)
"""Kinds that a cluster serves only while their CustomResourceDefinitions are there."""

SCRAPE_INTERVAL: Final = "5s"
"""The autoscaler's short window of 30 s is to hold four samples and one that is late."""


def monitoring_children(
    owner: Owner,
    spec: Spec,
    settings: MonitoringSettings,
    served: Collection[str],
    *,
    shares_balancer: bool = False,
) -> tuple[KubernetesObject, ...]:
    """Those of MONITORING_KINDS that are asked for and that the cluster knows."""
    metadata = _metadata(child_metadata(owner, owner.name, Component.REPLICA), settings.labels)
    pods = {names.MANAGED_BY_LABEL: names.OPERATOR_MANAGER, names.DEPLOYMENT_LABEL: owner.name}
    if shares_balancer:
        # What is scraped twice is counted twice: a shared balancer has a monitor of its own.
        pods = selector_labels(owner, Component.REPLICA)
    made = {
        POD_MONITOR: _object(POD_MONITOR, metadata, _pod_monitor(pods)),
        PROMETHEUS_RULE: _object(PROMETHEUS_RULE, metadata, _rule(owner, spec)),
    }
    return tuple(made[kind] for kind in MONITORING_KINDS if settings.enabled and kind in served)


def balancer_monitoring(
    party: Party, settings: MonitoringSettings, served: Collection[str]
) -> tuple[KubernetesObject, ...]:
    """The PodMonitor of a balancer that several deployments share."""
    if not (party.is_shared and settings.enabled and POD_MONITOR in served):
        return ()
    metadata = _metadata(party.metadata(names.balancer_name(party.name)), settings.labels)
    pods = selector_labels(party.identity, Component.BALANCER)
    return (_object(POD_MONITOR, metadata, _pod_monitor(pods)),)


def _object(kind: str, metadata: KubernetesObject, spec: KubernetesObject) -> KubernetesObject:
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": metadata, "spec": spec}


def _metadata(metadata: KubernetesObject, labels: Mapping[str, str]) -> KubernetesObject:
    return metadata | {"labels": {**labels, **metadata["labels"]}}


def _pod_monitor(labels: Mapping[str, str]) -> KubernetesObject:
    return {
        "selector": {"matchLabels": labels},
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
