"""The queries of the dashboard's panels in PromQL.

They rest on the labels that our processes put on their series, and on `instance`; on no recorded
series, so that panels show the same without a Prometheus operator.
"""

from typing import Final

from grafana import TARGET_LEGEND, Query

from fastgen_api.names import Metric, MetricLabel, Outcome, Target

OWN: Final = f'{MetricLabel.DEPLOYMENT}="$deployment",{MetricLabel.NAMESPACE}="$namespace"'
BAD: Final = f'outcome!~"{Outcome.GOOD}|{Outcome.EXCLUDED}"'
COUNTED: Final = f'outcome!="{Outcome.EXCLUDED}"'
GOOD: Final = f'outcome="{Outcome.GOOD}"'
ENGINE_SECONDS: Final = "suffix: engine-s/s"
TOKENS: Final = "suffix: tokens"
TOKENS_PER_SECOND: Final = "suffix: tokens/s"

FIRING: Final = f'ALERTS{{alertname=~"FastGen.*",alertstate="firing",{OWN}}}'
"""The deployment's alerts that fire."""


def of(metric: str, *more: str, window: str = "") -> str:
    """The series of the chosen deployment."""
    return f"{metric}{{{','.join((OWN, *more))}}}" + (f"[{window}]" if window else "")


def rate(metric: str, *more: str, by: str = "", window: str = "$__rate_interval") -> str:
    """Events per second, over all pods."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({of(metric, *more, window=window)}))"


def share(part: str, *, of_all: str, match: str = "") -> str:
    """A share that is missing, rather than no number, while there is nothing to share."""
    return f"{part} / {match}({of_all} > 0)"


def quantile(buckets: str, level: float) -> Query:
    """A percentile of summed buckets."""
    return Query(f"histogram_quantile({level}, {buckets})", f"p{level * 100:g}")


def quantiles(metric: str, *levels: float) -> tuple[Query, ...]:
    """Percentiles over all pods: of the summed buckets, never a mean of percentiles."""
    buckets = rate(f"{metric}_bucket", by="le")
    return tuple(quantile(buckets, level) for level in levels)


def target(seconds_of: Target) -> Query:
    label = f'target="{seconds_of}"'
    return Query(f"max({of(Metric.TARGET_SECONDS, label)})", TARGET_LEGEND, may_be_empty=True)


def bad_share(window: str) -> str:
    """The share of counted requests that were not good."""
    return share(
        rate(Metric.REQUESTS, BAD, window=window),
        of_all=rate(Metric.REQUESTS, COUNTED, window=window),
    )


ALLOWED: Final = f"(1 - max({of(Metric.SLO_TARGET)}))"


def operator_rate(metric: str, by: str = "") -> str:
    """Events per second of the operator, which serves every deployment."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({metric}[$__rate_interval]))"
