"""`fastgen bench` against a real replica, over HTTP and over gRPC."""

from pathlib import Path

import msgspec
import pytest
from replica_process import MODEL, ReplicaProcess
from typer.testing import CliRunner

from fastgen_cli.bench.measures import Point
from fastgen_cli.bench.report import Report
from fastgen_cli.main import app

LOAD = ["--prompt-tokens", "uniform:60-90", "--output-tokens", "uniform:4-9", "--clients", "3",
        "--requests", "6", "--slo", "ttft=600s,tpot=600s"]  # fmt: skip


def measured(where: list[str], output: Path, *more: str) -> tuple[Report, Point]:
    result = CliRunner().invoke(app, ["bench", *where, *LOAD, *more, "--output", str(output)])
    assert result.exit_code == 0, result.output
    report = msgspec.json.decode(output.read_bytes(), type=Report)
    (point,) = report.points
    return report, point


@pytest.mark.parametrize("more", [(), ("--api", "completions"), ("--grpc",)])
def test_every_way_in_gets_the_asked_lengths(
    replica: ReplicaProcess, tmp_path: Path, more: tuple[str, ...]
) -> None:
    where = [replica.url]
    if more == ("--grpc",):
        where, more = ["--grpc", f"127.0.0.1:{replica.grpc_port}"], ()
    report, point = measured(where, tmp_path / "out.json", *more)
    assert report.model == MODEL
    assert (point.requests, point.succeeded, point.good_percent) == (6, 6, 100.0)
    assert point.prompt_tokens.exact_percent == 100.0
    assert point.output_tokens.exact_percent == 100.0
    assert point.tpot_seconds.count == 6


def test_a_refused_prompt_is_told_with_the_replicas_words(
    replica: ReplicaProcess, tmp_path: Path
) -> None:
    where = ["bench", replica.url, "--prompt-tokens", "3000", "--requests", "2"]
    result = CliRunner().invoke(app, where)
    assert result.exit_code == 1
    assert "refuses the request" in result.output
    assert "--max-length" in result.output
