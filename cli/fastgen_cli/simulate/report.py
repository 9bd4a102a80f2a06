"""What `fastgen simulate` says: for people, for programs, as a picture."""

from pathlib import Path
from typing import Final

import msgspec
from rich.table import Table

from fastgen_api.spec import SLO
from fastgen_cli.outputs import write_file
from fastgen_cli.plotting import bare, save_plot
from fastgen_cli.simulate.profile import Profile
from fastgen_cli.simulate.result import Result

SCHEMA: Final = "fastgen.dev/simulation/v1"
"""Named in each file; another name when a field changes its meaning."""


class Run(msgspec.Struct, frozen=True):
    """One way to run the trace. Hours and costs are of all replicas, their cold starts and drains
    included; costs are None without a price. timeline: [seconds, replicas asked for, ready, pods
    with a GPU], an entry for each change."""

    name: str
    meets_slo: bool
    good_percent: float
    requests: int
    outcomes: dict[str, int]
    replica_hours: float
    mean_replicas: float
    most_replicas: int
    gpu_hours: float
    cost: float | None
    cost_per_million_tokens: float | None
    ttft_seconds: dict[str, float | None]
    tpot_seconds: dict[str, float | None]
    reversals_per_hour: float
    timeline: list[tuple[float, int, int, int]]


class TraceFacts(msgspec.Struct, frozen=True):
    """shortened: requests that were longer than the model takes."""

    file: str
    requests: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    shortened: int


class Report(msgspec.Struct, frozen=True):
    """The JSON file. smallest_fixed_fleet: None where no fixed number of replicas meets the SLO."""

    schema: str
    trace: TraceFacts
    slo: SLO
    model_latency: dict[str, float | str]
    min_replicas: int
    max_replicas: int
    gpus_per_replica: int
    gpu_hour_price: float | None
    seed: int
    smallest_fixed_fleet: int | None
    runs: list[Run]


def latency_facts(profile: Profile) -> dict[str, float | str]:
    """The fields of a `--model-latency` file, and the profile's name."""
    cost = profile.cost
    return {
        "name": profile.name,
        "base_seconds": cost.base,
        "seconds_per_token": cost.per_token,
        "seconds_per_attended": cost.per_attended,
        "seconds_per_request": cost.per_request,
        "kv_blocks": profile.num_blocks,
        "kv_block_size": profile.block_size,
        "max_model_length": profile.max_length,
        "max_concurrent_requests": profile.max_concurrent_requests,
        "cold_start_seconds": profile.cold_start_seconds,
        "token_budget": profile.budget_tokens,
    }


def run_of(
    name: str, result: Result, target: float, gpus: int, price: float | None, tokens: int
) -> Run:
    """tokens: of the whole trace, prompts and answers."""
    hours = result.replica_hours * gpus
    cost = None if price is None else hours * price
    return Run(
        name=name,
        meets_slo=result.good_ratio >= target,
        good_percent=round(100 * result.good_ratio, 4),
        requests=result.requests,
        outcomes={outcome.value: count for outcome, count in result.outcomes.items()},
        replica_hours=result.replica_hours,
        mean_replicas=result.replica_hours / (result.seconds / 3600),
        most_replicas=result.most_replicas,
        gpu_hours=hours,
        cost=cost,
        cost_per_million_tokens=None if cost is None or not tokens else cost / tokens * 1e6,
        ttft_seconds={"p50": result.ttft_p50, "p90": result.ttft_p90, "p99": result.ttft_p99},
        tpot_seconds={"p50": result.tpot_p50, "p99": result.tpot_p99},
        reversals_per_hour=result.reversals_per_hour,
        timeline=[(m.at, m.wanted, m.ready, m.gpus) for m in result.timeline],
    )


def table_of(report: Report) -> Table:
    """How many GPUs, what goodness, what cost, side by side."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for run in report.runs:
        table.add_column(run.name, justify="right")
    for title, cells in _rows(report):
        table.add_row(title, *cells)
    return table


def _rows(report: Report) -> list[tuple[str, list[str]]]:
    runs, target = report.runs, report.slo.target_percent
    rows = [
        (
            f"good requests (SLO {target} %)",
            [f"{r.good_percent:.2f} % {'met' if r.meets_slo else 'MISSED'}" for r in runs],
        ),
        ("GPUs, mean", [_mean_gpus(report, run) for run in runs]),
        ("GPUs, most", [f"{r.most_replicas * report.gpus_per_replica}" for r in runs]),
        ("GPU-hours", [f"{r.gpu_hours:.2f}" for r in runs]),
    ]
    if report.gpu_hour_price is not None:
        rows += [
            ("cost", [f"{r.cost or 0.0:.2f}" for r in runs]),
            ("cost per million tokens", [f"{r.cost_per_million_tokens or 0.0:.3f}" for r in runs]),
        ]
    for key in ("p50", "p90", "p99"):
        rows.append((f"TTFT {key.upper()}", [_seconds(r.ttft_seconds[key]) for r in runs]))
    rows.append(("TPOT P99", [_seconds(r.tpot_seconds["p99"]) for r in runs]))
    bad = sorted({o for r in runs for o, n in r.outcomes.items() if n and o != "good"})
    rows += [(f"{name.replace('_', ' ')}", [str(r.outcomes[name]) for r in runs]) for name in bad]
    rows.append(("reversals per hour", [f"{r.reversals_per_hour:.1f}" for r in runs]))
    return rows


def _mean_gpus(report: Report, run: Run) -> str:
    return f"{run.mean_replicas * report.gpus_per_replica:.2f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def answer_of(report: Report, hindrance: str | None) -> str:
    """The answer in sentences. hindrance: why no number of replicas meets the SLO, where known."""
    own = report.runs[0]
    gpus = report.gpus_per_replica
    met = "meets" if own.meets_slo else "misses"
    text = (
        f"Autoscaling takes {_mean_gpus(report, own)} GPUs on average and "
        f"{own.most_replicas * gpus} at most; it {met} the SLO with {own.good_percent:.2f} % of "
        f"{own.requests} requests good."
    )
    if own.cost_per_million_tokens is not None:
        text += f" A million tokens cost {own.cost_per_million_tokens:.3f}."
    if report.smallest_fixed_fleet is None:
        text += f" No fixed number of up to {report.max_replicas} replicas meets it"
        return f"{text}: {hindrance or 'raise --max-replicas.'}"
    fixed = report.smallest_fixed_fleet * gpus
    return f"{text} A fixed fleet needs {fixed} GPU{'s' if fixed > 1 else ''}."


def write_json(report: Report, path: Path) -> None:
    """Raises UserError where the file cannot be written."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    write_file(path, text, "--output")


def write_plot(report: Report, arrivals: list[float], path: Path) -> None:
    """Requests per second above, replicas below. arrivals: seconds."""
    from matplotlib import pyplot as plt

    figure, (load, replicas) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
    bins = max(20, min(120, round(report.trace.seconds / 30)))
    width = report.trace.seconds / bins
    load.hist(
        [at / 60 for at in arrivals],
        bins=bins,
        weights=[1 / width] * len(arrivals),
        histtype="stepfilled",
        color="lightgrey",
    )
    load.set(
        ylabel="requests per second", title=f"{report.trace.file}: {report.trace.requests} requests"
    )
    for run in report.runs:
        minutes = [moment[0] / 60 for moment in run.timeline] + [report.trace.seconds / 60]
        ready = [moment[2] for moment in run.timeline]
        label = f"{run.name}, {run.good_percent:.2f} % good"
        replicas.step(minutes, [*ready, ready[-1]], where="post", label=label)
    replicas.set(xlabel="minutes", ylabel="ready replicas", ylim=(0, None))
    replicas.legend(frameon=False)
    for axes in (load, replicas):
        bare(axes)
    save_plot(figure, path)
