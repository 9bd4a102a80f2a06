"""What `replay.py` prints: what was cut off the trace, the runs side by side, and the bars."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from fastgen_cli.simulate.agreement import MOST_STEPS, Run, Verdict
from fastgen_cli.simulate.result import Moment
from fastgen_cli.simulate.window import Cut, Left
from fastgen_runtime.engine.latency import StepCost


def factors(how: Cut, left: Left) -> str:
    """By how much the window was made smaller."""
    end = how.begin_seconds + how.seconds
    return (
        f"Window: {how.begin_seconds:.0f} to {end:.0f} s of the trace. "
        f"Thinned to {how.keep:.4f} of its requests ({left.requests} of {left.requests_before}), "
        f"prompts and answers divided by {how.shorten:g} and clipped to {how.longest_prompt} and "
        f"{how.longest_output} tokens ({left.clipped} were): {left.prompt_tokens} of "
        f"{left.prompt_tokens_before} prompt tokens, {left.output_tokens} of "
        f"{left.output_tokens_before} of answers."
    )


def cost_text(cost: StepCost) -> str:
    """What steps cost."""
    return (
        f"A step takes {cost.base * 1e3:.0f} ms, {cost.per_token * 1e3:.2f} ms more for each "
        f"token, {cost.per_request * 1e3:.1f} ms for each request."
    )


def crowding_text(crowding: Mapping[int, float]) -> str:
    """How much longer steps took than that with so many replicas at work."""
    told = [f"{ratio - 1:+.0%} with {count}" for count, ratio in crowding.items()]
    return f"By replicas that compute at the same time: {', '.join(told)}."


def condition_text(share: float, runs: Sequence[Run]) -> str:
    """What the simulator says of a window when steps are shorter and longer by a share."""
    said = " and ".join(f"{_seconds(run.ttft_p90)} ({changes(run.timeline)})" for run in runs)
    return f"With steps {share:.0%} shorter and longer the simulated TTFT P90 is {said}."


def table(runs: Sequence[Run]) -> str:
    """The runs, a column each."""
    rows = {
        "requests": [f"{run.requests}" for run in runs],
        "good": [_percent(run.good_ratio) for run in runs],
        "TTFT P50": [_seconds(run.ttft_p50) for run in runs],
        "TTFT P90": [_seconds(run.ttft_p90) for run in runs],
        "TPOT P50": [_seconds(run.tpot_p50) for run in runs],
        "TPOT P90": [_seconds(run.tpot_p90) for run in runs],
        "cold start": [_seconds(run.cold_start_seconds) for run in runs],
        "replicas asked for": [changes(run.timeline) for run in runs],
    }
    head = ["", *(run.name for run in runs)]
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def changes(timeline: Sequence[Moment]) -> str:
    """The replicas asked for, and when they changed."""
    found = [f"{timeline[0].wanted}"]
    for before, after in pairwise(timeline):
        if after.wanted != before.wanted:
            found.append(f"{after.wanted} at {after.at:.0f} s")
    return ", ".join(found)


def bars(verdict: Verdict) -> str:
    """Each bar, hit or missed."""
    latency = (
        f"{verdict.error:.1%} off the replays' mean, {verdict.tolerance:.1%} is allowed "
        f"(the replays are {verdict.spread:.1%} apart)"
    )
    most = max(each.most for each in verdict.distances)
    alike = " and ".join(f"{each.alike:.0%}" for each in verdict.distances)
    steps = (
        f"at most {most} apart, {MOST_STEPS} is allowed; the same for {alike} of the time (the "
        f"replays: {verdict.between.most} apart, the same for {verdict.between.alike:.0%})"
    )
    rows = (
        ("TTFT P90", verdict.latency_holds, latency),
        ("replica timeline", verdict.timeline_holds, steps),
    )
    lines = ["| bar | | |", "|---|---|---|"]
    lines += [f"| {name} | {'hit' if hit else 'MISS'} | {text} |" for name, hit, text in rows]
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
