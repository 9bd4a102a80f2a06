"""`fastgen simulate`: the answer, the files, the errors; oracle, scenarios, and the bars."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

from fastgen_cli.main import app
from fastgen_cli.simulate import command
from fastgen_cli.simulate.comparison import ORACLE, OWN, Score, bars, tuned, turns_in
from fastgen_cli.simulate.monitoring import Outage
from fastgen_cli.simulate.oracle import planned, search, shorter, smallest_fleet
from fastgen_cli.simulate.report import SCHEMA, Report
from fastgen_cli.simulate.result import Moment
from fastgen_cli.simulate.scenarios import PROFILE, SHAPES, SLO_OF_ALL, scenarios, synthetic
from fastgen_cli.simulate.simulation import Setup
from fastgen_cli.simulate.trace import Arrival
from fastgen_cli.simulate.workload import poisson, step

runner = CliRunner()
SLO = "ttft=1s+2000us,tpot=125ms,gap=500ms,percent=95"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "my.csv"
    rows = [f"{i * 0.5},{300 + i},{20 + i % 30}" for i in range(100)]
    path.write_text("\n".join(["timestamp,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


def test_it_answers_how_many_gpus_what_goodness_and_what_cost(trace: Path, tmp_path: Path) -> None:
    output, plot = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["simulate", "--trace", str(trace), "--slo", SLO, "--max-replicas", "4"]
    arguments += ["--gpu-hour-price", "2", "--output", str(output), "--plot", str(plot)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    said = re.search(r"takes (\S+) GPUs on average", result.output)
    row = re.search(r"GPUs, mean\D+(\d+\.\d+)", result.output)
    assert said is not None
    assert row is not None
    assert said[1] == row[1]
    assert "A fixed fleet needs" in result.output
    assert "cost per million tokens" in result.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    report = msgspec.json.decode(output.read_bytes(), type=Report)
    assert report.schema == SCHEMA
    assert report.trace.requests == 100
    own, fixed = report.runs
    assert own.requests == sum(own.outcomes.values()) == 100
    assert fixed.meets_slo
    assert fixed.most_replicas == report.smallest_fixed_fleet
    tokens = report.trace.prompt_tokens + report.trace.output_tokens
    assert own.cost == pytest.approx(2 * own.gpu_hours)
    assert own.cost_per_million_tokens == pytest.approx(2 * own.gpu_hours / tokens * 1e6)
    # Two fixed replicas for the whole time are paid for the whole time.
    assert fixed.replica_hours == pytest.approx(fixed.most_replicas * report.trace.seconds / 3600)


def test_the_same_seed_gives_the_same_file(trace: Path, tmp_path: Path) -> None:
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file in files:
        arguments = ["simulate", "--trace", str(trace), "--slo", SLO, "--output", str(file)]
        assert runner.invoke(app, arguments).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("slo", "way_out"),
    [
        ("ttft=1ms", "a prompt of 300 tokens takes 120 ms, longer than ttft allows (1.0 ms)"),
        ("ttft=1ms+1us", "a prompt of 300 tokens takes 120 ms, longer than ttft allows (1.3 ms)"),
        ("ttft=100ms", "takes 120 ms, longer than ttft allows (100 ms)"),
        ("ttft=131ms", "only 48 of 100 requests can keep ttft, even on a replica of their own"),
        ("ttft=1s+2000us,tpot=50ms", "a step of one token takes 54 ms, longer than tpot allows"),
        ("tpot=125ms,gap=40ms", "a step of one token takes 54 ms, longer than gap allows (40 ms)"),
    ],
)
def test_an_slo_that_nothing_reaches_is_said_with_the_way_out(
    trace: Path, slo: str, way_out: str
) -> None:
    arguments = ["simulate", "--trace", str(trace), "--slo", slo, "--max-replicas", "2"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "misses the SLO" in text
    assert "No fixed number of up to 2 replicas" in text
    assert way_out in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--slo", "ttft=soon"], "soon"),
        (["--model-latency", "h900"], "h900"),
        (["--min-replicas", "5", "--max-replicas", "2"], "--min-replicas"),
        (["--plot", "out.docx"], ".png"),
        (["--output", "/none/out.json"], "/none/out.json"),
    ],
)
def test_bad_input_is_named_and_ends_with_1(trace: Path, more: list[str], words: str) -> None:
    arguments = ["simulate", "--trace", str(trace), *([] if "--slo" in more else ["--slo", SLO])]
    result = runner.invoke(app, [*arguments, *more])
    assert result.exit_code == 1
    assert words in result.output


@pytest.mark.parametrize(
    ("flag", "path", "words"),
    [
        ("--output", "none/out.json", "No such file or directory"),
        ("--output", "my.csv/out.json", "Not a directory"),
        ("--output", "x" * 300, "File name too long"),
        ("--plot", "none/out.png", "No such file or directory"),
        ("--plot", "my.csv/out.png", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_before_anything_is_simulated(
    trace: Path, monkeypatch: pytest.MonkeyPatch, flag: str, path: str, words: str
) -> None:
    begun: list[object] = []
    monkeypatch.setattr(command, "_simulate", lambda *_: begun.append(1))
    where = str(trace.parent / path)
    result = runner.invoke(app, ["simulate", "--trace", str(trace), "--slo", SLO, flag, where])
    assert result.exit_code == 1
    assert f"{flag} {where}: {words}" in " ".join(result.output.split())
    assert begun == []


def test_a_bad_line_of_the_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("timestamp,prompt_tokens,output_tokens\n1,2,3\n2,3,many\n")
    result = runner.invoke(app, ["simulate", "--trace", str(path), "--slo", SLO])
    assert result.exit_code == 1
    assert "line 3, column output_tokens" in " ".join(result.output.split())


def small(seconds: float = 240.0) -> Setup:
    trace = poisson(step(0.3, 1.5, 80.0, 160.0), 1.5, seconds, 1)
    return Setup(trace, seconds, PROFILE, SLO_OF_ALL, max_replicas=4, initial_replicas=1)


def test_the_oracle_meets_the_slo_with_less_than_a_fixed_fleet() -> None:
    setup = small()
    fixed = smallest_fleet(setup)
    assert fixed is not None
    found = search(setup, tries=2)
    assert found.meets
    assert found.result.good_ratio >= 0.99
    assert found.result.replica_hours < fixed[1].replica_hours


def test_the_oracle_says_when_nothing_meets_the_slo() -> None:
    setup = replace(small(), max_replicas=1, trace=poisson(step(5, 5, 0, 1), 5.0, 60.0, 1))
    found = search(setup, tries=1)
    assert not found.meets
    assert set(found.plan) == {1}


def test_plans_are_ahead_of_the_work_by_a_cold_start() -> None:
    """A cold start of 60 s and a tenth, in intervals of 30 s, and one to spare: four ahead."""
    trace = (Arrival(1.0, 100, 10), *(Arrival(300.0 + i / 10, 2000, 300) for i in range(200)))
    setup = Setup(trace, 330.0, PROFILE, SLO_OF_ALL, max_replicas=4)
    assert planned(setup, 1.0) == (1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4)


def test_a_plan_is_shortened_in_one_stretch_and_never_below_the_least() -> None:
    assert shorter((3, 3, 3), 3, 1, Random(0)) == (2, 2, 2)
    assert shorter((1, 1), 1, 1, Random(0)) is None


def test_scenarios_are_the_same_each_time_and_differ_between_the_parts() -> None:
    found = scenarios(None, share=0.2)
    assert [s.name for s in found] == [shape.name for shape in SHAPES]
    for scenario, shape in zip(found, SHAPES, strict=True):
        assert scenario == synthetic(shape, 0.2) or scenario.scoring.trace
        assert scenario.scoring.trace == synthetic(shape, 0.2).scoring.trace
        assert scenario.tuning.trace != scenario.scoring.trace
        assert scenario.scoring.seconds == pytest.approx(0.2 * shape.seconds)


def score(name: str, good: float, hours: float, **more: object) -> Score:
    base = Score("s", name, "x", True, good, hours, 0, 0.0, 0, None, None, 1, 100, 0)
    return replace(base, **more)


def test_rivals_are_tuned_to_the_cheapest_that_meets_the_slo_else_the_best() -> None:
    cheap, good, bad = score("r", 0.99, 5), score("r", 1.0, 6), score("r", 0.98, 1)
    assert tuned([bad, good, cheap], 0.99) is cheap
    assert tuned([bad, score("r", 0.97, 1)], 0.99) is bad


def verdicts(*scores: Score, steady: tuple[str, ...] = ()) -> dict[str, bool]:
    return {bar.name: bar.hit for bar in bars(scores, 0.99, steady)}


def test_bars_are_hit_or_missed() -> None:
    oracle = score(ORACLE, 0.99, 10)
    near, far = score(OWN, 0.99, 11), score(OWN, 0.99, 13.5)
    rival, failing = score("r", 0.99, 13), score("q", 0.9, 8)
    found = verdicts(near, oracle, rival, failing)
    assert all(found.values())
    found = verdicts(far, oracle, rival, failing)
    assert not found["replica-hours above the oracle's"]
    assert not found["replica-hours, summed"]
    found = verdicts(score(OWN, 0.98, 9), oracle, rival)
    assert not found["share of good requests"]
    assert not found["replica-hours above the oracle's"]
    elsewhere = [replace(each, scenario="t") for each in (near, oracle, rival)]
    found = verdicts(*elsewhere, score(OWN, 0.98, 9), oracle, rival)
    assert not found["replica-hours, summed"], "a trace that ours fails on is not left out"
    # Where not even the oracle meets the SLO, as good as the best rival is enough.
    unreached = score(ORACLE, 0.95, 10)
    assert verdicts(score(OWN, 0.93, 9), unreached, failing)["share of good requests"]
    assert not verdicts(score(OWN, 0.89, 9), unreached, failing)["share of good requests"]


def test_reversals_are_bars_on_steady_load_and_while_metrics_are_missing() -> None:
    oracle, rival = score(ORACLE, 0.99, 10), score("r", 0.99, 13)
    turning = score(OWN, 0.99, 11, reversals_per_hour=2.5)
    assert not verdicts(turning, oracle, rival, steady=("s",))["reversals on steady load"]
    assert "reversals on steady load" not in verdicts(turning, oracle, rival)
    blind = score(OWN, 0.99, 11, outage_reversals=1)
    assert not verdicts(blind, oracle, rival)["reversals by missing metrics"]


def test_turns_count_only_while_metrics_are_missing_or_just_after() -> None:
    timeline = [Moment(at, n, n, n) for at, n in ((0, 2), (10, 3), (100, 2), (120, 3), (400, 2))]
    assert turns_in(timeline, (Outage(90.0, 110.0),)) == 2
    assert turns_in(timeline, (Outage(300.0, 310.0),)) == 0
