"""The simulator against reality: a window of a trace, replayed twice on a real cluster.

A FastGenDeployment with one to three CPU-limited replicas serves the window, thinned and shortened
by factors that are printed; its own autoscaler scales it. Then the simulator gets the same
requests, the cost of steps and the cold start that were measured meanwhile.
Prints both side by side and whether they agree; writes JSON and a picture.

    .venv/bin/python -m fastgen_devcluster up
    .venv/bin/python benchmarks/replay.py
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

import msgspec
import replay_plots
from replay_cluster import (
    BLOCK_SIZE,
    BUDGET_TOKENS,
    MAX_CONCURRENT,
    MAX_LENGTH,
    Watch,
    cold_start_told,
    deployment,
    installation,
    manifest_of,
)
from replay_cost import SETTLE_SECONDS, ask, calibrate
from replay_report import bars, condition_text, cost_text, crowding_text, factors, table
from replay_requests import Plan, arrivals_of, make_plan, seen_of, send

from fastgen_api.names import Outcome
from fastgen_api.spec import BudgetMode, parse
from fastgen_cli.simulate.agreement import Run, Seen, Verdict, judge, run_of
from fastgen_cli.simulate.measured import crowding, measured_cost
from fastgen_cli.simulate.profile import Profile
from fastgen_cli.simulate.result import Moment
from fastgen_cli.simulate.scaler import OwnScaler
from fastgen_cli.simulate.simulation import Setup, pace_of, simulate
from fastgen_cli.simulate.slo import parse_slo
from fastgen_cli.simulate.trace import read_trace
from fastgen_cli.simulate.window import Cut, busiest_load, cut
from fastgen_devcluster.cluster import Cluster
from fastgen_runtime.engine.latency import StepCost

SCRAPE_SECONDS: Final = 1.0
"""As devcluster/manifests/prometheus.yaml has it."""
SEEDS: Final = 5
STEPS_OFF: Final = 0.1
"""By such a share steps are made shorter and longer, to tell how much hangs on their time."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One real replay: what its clients and the cluster saw. latest_seconds: of the generator."""

    seen: tuple[Seen, ...]
    timeline: tuple[Moment, ...]
    decisions: tuple[dict[str, Any], ...]
    latest_seconds: float
    began: float
    ended: float
    """Unix times of the window."""
    cold_start_told: float | None


def replay(cluster: Cluster, manifest: dict[str, Any], plan: Plan, seed: int) -> Replayed:
    """One replay on the cluster, with a deployment of its own."""
    with deployment(cluster, manifest) as url:
        watch = Watch(cluster)
        watch.start()
        try:
            began = time.time()
            sent = send(url, arrivals_of(plan.arrivals, seed))
            time.sleep(max(SETTLE_SECONDS, plan.seconds - sent.now()))
            ended = time.time()
        finally:
            watch.stop()
        told = cold_start_told(cluster)
    return Replayed(
        seen_of(sent.samples, plan.begin, plan.spec.slo),
        watch.timeline(sent.started),
        tuple(asdict(one) for one in watch.decisions),
        sent.latest_seconds,
        began + plan.begin,
        ended,
        told,
    )


def profile_of(cost: StepCost, cold_start_seconds: float) -> Profile:
    """A replica of the manifest. Its cache holds all requests at full length, as the engine plans
    it where memory allows."""
    return Profile(
        name="replayed",
        cost=cost,
        num_blocks=MAX_CONCURRENT * MAX_LENGTH // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_length=MAX_LENGTH,
        max_concurrent_requests=MAX_CONCURRENT,
        cold_start_seconds=cold_start_seconds,
        budget_tokens=BUDGET_TOKENS,
        budget_mode=BudgetMode.FIXED,
    )


def simulated(
    plan: Plan, profile: Profile, planned_cold_start: float | None
) -> tuple[Run, tuple[Seen, ...]]:
    """Of several seeds the run whose 90th percentile is in the middle.

    planned_cold_start: what the autoscaler is told.
    """
    found = []
    for seed in range(SEEDS):
        setup = Setup(
            plan.arrivals,
            plan.seconds,
            profile,
            plan.spec.slo,
            max_replicas=plan.spec.scaling.max_replicas,
            seed=seed,
            scrape_seconds=SCRAPE_SECONDS,
            limits_named=True,
        )
        result = simulate(setup, OwnScaler(plan.spec, planned_cold_start))
        seen = tuple(
            Seen(one.arrived, one.ttft_seconds, one.tpot_seconds, one.outcome is Outcome.GOOD)
            for one in result.entries
            if one.arrived >= plan.begin
        )
        found.append((run_of("simulated", seen, result.timeline), seen))
    found.sort(key=lambda one: one[0].ttft_p90 or 0.0)
    return found[len(found) // 2]


def save(
    folder: Path,
    plan: Plan,
    profile: Profile,
    replays: Sequence[Replayed],
    runs: dict[str, tuple[Run, Sequence[Seen]]],
    verdict: Verdict,
) -> None:
    """`replay.json`, `replay.svg`, and the profile in the form that `--model-latency` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "cut": plan.cut,
        "left": plan.left,
        "window_begin_seconds": plan.begin,
        "seconds": plan.seconds,
        "slo": plan.spec.slo,
        "profile": profile,
        "runs": {name: {"run": run, "requests": seen} for name, (run, seen) in runs.items()},
        "decisions": [one.decisions for one in replays],
        "latest_seconds": [one.latest_seconds for one in replays],
        "verdict": verdict,
        "holds": verdict.holds,
    }
    (folder / "replay.json").write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    latency = {
        "base_seconds": profile.cost.base,
        "seconds_per_token": profile.cost.per_token,
        "seconds_per_attended": profile.cost.per_attended,
        "seconds_per_request": profile.cost.per_request,
        "kv_blocks": profile.num_blocks,
        "kv_block_size": profile.block_size,
        "max_model_length": profile.max_length,
        "max_concurrent_requests": profile.max_concurrent_requests,
        "cold_start_seconds": profile.cold_start_seconds,
        "token_budget": profile.budget_tokens,
    }
    (folder / "replay-latency.json").write_bytes(msgspec.json.encode(latency))
    replay_plots.plot(runs, plan.seconds, folder / "replay.svg")


def compare(cluster: Cluster, given: argparse.Namespace) -> None:
    """Replays, simulates, prints and writes."""
    if cluster.prometheus_url is None:
        sys.exit("Set FASTGEN_PROMETHEUS_URL to the Prometheus that scrapes your cluster.")
    slo = parse_slo(given.slo)
    manifest = manifest_of(slo, given.cpu, given.max_replicas)
    spec = parse(manifest["spec"])
    trace = read_trace(given.trace)
    how = Cut(
        given.begin, given.seconds, 1.0, given.shorten, given.longest_prompt, given.longest_output
    )
    whole, _ = cut(trace, how)
    with installation(cluster):
        before = calibrate(cluster, manifest, whole)
        print(cost_text(before), flush=True)
        share = min(1.0, given.load / busiest_load(whole, before, pace_of(slo)))
        plan = make_plan(trace, replace(how, keep=share), spec)
        print(factors(plan.cut, plan.left), flush=True)
        replays = []
        for number in (1, 2):
            print(f"replay {number}: {plan.seconds:.0f} s", file=sys.stderr, flush=True)
            replays.append(replay(cluster, manifest, plan, seed=number))
        counted = ask(cluster, replays[0].began, replays[1].ended)
    cost = measured_cost(counted)
    crowded = crowding(counted)
    runs: dict[str, tuple[Run, Sequence[Seen]]] = {
        f"replay {number}": (run_of(f"replay {number}", one.seen, one.timeline), one.seen)
        for number, one in enumerate(replays, start=1)
    }
    told = next((one.cold_start_told for one in replays if one.cold_start_told), None)
    starts = [run.cold_start_seconds for run, _ in runs.values() if run.cold_start_seconds]
    profile = profile_of(cost, mean(starts) if starts else told or 0.0)
    print(f"During the replays: {cost_text(cost)} {crowding_text(crowded)}", flush=True)
    runs["simulated"] = simulated(plan, profile, told)
    first, second, predicted = (run for run, _ in runs.values())
    verdict = judge(first, second, predicted, plan.seconds)
    print(f"\n{table((first, second, predicted))}\n\n{bars(verdict)}")
    off = [
        simulated(plan, profile.slowed(factor), told)[0]
        for factor in (1 - STEPS_OFF, 1 + STEPS_OFF)
    ]
    print(f"\n{condition_text(STEPS_OFF, off)}")
    late = max(one.latest_seconds for one in replays)
    print(f"No request left more than {late:.2f} s after it was due.")
    save(given.out, plan, profile, replays, runs, verdict)


def main() -> None:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trace", type=Path, default=here / "azure_conv_2023.csv")
    parser.add_argument("--begin", type=float, default=0.0, help="of the window, seconds")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the window")
    parser.add_argument(
        "--load", type=float, default=2.6, help="of the busiest minute, in replicas' full load"
    )
    parser.add_argument("--shorten", type=float, default=8.0, help="what lengths are divided by")
    parser.add_argument("--longest-prompt", type=int, default=256)
    parser.add_argument("--longest-output", type=int, default=64)
    parser.add_argument("--cpu", default="200m", help="limit of a replica")
    parser.add_argument("--max-replicas", type=int, default=3)
    parser.add_argument("--slo", default="ttft=4s+30ms,tpot=1s,gap=4s,percent=90")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    compare(Cluster.current(), parser.parse_args())


if __name__ == "__main__":
    main()
