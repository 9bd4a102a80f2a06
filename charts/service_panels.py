"""Panels of what a deployment's users get, and of how many replicas give it."""

from typing import Final

from grafana import TARGET_LEGEND, Panel, Query, Row
from panel_queries import (
    ALLOWED,
    COUNTED,
    ENGINE_SECONDS,
    FIRING,
    GOOD,
    TOKENS_PER_SECOND,
    bad_share,
    of,
    quantiles,
    rate,
    share,
    target,
)

from fastgen_api.names import Metric, Target

SLO_ROW: Final = Row(
    "SLO",
    (
        Panel(
            "Good requests", "percentunit",
            "Share of the requests in the shown range that met all targets of `spec.slo`. Below "
            "the SLO: see which target is missed, and whether replicas are saturated or few.",
            (Query(share(rate(Metric.REQUESTS, GOOD, window="$__range"),
                         of_all=rate(Metric.REQUESTS, COUNTED, window="$__range"))),),
            is_number=True,
        ),
        Panel(
            "SLO", "percentunit",
            "The share that `spec.slo.targetPercent` asks for, as the replicas know it.",
            (Query(f"max({of(Metric.SLO_TARGET)})"),), is_number=True,
        ),
        Panel(
            "Error budget left", "percentunit",
            "Of the bad requests that the SLO allows in the shown range, the share not yet used. "
            "Below 0 the SLO is missed over this range: choose 30 days for a month's budget.",
            (Query(f"1 - {bad_share('$__range')} / {ALLOWED}"),), is_number=True,
        ),
        Panel(
            "Alerts firing", "none",
            "Alerts of this deployment. Each has a section in `docs/observability.md`.",
            (Query(f"count({FIRING}) or vector(0)"),), is_number=True, limits=(1,),
        ),
        Panel(
            "Share of good requests", "percentunit",
            "Over 5 minutes, against the SLO. A dip: compare with replicas, queue and step time at "
            "the same moment.",
            (Query(f"1 - {bad_share('5m')}", "good"),
             Query(f"max({of(Metric.SLO_TARGET)})", TARGET_LEGEND)),
            most=1,
        ),
        Panel(
            "Burn rate", "suffix: ×",
            "How many times faster than the SLO allows the error budget is used. Above 14.4 over "
            "1 h or 6 over 6 h somebody is paged; above 1 for days the SLO is missed.",
            tuple(Query(f"{bad_share(window)} / {ALLOWED}", window)
                  for window in ("5m", "1h", "6h")),
            limits=(1, 6, 14.4),
        ),
        Panel(
            "Missed targets", "reqps",
            "Requests that missed each target. `ttft`: queueing, more replicas help. `tpot` and "
            "`gap`: steps are too long, a smaller `engine.tokenBudget` or a faster machine helps.",
            (Query(rate(Metric.TARGET_MISSES, by="target"), "{{target}}"),), stacked=True,
        ),
        Panel(
            "Time to first token", "s",
            "The wait at the balancer included. A longer prompt may take longer by "
            "`perPromptTokenMicroseconds`, so that requests above the target may be good.",
            (*quantiles(Metric.TTFT, 0.5, 0.95, 0.99), target(Target.TTFT)),
        ),
        Panel(
            "Time per output token", "s",
            "By request. Above its target while the budget is `Auto`: the replicas decode more "
            "streams than the target allows.",
            (*quantiles(Metric.TPOT, 0.5, 0.95, 0.99), target(Target.TPOT)),
        ),
        Panel(
            "Longest token gap", "s",
            "By request, the longest freeze. Single high ones: preemptions, or a long prompt with "
            "a `Fixed` budget.",
            (*quantiles(Metric.TOKEN_GAP, 0.5, 0.95, 0.99), target(Target.GAP)),
        ),
    ),
)  # fmt: skip

TRAFFIC_ROW: Final = Row(
    "Traffic",
    (
        Panel(
            "Requests by outcome", "reqps",
            "Each request once. `refused`: too few replicas or too short a queue; `error`: broken "
            "answers, look at the replicas' logs; `excluded`: the clients' own errors.",
            (Query(rate(Metric.REQUESTS, by="outcome"), "{{outcome}}"),), stacked=True,
        ),
        Panel(
            "Tokens", TOKENS_PER_SECOND,
            "Computed, so that prompt tokens found in the prefix cache do not count.",
            (Query(rate(Metric.PROMPT_TOKENS), "prompt"),
             Query(rate(Metric.OUTPUT_TOKENS), "output")),
        ),
        Panel(
            "Arriving requests", "reqps",
            "As engines took them; each choice of `n` is one. Refused ones do not arrive.",
            (Query(rate(Metric.ARRIVED_REQUESTS), "arriving"),),
        ),
        Panel(
            "Work that arrives", ENGINE_SECONDS,
            "What arriving requests will take of the engines, by their latency model. `prefill`: "
            "prompts, less what the prefix cache has; `decode`: answers.",
            (Query(rate(Metric.ARRIVED_WORK, by="phase"), "{{phase}}"),), stacked=True,
        ),
        Panel(
            "Work done", ENGINE_SECONDS,
            "Of the same kind. Below what arrives for long: replicas are few, and the queue grows.",
            (Query(rate(Metric.DONE_WORK, by="phase"), "{{phase}}"),), stacked=True,
        ),
        Panel(
            "How requests ended in replicas", "reqps",
            "Whoever counts their outcome. `deadline`: clients' deadlines are shorter than answers "
            "take; `failed`: the engine failed them.",
            (Query(rate(Metric.REQUEST_ENDS, by="end"), "{{end}}"),), stacked=True,
        ),
        Panel(
            "Phases of a request, p95", "s",
            "Where the time goes: `queue` long means too few replicas, `prefill` long prompts or a "
            "small budget, `decode` long answers.",
            tuple(
                Query(quantiles(metric, 0.95)[0].expression, name)
                for metric, name in ((Metric.QUEUE_SECONDS, "queue"),
                                     (Metric.PREFILL_SECONDS, "prefill"),
                                     (Metric.DECODE_SECONDS, "decode"))
            ),
        ),
    ),
)  # fmt: skip

SCALING_ROW: Final = Row(
    "Scaling",
    (
        Panel(
            "Replicas", "none",
            "`desired` by the autoscaler, `running` as Prometheus sees them, `ready` for requests. "
            "Ready below desired for long: `fastgen explain` tells what they wait for.",
            (Query(f"max({of(Metric.DESIRED_REPLICAS)})", "desired", may_be_empty=True),
             Query(f"count({of(Metric.RUNNING_REQUESTS)})", "running"),
             Query(f"max({of(Metric.ENDPOINTS)})", "ready")),
        ),
        Panel(
            "Decisions by rule", "percentunit",
            "Which rule gave the number of replicas. `NoSignal`: Prometheus tells the autoscaler "
            "nothing, nothing is removed; `SLOInfeasible`: more replicas would not help.",
            (Query(share(rate(Metric.DECISIONS, by="rule"), of_all=rate(Metric.DECISIONS),
                         match="on() group_left() "),
                   "{{rule}}", may_be_empty=True),),
            stacked=True, most=1,
        ),
        Panel(
            "Blockers", "percentunit",
            "What kept decisions from going where their rule pointed, of all decisions. "
            "`MaxReplicas`: raise it; `CapacityBlocked`, `StuckReplicas`: `fastgen explain`; "
            "`Frozen`, `ForeignScaler`: somebody's wish.",
            (Query(share(rate(Metric.BLOCKED_DECISIONS, by="blocker"),
                         of_all=rate(Metric.DECISIONS), match="on() group_left() "),
                   "{{blocker}}", may_be_empty=True),),
            most=1,
        ),
        Panel(
            "Demand and capacity", ENGINE_SECONDS,
            "As the autoscaler sees them; capacity is that of the ready replicas. Demand near "
            "capacity: another replica is due.",
            (Query(f"max({of(Metric.DEMAND)})", "demand", may_be_empty=True),
             Query(f"max({of(Metric.CAPACITY)}) * max({of(Metric.ENDPOINTS)})", "capacity",
                   may_be_empty=True)),
        ),
        Panel(
            "Reversals", "none",
            "In the last hour: the number of replicas went the other way than before. More than "
            "two on steady load: a longer `stabilizationWindowSeconds`.",
            (Query(f"sum(increase({of(Metric.REVERSALS, window='1h')}))", "reversals",
                   may_be_empty=True),),
        ),
        Panel(
            "Waiting requests", "none",
            "Held back at the balancers, and waiting in replicas. A queue that stands: more "
            "replicas, or a higher `maxConcurrentRequests` if the KV cache has room.",
            (Query(f"sum({of(Metric.QUEUED_REQUESTS)})", "at balancers"),
             Query(f"sum({of(Metric.WAITING_REQUESTS)})", "in replicas")),
            stacked=True,
        ),
        Panel(
            "Autoscalers that lead", "none",
            "One at any time. None for minutes: the balancers do not reach the API server; "
            "replicas stay as they are.",
            (Query(f"sum({of(Metric.LEADER)})", "leaders"),),
        ),
    ),
)  # fmt: skip
