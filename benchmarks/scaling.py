"""Autoscalers side by side in the simulator: FastGen's, its rivals, and an oracle.

Every rival runs with its published defaults and with the best setting of its grid, chosen on the
first half of a real trace (another seed of a synthetic one); all are scored on the rest. Prints a
table per scenario and the bars that FastGen is held to; writes JSON and pictures.

    .venv/bin/python benchmarks/scaling.py --traces /path/to/azure [--quick] [--jobs 2]
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import msgspec
import scaling_plots

from fastgen_balancer.scaling_policy import target_ratio
from fastgen_cli.simulate import oracle
from fastgen_cli.simulate.comparison import (
    ORACLE,
    OWN,
    Bar,
    Score,
    bars,
    score_of,
    tuned,
)
from fastgen_cli.simulate.rivals.grid import RIVALS, World
from fastgen_cli.simulate.scenarios import SLO_OF_ALL, Scenario, scenarios
from fastgen_cli.simulate.simulation import Setup, own_scaler, simulate

P = ParamSpec("P")
T = TypeVar("T")
QUICK_SHARE: Final = 0.45
QUICK_TRIES: Final = 2
FAST_FORWARD_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything is run."""

    share: float
    tries: int
    is_tuned: bool


def run_own(scenario: Scenario) -> Score:
    setup = scenario.scoring
    result = simulate(setup, own_scaler(setup))
    return score_of(scenario.name, OWN, "frozen", True, result, setup.outages)


def run_oracle(scenario: Scenario, tries: int) -> Score:
    found = oracle.search(scenario.scoring, tries=tries)
    setting = "perfect foresight" if found.meets else "perfect foresight, misses the SLO"
    outages = scenario.scoring.outages
    return score_of(scenario.name, ORACLE, setting, True, found.result, outages)


def run_rival(scenario: Scenario, setup: Setup, rival: int, setting: int, least: float) -> Score:
    """setting: 0 for the published one, else of the grid. least: as `least_good_ratio`."""
    one = RIVALS[rival]
    chosen = one.published if setting == 0 else one.grid[setting - 1]
    world = World(setup.slo, setup.profile, setup.max_replicas)
    result = simulate(setup, chosen.make(world), least_good_ratio=least)
    return score_of(scenario.name, one.name, chosen.text, setting == 0, result, setup.outages)


def score_rival(scenario: Scenario, rival: int, setting: int) -> Score:
    return run_rival(scenario, scenario.scoring, rival, setting, 0.0)


def tune_rival(scenario: Scenario, rival: int) -> list[Score]:
    """A score for each setting. One that can no longer be the best is not run to its end: the best
    is the same as if all were."""
    scores: list[Score] = []
    for setting in range(1 + len(RIVALS[rival].grid)):
        best = max((score.good_ratio for score in scores), default=0.0)
        least = min(_target(), best)
        scores.append(run_rival(scenario, scenario.tuning, rival, setting, least))
    return scores


def fast_forward_error(scenario: Scenario) -> str:
    """The largest differences between steps taken together and one by one, and what that saves."""
    setup = replace(scenario.scoring, seconds=FAST_FORWARD_SECONDS)
    setup = replace(setup, trace=tuple(a for a in setup.trace if a.at < FAST_FORWARD_SECONDS))
    results, seconds = [], []
    for together in (True, False):
        begun = time.process_time()
        one = replace(setup, fast_forward=together)
        results.append(simulate(one, own_scaler(one)))
        seconds.append(time.process_time() - begun)
    fast, slow = (sorted(r.entries, key=lambda e: (e.arrived, e.output_tokens)) for r in results)
    ttft = max(abs((a.ttft_seconds or 0) - (b.ttft_seconds or 0))
               for a, b in zip(fast, slow, strict=True))  # fmt: skip
    tpot = max(abs((a.tpot_seconds or 0) - (b.tpot_seconds or 0))
               for a, b in zip(fast, slow, strict=True))  # fmt: skip
    return (
        f"{scenario.name}, {FAST_FORWARD_SECONDS:.0f} s: {len(fast)} requests; steps taken "
        f"together against one by one: TTFT differs by {ttft:.1e} s at most, TPOT by {tpot:.1e} s; "
        f"{seconds[0]:.1f} s against {seconds[1]:.1f} s of CPU"
    )


class Board:
    """Runs all of them in processes; each rival's best setting once its grid is done."""

    def __init__(self, found: tuple[Scenario, ...], scale: Scale, jobs: int) -> None:
        self._scenarios = found
        self._scale = scale
        self._jobs = jobs
        self._begun = time.monotonic()
        self._asked = self._done = 0

    def run(self) -> tuple[list[Score], list[Score]]:
        """Scores of the tuned parts, and of the scored ones."""
        with ProcessPoolExecutor(self._jobs) as pool:
            scored = [
                # The longest ones first.
                *(self._submit(pool, run_oracle, s, self._scale.tries) for s in self._scenarios),
                *(self._submit(pool, run_own, s) for s in self._scenarios),
            ]
            tuning: dict[tuple[int, int], Future[list[Score]]] = {}
            for place, scenario in enumerate(self._scenarios):
                for rival in range(len(RIVALS)):
                    if self._scale.is_tuned:
                        tuning[place, rival] = self._submit(pool, tune_rival, scenario, rival)
                    scored.append(self._submit(pool, score_rival, scenario, rival, 0))
            tuned_scores = []
            for (place, rival), future in tuning.items():
                found = future.result()
                tuned_scores += found
                best = found.index(tuned(found, _target()))
                if best:
                    scenario = self._scenarios[place]
                    scored.append(self._submit(pool, score_rival, scenario, rival, best))
            return tuned_scores, [future.result() for future in scored]

    def _submit(
        self, pool: ProcessPoolExecutor, run: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        self._asked += 1
        future = pool.submit(run, *args, **kwargs)
        future.add_done_callback(lambda _: self._tell())
        return future

    def _tell(self) -> None:
        self._done += 1
        minutes = (time.monotonic() - self._begun) / 60
        begin, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")
        text = f"{begin}{self._done} of {self._asked} runs, {minutes:.1f} min"
        print(text, end=end, file=sys.stderr, flush=True)


def _target() -> float:
    return target_ratio(SLO_OF_ALL) or 0.0


def table(scenario: str, scores: list[Score], target: float) -> str:
    """All that was scored on one scenario, those that meet the SLO first and cheapest first."""
    group = [score for score in scores if score.scenario == scenario]
    floor = next(score.replica_hours for score in group if score.name == ORACLE)
    rank: Callable[[Score], tuple[bool, float, float]] = lambda s: (  # noqa: E731
        s.good_ratio < target,
        s.replica_hours if s.good_ratio >= target else -s.good_ratio,
        s.replica_hours,
    )
    lines = [
        f"\n### {scenario}: {group[0].requests} requests\n",
        "| autoscaler | setting | good | replica-hours | above the oracle | reversals/h "
        "| TTFT P90 | P99 | refused |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for s in sorted(group, key=rank):
        setting = (
            f"{s.setting} (published)"
            if s.is_published and s.name not in (OWN, ORACLE)
            else s.setting
        )
        lines.append(
            f"| {s.name} | {setting} | {s.good_ratio:.2%} | {s.replica_hours:.2f} "
            f"| {s.replica_hours - floor:+.2f} | {s.reversals_per_hour:.1f} "
            f"| {_seconds(s.ttft_p90)} | {_seconds(s.ttft_p99)} | {s.refused} |"
        )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def bar_table(found: tuple[Bar, ...]) -> str:
    lines = ["\n### Bars\n", "| bar | trace | | |", "|---|---|---|---|"]
    lines += [
        f"| {bar.name} | {bar.scenario} | {'hit' if bar.hit else 'MISS'} | {bar.text} |"
        for bar in found
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", type=Path, help="folder of azure_llm_2023_{code,conv}.csv")
    parser.add_argument("--only", help="scenarios whose name contains this")
    parser.add_argument("--quick", action="store_true", help="the first half of each, no tuning")
    parser.add_argument("--share", type=float, help="of each scenario, from its begin")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    share = given.share or (QUICK_SHARE if given.quick else 1.0)
    scale = Scale(share, QUICK_TRIES if given.quick else oracle.TRIES, not given.quick)
    found = scenarios(given.traces, scale.share)
    found = tuple(s for s in found if given.only is None or given.only in s.name)
    if not found:
        sys.exit(f"no scenario is called {given.only}")
    if given.traces is None:
        print("without --traces the two Azure traces are left out", file=sys.stderr)
    print(fast_forward_error(found[0]))
    tuning, scored = Board(found, scale, given.jobs).run()
    print(file=sys.stderr)
    for scenario in found:
        print(table(scenario.name, scored, _target()))
    judged = bars(scored, _target(), [s.name for s in found if s.is_steady])
    print(bar_table(judged))
    given.out.mkdir(parents=True, exist_ok=True)
    rows = {
        "share": scale.share,
        "slo": msgspec.to_builtins(SLO_OF_ALL),
        "scores": [asdict(score) for score in scored],
        "tuning": [{k: v for k, v in asdict(one).items() if k != "timeline"} for one in tuning],
        "bars": [asdict(bar) for bar in judged],
    }
    (given.out / "scaling.json").write_bytes(msgspec.json.encode(rows))
    scaling_plots.plot_all(scored, _target(), given.out)


if __name__ == "__main__":
    main()
