"""This engine beside OpenVINO GenAI, vLLM for CPUs and llama.cpp, on the same weights and requests.

    make bench-peers                        five rounds
    make bench-peers ARGUMENTS="--quick"    one round at an eighth of the lengths: does all work?

Each round starts each configuration's process anew, in an order that rotates. Round 0 is not
timed: it compares greedy tokens with transformers' and takes the peak PSS of the process tree.
Writes peers.md, peers.json and peers.svg after each round, so that an interrupted run has shown
what it measured.
"""

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fastgen_devcluster.command import CommandError
from fastgen_devcluster.progress import console, step
from fastgen_runtime.engine.cores import available_threads, cpu_flags
from peers.plot import plot
from peers.report import as_json, markdown, rows
from peers.session import Findings, Plan, prepare, run_session
from peers.settings import OURS, Configuration, configurations
from peers.verdicts import verdicts
from peers.workloads import Name

QUICK_SCALE: Final = 1 / 8


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round, for a first look")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORDS",
        help="configurations whose name has these words; may be repeated",
    )  # fmt: skip
    parser.add_argument("--workload", action="append", default=[], choices=[*Name])
    parser.add_argument("--threads", type=int, default=available_threads())
    parser.add_argument("--kv-gibibytes", type=int, default=1, help="cache of every engine")
    parser.add_argument(
        "--runner", type=json.loads, default={}, metavar="JSON",
        help="RunnerConfig's fields for all of this engine's configurations",
    )  # fmt: skip
    parser.add_argument(
        "--also", action="append", default=[], metavar="LABEL=JSON",
        help="one more of them with further fields, for W4; the aim of int8\n"
        "looks for the label int8",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="go on after the last whole round in the folder"
    )
    parser.add_argument("--list", action="store_true", help="name the configurations, run none")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)


def choose(options: argparse.Namespace, has_bfloat16: bool) -> list[Configuration]:
    """What the command line asks for."""
    found = configurations(has_bfloat16)
    main = found[0]
    for text in options.also:
        label, _, fields = text.partition("=")
        found.append(replace(main, label=label, workloads=(Name.SINGLE,),
                             arguments={**main.arguments, "runner": json.loads(fields)},
                             is_other_precision=True))  # fmt: skip
    chosen = []
    for each in found:
        if options.only and not any(words in each.name for words in options.only):
            continue
        if options.workload:
            each = replace(each, workloads=tuple(
                name for name in each.workloads if name in options.workload))  # fmt: skip
        if each.engine == OURS:
            runner = options.runner | each.arguments.get("runner", {})
            each = replace(each, arguments={**each.arguments, "runner": runner})
        if each.workloads:
            chosen.append(each)
    return chosen


def about(plan: Plan, rounds: int) -> dict[str, Any]:
    """What the figures are of."""
    vectors = [
        flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in cpu_flags()
    ]
    return {
        "machine": platform.machine(), "cpus": os.cpu_count(), "threads": plan.threads,
        "vectors": vectors, "load_average": os.getloadavg()[0], "rounds": rounds,
        "kv_gibibytes": plan.kv_bytes >> 30, "scale": plan.scale,
    }  # fmt: skip


def write(findings: Sequence[Findings], plan: Plan, facts: dict[str, Any]) -> None:
    """All that is known so far."""
    found = rows(findings)
    judged = verdicts(found)
    words = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.items())
    text = markdown(findings, judged, words)
    (plan.results / "peers.md").write_text(text)
    data = as_json(findings, judged, facts)
    (plan.results / "peers.json").write_text(json.dumps(data, indent=1) + "\n")
    if found:
        plot(found, plan.results / "peers.svg")


def resume(findings: Sequence[Findings], file: Path) -> int:
    """Restores what the file has of these configurations; the number of the next round."""
    data = json.loads(file.read_text())
    kept = {each["name"]: each for each in data["findings"]}
    for each in findings:
        if each.configuration.name in kept:
            each.restore(kept[each.configuration.name])
    return int(data["about"]["rounds_done"]) + 1


def main() -> None:
    """Entry point."""
    options = read_options()
    chosen = choose(options, "avx512_bf16" in cpu_flags())
    if options.list:
        print(*(f"{each.name}: {' '.join(each.workloads)}" for each in chosen), sep="\n")
        return
    rounds = 1 if options.quick else options.rounds
    scale = QUICK_SCALE if options.quick else 1.0
    plan = Plan(options.threads, options.kv_gibibytes << 30, scale, options.out.resolve())
    plan.results.mkdir(parents=True, exist_ok=True)
    findings = [Findings(each) for each in chosen]
    first = resume(findings, plan.results / "peers.json") if options.resume else 0
    prepared = {}
    for each in findings:
        try:
            prepared[each.configuration.name] = prepare(each.configuration, plan)
        except CommandError as failure:
            each.error = f"cannot be installed: {failure}"
    facts = about(plan, rounds)
    for number in range(first, rounds + 1):
        turn = number % max(1, len(findings))
        for each in findings[turn:] + findings[:turn]:
            if each.error is None:
                with step(f"round {number} of {rounds}: {each.configuration.name}"):
                    run_session(each, prepared[each.configuration.name], plan, number)
                if each.error:
                    console.print(f"  {each.configuration.name}: {each.error}", markup=False)
        write(findings, plan, {**facts, "rounds_done": number})
    print((plan.results / "peers.md").read_text())


if __name__ == "__main__":
    main()
