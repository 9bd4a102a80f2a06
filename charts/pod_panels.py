"""Panels of the processes: replicas, balancers, the operator."""

from typing import Final

from grafana import Panel, Query, Row
from panel_queries import TOKENS, of, operator_rate, quantile, quantiles, rate, share

from fastgen_api.names import Metric

INSTANCE: Final = "{{instance}}"

REPLICAS_ROW: Final = Row(
    "Replicas",
    (
        Panel(
            "Running requests", "none",
            "By replica. Uneven for long: one is slow, or a prefix that many share is kept on it.",
            (Query(f"sum by (instance) ({of(Metric.RUNNING_REQUESTS)})", INSTANCE),),
        ),
        Panel(
            "KV cache in use", "percentunit",
            "By replica. Near 1 with requests waiting: more replicas, more memory, or a shorter "
            "`maxModelLength`.",
            (Query(f"max by (instance) ({of(Metric.KV_USAGE)})", INSTANCE),), most=1,
        ),
        Panel(
            "Tokens owed", TOKENS,
            "By replica: what its open requests still have to compute. Balancers even this out.",
            (Query(f"sum by (instance) ({of(Metric.OWED_TOKENS)})", INSTANCE),),
        ),
        Panel(
            "Work owed", "s",
            "By replica: the engine time of the tokens owed. About what a new request waits.",
            (Query(f"sum by (instance) ({of(Metric.OWED_WORK)})", INSTANCE),),
        ),
        Panel(
            "Prefix cache hit rate", "percentunit",
            "Prompt tokens found, of all prompt tokens. Low with chats of many turns: see "
            "`balancer.routing` and the KV cache.",
            (Query(share(rate(Metric.PREFIX_HITS, by="instance"),
                         of_all=rate(Metric.PREFIX_QUERIES, by="instance")), INSTANCE),),
            most=1,
        ),
        Panel(
            "Step time", "s",
            "Of one forward pass. While streams run it is what they wait for each token.",
            quantiles(Metric.STEP_SECONDS, 0.5, 0.95),
        ),
        Panel(
            "Step time, measured to predicted", "suffix: ×",
            "Above 1 for long: the machine is slower than it was, often by a neighbour.",
            quantiles(Metric.STEP_RATIO, 0.5, 0.95),
        ),
        Panel(
            "Tokens of a step, and the budget", TOKENS,
            "At the budget all the time: prompts queue. A budget of one block: the target for time "
            "per token leaves no more beside the running streams.",
            (*quantiles(Metric.STEP_TOKENS, 0.95),
             Query(f"min({of(Metric.BUDGET_TOKENS)})", "smallest budget")),
        ),
        Panel(
            "Guessed tokens that were right", "percentunit",
            "By replica, with `engine.speculation: PromptLookup`. Empty: nothing is guessed, "
            "since answers do not repeat their texts or too many streams run.",
            (Query(share(rate(Metric.ACCEPTED_TOKENS, by="instance"),
                         of_all=rate(Metric.DRAFTED_TOKENS, by="instance")), INSTANCE,
                   may_be_empty=True),),
            most=1,
        ),
        Panel(
            "Preemptions", "ops",
            "Requests sent back to the queue for lack of KV blocks, and computed again. Often: "
            "lower `maxConcurrentRequests`, or add replicas.",
            (Query(rate(Metric.PREEMPTIONS, by="instance"), INSTANCE),),
        ),
        Panel(
            "Restarts", "none",
            "In the last 30 minutes, by replica. Above 0: `fastgen explain` has its last words.",
            (Query(f"sum by (instance) (changes({of(Metric.START_TIME, window='30m')}))",
                   INSTANCE),),
        ),
    ),
)  # fmt: skip

BALANCER_ROW: Final = Row(
    "Balancer",
    (
        Panel(
            "Picks", "reqps",
            "What the picker answered. `full`: the queue is at its end; `no_endpoints`: no replica "
            "is ready; `too_large`, `malformed`: the clients' fault.",
            (Query(rate(Metric.PICKS, by="result"), "{{result}}"),), stacked=True,
        ),
        Panel(
            "Retries", "reqps",
            "Attempts that were repeated on another replica. More than a few: a replica refuses or "
            "breaks what it is sent.",
            (Query(rate(Metric.RETRIES), "retries"),),
        ),
        Panel(
            "Ejections", "ops",
            "Replicas left out for a while: `failing` ones break or refuse, `slow` ones lag behind "
            "the others. Again and again the same: delete its pod.",
            (Query(rate(Metric.EJECTIONS, by="reason"), "{{reason}}"),),
        ),
        Panel(
            "Quarantined prompts", "none",
            "Prompts that are refused since two replicas crashed under them. Not 0: the replicas' "
            "last log lines tell what they do.",
            (Query(f"sum({of(Metric.QUARANTINED_PROMPTS)})", "prompts"),),
        ),
        Panel(
            "In flight", "none",
            "Requests sent to replicas and not ended, by balancer. 0 when traffic has ended.",
            (Query(f"sum by (instance) ({of(Metric.IN_FLIGHT_REQUESTS)})", INSTANCE),),
            stacked=True,
        ),
        Panel(
            "Time to first byte", "s",
            "From a whole request to its answer's headers, as the balancer sees it. Much above the "
            "replicas' time to first token: the network or the balancer is slow.",
            quantiles(Metric.FIRST_BYTE_SECONDS, 0.5, 0.95),
        ),
    ),
)  # fmt: skip

OPERATOR_ROW: Final = Row(
    "Operator",
    (
        Panel(
            "Reconciles", "ops",
            "`error` that goes on: the operator's log names the deployment and the reason.",
            (Query(operator_rate(Metric.RECONCILES, "outcome"), "{{outcome}}"),), stacked=True,
        ),
        Panel(
            "Reconcile time, p95", "s",
            "Waits for the API server included. Seconds: the API server is slow or refuses.",
            (quantile(operator_rate(f"{Metric.RECONCILE_SECONDS}_bucket", "le"), 0.95),),
        ),
        Panel(
            "Deployments that wait", "none",
            "Their reconcile is due and has not begun. Above 0 for minutes: it does not keep up.",
            (Query(f"sum({Metric.QUEUED_DEPLOYMENTS})", "waiting"),),
        ),
        Panel(
            "Ends of watches", "ops",
            "`expected` is normal. `refused`: a right is missing; `silent`, `broken`: the network.",
            (Query(operator_rate(Metric.WATCH_ENDS, "reason"), "{{reason}}", may_be_empty=True),),
            stacked=True,
        ),
        Panel(
            "Requests to the API server", "reqps",
            "By status; 0: no answer. 429 and 5xx that go on: the API server is overloaded.",
            (Query(operator_rate(Metric.API_REQUESTS, "code"), "{{code}}"),), stacked=True,
        ),
        Panel(
            "Memory", "bytes",
            "Of the operator's process. Near the limit: raise `operator.resources`. What it keeps: "
            "`fastgen_operator_known_objects`.",
            (Query(f"process_resident_memory_bytes and on(instance) {Metric.QUEUED_DEPLOYMENTS}",
                   INSTANCE),),
        ),
    ),
)  # fmt: skip
