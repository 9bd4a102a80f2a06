"""What `load.py` measures of a balancer pod: each section starts its processes and ends them.

Every figure stands beside the same clients on the same fake replicas without a balancer, in turns
where times are compared.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import picks
from load_figures import (
    LESS,
    MORE,
    Figure,
    failed,
    over_rounds,
    tokens_per_second,
    worst,
)
from load_processes import (
    Balancer,
    Replicas,
    Told,
    balancer,
    client,
    flags_of,
    replicas,
    running_client,
    told_by,
)

from fastgen_api.names import Metric
from fastgen_cli.simulate.profile import LLAMA8B_L4

PROTOCOLS: Final = ("grpc", "http")
PICKS_ENDPOINTS: Final = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to look. quick: to see that all works, not to be quoted."""

    program: Path
    folder: Path
    quick: bool
    seed: int

    def seconds(self, whole: float, quick: float) -> float:
        return quick if self.quick else whole

    @contextmanager
    def pod(self, number: int, *flags: str) -> Iterator[tuple[Replicas, Balancer]]:
        """Fake replicas and a balancer before them."""
        with replicas(self.program, number, flags) as fakes:
            place = self.folder / f"pod-{time.monotonic_ns()}"
            with balancer(place, fakes.addresses) as pod:
                yield fakes, pod

    def both(self, fakes: Replicas, pod: Balancer | None, **flags: float) -> list[Told]:
        """Half of it over each protocol at a time; without a pod straight to the fakes.

        flags: of the client; `streams` in a closed loop, or `rate` per second in an open one.
        """
        halves = {name: flags[name] // 2 for name in ("streams", "rate") if name in flags}
        with ExitStack() as stack:
            clients = [
                stack.enter_context(
                    running_client(
                        self.program,
                        [pod.target] if pod else fakes.targets(protocol),
                        protocol,
                        **flags | halves | {"seed": self.seed + number},
                    )
                )
                for number, protocol in enumerate(PROTOCOLS)
            ]
            return [told_by(each) for each in clients]


@dataclass(frozen=True, slots=True)
class Found:
    """A section's figures, and what its clients told, for the file."""

    figures: tuple[Figure, ...]
    details: dict[str, Any]


def streams(plan: Plan) -> Found:
    """2,000 streams of 5 tokens per second."""
    many = 2000
    flags: dict[str, float] = {
        "streams": many, "tokens": 50, "ramp": plan.seconds(10, 3),
        "warm_up": plan.seconds(11, 4), "seconds": plan.seconds(20, 3),
    }  # fmt: skip
    with plan.pod(10, "-base-seconds=0.2", "-max-concurrent=256") as (fakes, pod):
        pod.spent()
        began = time.monotonic()
        told = plan.both(fakes, pod, **flags)
        spent, took = pod.spent(), time.monotonic() - began
        left = settled(pod)
        direct = plan.both(fakes, None, **flags)
    section = "streams"
    return Found(
        (
            Figure(section, f"errors of {many} streams", failed(told), "requests",
                   failed(direct), (LESS, 0)),
            Figure(section, "tokens per second", tokens_per_second(told), "/s",
                   tokens_per_second(direct), (MORE, 0.97 * tokens_per_second(direct))),
            Figure(section, "gap between tokens, p99", worst(told, "gap_ms", "p99"), "ms",
                   worst(direct, "gap_ms", "p99")),
            Figure(section, "in flight at the end", left, "requests", None, (LESS, 0)),
            Figure(section, "Envoy", 100 * spent.envoy / took, "% of a core"),
            Figure(section, "picker", 100 * spent.picker / took, "% of a core"),
        ),
        {"balanced": told, "direct": direct, "spent": [spent.picker, spent.envoy, took]},
    )  # fmt: skip


def settled(pod: Balancer, seconds: float = 10.0) -> float:
    """Requests in the picker's books when nobody asks any more: once 0, or at the time's end."""
    deadline = time.monotonic() + seconds
    while (left := pod.metric(Metric.IN_FLIGHT_REQUESTS)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def added(plan: Plan) -> Found:
    """Time to first token with and without the balancer, 500 streams, in turns.

    At random moments, as requests of many users come. Where each stream asks again as soon as it
    has its answer, all ask when a step ends: who comes straight is there for the next one, and who
    comes a millisecond later waits for a whole one. That is shown, too, and has no bar.
    """
    length: dict[str, float] = {
        "tokens": 100, "warm_up": plan.seconds(7, 2), "seconds": plan.seconds(8, 3),
    }  # fmt: skip
    # 500 of them last 100 steps of about 52 ms.
    at_random = length | {"rate": 96}
    in_step = length | {"streams": 500, "ramp": plan.seconds(5, 2), "cut": 1}
    found: dict[str, list[list[Told]]] = {}
    with plan.pod(8, "-base-seconds=0.05", "-max-concurrent=128") as (fakes, pod):
        for _ in range(1 if plan.quick else 3):
            for name, flags in (("at random", at_random), ("in step", in_step)):
                found.setdefault(f"{name}, direct", []).append(plan.both(fakes, None, **flags))
                found.setdefault(f"{name}, balanced", []).append(plan.both(fakes, pod, **flags))

    def both(name: str, what: str, share: str) -> tuple[float, float]:
        balanced, direct = found[f"{name}, balanced"], found[f"{name}, direct"]
        return over_rounds(balanced, what, share), over_rounds(direct, what, share)

    section = "added"
    ttft, straight = both("at random", "ttft_ms", "p99")
    stepped, stepped_straight = both("in step", "ttft_ms", "p99")
    middle, way = both("at random", "ttft_ms", "p50"), both("at random", "way_ms", "p99")
    errors = {name: sum(map(failed, told)) for name, told in found.items()}
    balanced_errors = errors["at random, balanced"] + errors["in step, balanced"]
    direct_errors = errors["at random, direct"] + errors["in step, direct"]
    return Found(
        (
            Figure(section, "time to first token, p50", middle[0], "ms", middle[1]),
            Figure(section, "time to first token, p99", ttft, "ms", straight),
            Figure(section, "added at p99", ttft - straight, "ms", None, (LESS, 20)),
            Figure(section, "added at p99, all in step", stepped - stepped_straight, "ms"),
            Figure(section, "way there and back, p99", way[0], "ms", way[1]),
            Figure(section, "errors of 500 streams", balanced_errors, "requests",
                   direct_errors, (LESS, 0)),
        ),
        dict(found),
    )  # fmt: skip


def tokens(plan: Plan) -> Found:
    """The picker's CPU time per request by the tokens of the answers, at one rate of requests."""
    counts = (16, 256)
    per_request: dict[int, list[float]] = {count: [] for count in counts}
    per_token: dict[int, list[float]] = {count: [] for count in counts}
    seconds = plan.seconds(8, 4)
    length = seconds + 0.015 * max(counts) + 0.5
    with plan.pod(8, "-base-seconds=0.015", "-max-concurrent=256") as (_, pod):
        idle = idle_per_second(pod, plan)
        for turn in range(1 if plan.quick else 3):
            for count in counts if turn % 2 == 0 else counts[::-1]:
                pod.spent()
                began = time.monotonic()
                told = client(plan.program, [pod.target], "grpc", rate=80, tokens=count,
                              warm_up=0, seconds=seconds, seed=plan.seed)  # fmt: skip
                # As long for both, so that what idling takes weighs the same.
                time.sleep(max(0.0, began + length - time.monotonic()))
                spent, took = pod.spent(), time.monotonic() - began
                number = told["all"]
                per_request[count].append((spent.picker - idle * took) / number)
                per_token[count].append(spent.envoy / number / count)
    few, more = (median(per_request[count]) for count in counts)
    section = "tokens"
    names = [f"picker per request, {count} tokens" for count in counts]
    return Found(
        (
            Figure(section, names[0], 1e3 * few, "ms"),
            Figure(section, names[1], 1e3 * more, "ms"),
            Figure(section, "the second by the first", more / few, "", None, (LESS, 1.15)),
            Figure(section, "Envoy per token of 256", 1e6 * median(per_token[256]), "µs"),
        ),
        {"picker_seconds_per_request": per_request, "envoy_seconds_per_token": per_token},
    )


def idle_per_second(pod: Balancer, plan: Plan) -> float:
    """CPU seconds per second of a picker that nobody asks: it asks its replicas."""
    seconds = plan.seconds(3, 1.5)
    time.sleep(1)
    pod.spent()
    time.sleep(seconds)
    return pod.spent().picker / seconds


def whole_picks(plan: Plan) -> Found:
    """Picks per second of CPU time at 100 endpoints: the decision, and all of the picker's work."""
    told: dict[str, Told] = {}
    rates: dict[str, float] = {}
    with plan.pod(PICKS_ENDPOINTS, "-base-seconds=0.02", "-max-concurrent=64") as (_, pod):
        idle = idle_per_second(pod, plan)
        for protocol in PROTOCOLS:
            pod.spent()
            began = time.monotonic()
            told[protocol] = client(
                plan.program, [pod.target], protocol, streams=40, tokens=1, warm_up=0.5, ramp=0.5,
                prompt_bytes=1024, seconds=plan.seconds(8, 3), seed=plan.seed,
            )  # fmt: skip
            busy = pod.spent().picker - idle * (time.monotonic() - began)
            rates[protocol] = told[protocol]["all"] / busy
    decided = picks.decisions(PICKS_ENDPOINTS, 1000 if plan.quick else 5000, plan.seed)
    section, bar = "picks", (MORE, float(picks.BAR))
    return Found(
        (
            *(Figure(section, f"decision alone, {name}", rate, "/s", None, bar)
              for name, rate in decided.items()),
            *(Figure(section, f"all of a request, {protocol}", rate, "/s", None, bar)
              for protocol, rate in rates.items()),
            Figure(section, f"polling of {PICKS_ENDPOINTS} endpoints", 100 * idle, "% of a core"),
            Figure(section, "errors", failed(list(told.values())), "requests", None, (LESS, 0)),
        ),
        told,
    )  # fmt: skip


def growth(plan: Plan) -> Found:
    """Throughput by the number of replicas, 32 streams each, against so many times one's."""
    numbers = (1, 4) if plan.quick else (1, 2, 4, 8, 16)
    flags = flags_of(LLAMA8B_L4, max_concurrent=64, budget=512)
    rates: dict[int, float] = {}
    straight: dict[int, float] = {}
    lost = 0
    for number in numbers:
        load: dict[str, float] = {
            "streams": 32 * number, "tokens": 64, "ramp": plan.seconds(4, 2), "cut": 1,
            "warm_up": plan.seconds(5, 2.5), "seconds": plan.seconds(8, 2.5),
        }  # fmt: skip
        with plan.pod(number, *flags) as (fakes, pod):
            told = plan.both(fakes, pod, **load)
            rates[number], lost = tokens_per_second(told), lost + failed(told)
            straight[number] = tokens_per_second(plan.both(fakes, None, **load))
    section = "replicas"
    return Found(
        (
            *(Figure(section, f"{number} replicas, by so many times one", share, "",
                     straight[number] / number / straight[1], (MORE, 0.97))
              for number in numbers
              for share in (rates[number] / number / rates[1],)),
            *(Figure(section, f"{number} replicas, tokens per second", rates[number], "/s",
                     straight[number])
              for number in (numbers[0], numbers[-1])),
            Figure(section, "errors", lost, "requests", None, (LESS, 0)),
        ),
        {"balanced": rates, "direct": straight},
    )  # fmt: skip


Section = Callable[[Plan], Found]
SECTIONS: Final[dict[str, Section]] = {
    "streams": streams,
    "added": added,
    "tokens": tokens,
    "picks": whole_picks,
    "replicas": growth,
}
