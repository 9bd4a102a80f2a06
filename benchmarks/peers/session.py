"""One life of an engine's process: load, check its tokens, and run its workloads."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fastgen_devcluster.settings import REPOSITORY
from peers.figures import Measures, measure, num_equal
from peers.install import ensure_environment, ensure_llamacpp
from peers.memory import peak_of_tree
from peers.process import EngineError, EngineProcess
from peers.protocol import Answer, Request
from peers.settings import LLAMACPP, LLAMACPP_BATCHED, OPENVINO, VLLM, Configuration
from peers.weights import REFERENCE_TOKENS, ensure_folder, ensure_gguf, ensure_openvino, reference
from peers.workloads import Name, Workload, warm_up, workload

_PROGRAMS: Final = {LLAMACPP: "llama-server", LLAMACPP_BATCHED: "llama-batched-bench"}
_ROOMS: Final = ("api", "kernels", "runtime")
MOST_FOREIGN_SHARE: Final = 0.05
"""Of the CPU time; a run with more is marked."""


@dataclass(frozen=True, slots=True)
class Plan:
    """kv_bytes: of every engine's cache. scale: of the workloads' lengths. results: a folder."""

    threads: int
    kv_bytes: int
    scale: float
    results: Path


@dataclass(slots=True)
class Findings:
    """What a configuration has shown so far.

    equal: prompts that it answers as transformers does, alone and together; None where it tells no
    tokens. error: why it cannot run here. disturbed: rounds in which others took CPU time.
    """

    configuration: Configuration
    measures: dict[Name, list[Measures]] = field(default_factory=dict)
    peaks: dict[Name, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    said: list[list[int] | None] = field(default_factory=list)
    equal: tuple[int, int] | None = None
    error: str | None = None
    disturbed: dict[Name, int] = field(default_factory=dict)

    def restore(self, kept: dict[str, Any]) -> None:
        """Takes what an earlier, interrupted run of the same comparison had found."""
        self.measures = {Name(name): rounds for name, rounds in kept["measures"].items()}
        self.peaks = {Name(name): peak for name, peak in kept["peaks"].items()}
        self.disturbed = {Name(name): count for name, count in kept["disturbed"].items()}
        self.facts, self.said, self.error = kept["facts"], kept["said"], kept["error"]
        self.equal = tuple(kept["equal"]) if kept["equal"] else None


@dataclass(frozen=True, slots=True)
class Prepared:
    """python, settings: of the adapter. environment: what it needs besides."""

    python: Path
    settings: dict[str, Any]
    environment: dict[str, str]


def prepare(configuration: Configuration, plan: Plan) -> Prepared:
    """Installs and converts what is missing; raises CommandError."""
    engine, own = configuration.engine, Path(sys.executable)
    settings = {"dtype": configuration.dtype, "threads": plan.threads, "kv_bytes": plan.kv_bytes}
    settings |= configuration.arguments
    environment = {"OMP_NUM_THREADS": str(plan.threads)}
    if engine in _PROGRAMS:
        program = ensure_llamacpp() / _PROGRAMS[engine]
        settings |= {"program": str(program), "model": str(ensure_gguf(configuration.form))}
        return Prepared(own, settings, environment)
    if engine == OPENVINO:
        settings["model"] = str(ensure_openvino())
        return Prepared(ensure_environment("openvino"), settings, environment)
    settings["model"] = str(ensure_folder())
    if engine == VLLM:
        python = ensure_environment("vllm")
        # It binds a thread to each of these itself, and warns of OMP_NUM_THREADS.
        cpus = sorted(os.sched_getaffinity(0))[: plan.threads]
        environment = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus))}
        # Its compiler runs ninja, which is in its environment.
        environment["PATH"] = f"{python.parent}:{os.environ['PATH']}"
        return Prepared(python, settings, environment)
    # This tree's rooms, also where the environment's own are another checkout's.
    paths = [REPOSITORY / room for room in ("benchmarks", *_ROOMS)]
    environment["PYTHONPATH"] = ":".join(map(str, paths))
    return Prepared(own, settings, environment)


def run_workload(process: EngineProcess, work: Workload) -> tuple[list[list[Answer]], float]:
    """Answers to each part, and the largest share of CPU time that others took."""
    runs = [process.run(part) for part in work.parts]
    return [run.answers for run in runs], max(run.foreign_share for run in runs)


def check_tokens(process: EngineProcess, findings: Findings) -> None:
    """Compares greedy tokens with transformers', prompts alone and all together."""
    prompts, expected = reference()
    requests = [Request(prompt, REFERENCE_TOKENS) for prompt in prompts]
    alone = [process.run([request]).answers[0].ids for request in requests]
    together = [answer.ids for answer in process.run(requests).answers]
    findings.said = alone + together
    if any(ids is not None for ids in findings.said):
        findings.equal = num_equal(findings.said, expected * 2), 2 * len(expected)


def run_session(findings: Findings, prepared: Prepared, plan: Plan, number: int) -> None:
    """Round 0 takes tokens and memory, later ones times. What fails is noted, not raised."""
    configuration = findings.configuration
    log = plan.results / "logs" / f"{configuration.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with EngineProcess(
            prepared.python, configuration.engine, prepared.settings, log, prepared.environment
        ) as process:
            findings.facts = process.facts()
            if number == 0 and configuration.engine != LLAMACPP_BATCHED:
                check_tokens(process, findings)
            for name in configuration.workloads:
                work = workload(name, number, plan.scale)
                if number == 0:
                    with peak_of_tree(process.pid) as peak:
                        run_workload(process, work)
                    findings.peaks[name] = peak.bytes
                    continue
                if configuration.engine != LLAMACPP_BATCHED:  # it warms up by itself
                    run_workload(process, warm_up(work))
                parts, foreign = run_workload(process, work)
                findings.measures.setdefault(name, []).append(measure(work, parts))
                if foreign > MOST_FOREIGN_SHARE:
                    findings.disturbed[name] = findings.disturbed.get(name, 0) + 1
    except (EngineError, ValueError) as failure:
        findings.error = str(failure)
