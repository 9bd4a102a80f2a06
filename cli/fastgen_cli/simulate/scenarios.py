"""The scenarios of the comparison: rivals are tuned on one part, all are scored on the other."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fastgen_api.spec import SLO, TimePerOutputToken, TimeToFirstToken, TokenGap
from fastgen_cli.simulate.monitoring import Outage, OutageKind
from fastgen_cli.simulate.pods import Supply
from fastgen_cli.simulate.profile import LLAMA8B_L4
from fastgen_cli.simulate.simulation import Setup
from fastgen_cli.simulate.trace import Trace, between, duration_of, read_trace, scaled
from fastgen_cli.simulate.workload import Rate, diurnal, poisson, ramp, steady, step

PROFILE: Final = LLAMA8B_L4
SLO_OF_ALL: Final = SLO(
    target_percent="99",
    time_to_first_token=TimeToFirstToken(milliseconds=1000, per_prompt_token_microseconds=2000),
    time_per_output_token=TimePerOutputToken(milliseconds=125),
    token_gap=TokenGap(max_milliseconds=500),
)
"""FastGen's allowance per prompt token; twice the speed of reading."""
MAX_REPLICAS: Final = 16
AZURE_SCALE: Final = {"code": 1.5, "conv": 1.25}
"""How many times as many requests: then they take 1 to 16 replicas."""
TUNING_SEED: Final = 1
SCORING_SEED: Final = 2
AZURE_FILE: Final = "azure_llm_2023_{name}.csv"


@dataclass(frozen=True, slots=True)
class Scenario:
    """is_steady: its load is constant, so that reversals of direction are faults."""

    name: str
    tuning: Setup
    scoring: Setup
    is_steady: bool = False


def _setup(trace: Trace, seconds: float, initial: int, seed: int) -> Setup:
    return Setup(
        trace,
        seconds,
        PROFILE,
        SLO_OF_ALL,
        max_replicas=MAX_REPLICAS,
        initial_replicas=initial,
        seed=seed,
    )


def azure(folder: Path, name: str, initial: int, share: float = 1.0) -> Scenario:
    """A public trace: tuned on the first half, scored on the second; of each half the first
    `share`."""
    trace = read_trace(folder / AZURE_FILE.format(name=name))
    trace = scaled(trace, AZURE_SCALE[name], seed=0)
    half = duration_of(trace) / 2
    seconds = half * share
    return Scenario(
        f"Azure {name}",
        _setup(between(trace, 0.0, seconds), seconds, initial, TUNING_SEED),
        _setup(between(trace, half, half + seconds), seconds, initial, SCORING_SEED),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """A synthetic load of one scenario; `highest` bounds its rate."""

    name: str
    rate: Rate
    highest: float
    seconds: float
    initial: int
    change: Callable[[Setup], Setup] = lambda setup: setup
    is_steady: bool = False


def _with_outage(setup: Setup) -> Setup:
    begin, end = 0.4 * setup.seconds, 0.65 * setup.seconds
    return replace(setup, outages=(Outage(begin, end, OutageKind.EMPTY),))


def _with_late_gpus(setup: Setup) -> Setup:
    return replace(setup, supply=Supply(at_once=4, late_seconds=300.0, late_slowdown=1.5))


def _with_crashes(setup: Setup) -> Setup:
    """One, then two at once, then one while Prometheus is down, which it is for a while yet."""
    crashes = tuple(share * setup.seconds for share in (0.15, 0.4, 0.4005, 0.7))
    outage = Outage(0.65 * setup.seconds, 0.9 * setup.seconds, OutageKind.UNREACHABLE)
    return replace(setup, crashes=crashes, outages=(outage,))


SHAPES: Final = (
    _Shape("steady", steady(4.0), 4.0, 1800.0, 5, is_steady=True),
    _Shape("step", step(2.0, 8.0, 400.0, 1300.0), 8.0, 2100.0, 3),
    _Shape("spike ×10", step(1.0, 10.0, 600.0, 720.0), 10.0, 1800.0, 2),
    _Shape("diurnal day in 1 h", diurnal(0.5, 8.0, 3600.0), 8.0, 3600.0, 1),
    _Shape("metric outage at peak", diurnal(1.0, 8.0, 2400.0), 8.0, 2400.0, 2, _with_outage),
    _Shape("slow GPUs arriving late", ramp(2.0, 7.0, 300.0, 1200.0), 7.0, 2100.0, 3,
           _with_late_gpus),
    _Shape("crashes, then an outage", steady(4.0), 4.0, 1800.0, 5, _with_crashes),
)  # fmt: skip
"""The day is pressed into an hour: a cold start is as long as 24 minutes of it."""


def synthetic(shape: _Shape, share: float = 1.0) -> Scenario:
    """The same load with two seeds; the first `share` of it."""
    seconds = shape.seconds * share

    def part(seed: int) -> Setup:
        trace = poisson(shape.rate, shape.highest, seconds, seed)
        # Outages lie where they lie in the whole.
        whole = shape.change(_setup(trace, shape.seconds, shape.initial, seed))
        return replace(whole, seconds=seconds)

    return Scenario(shape.name, part(TUNING_SEED), part(SCORING_SEED), shape.is_steady)


def scenarios(azure_folder: Path | None, share: float = 1.0) -> tuple[Scenario, ...]:
    """All of them; without a folder those that need no files."""
    real = () if azure_folder is None else (("conv", 8), ("code", 4))
    found = [azure(azure_folder, name, n, share) for name, n in real if azure_folder is not None]
    return (*found, *(synthetic(shape, share) for shape in SHAPES))
