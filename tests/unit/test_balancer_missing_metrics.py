"""The table of docs/scaling.md, row by row, against a server that speaks Prometheus' API."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest
from scaling_scenes import local
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn import Config, Server

from fastgen_api.spec import ScalingMode
from fastgen_balancer import prometheus
from fastgen_balancer.decision import Recommendation, start
from fastgen_balancer.deployment_status import ReportMemory, note, scaling_active, slo_met
from fastgen_balancer.lack import lack_of
from fastgen_balancer.prometheus import read_metrics
from fastgen_balancer.promql import Selector, Windows
from fastgen_balancer.recommend import recommend
from fastgen_balancer.scaling_policy import Policy
from fastgen_balancer.signals import LocalSignals, Signals
from fastgen_cli.explain_advice import METRICS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
POLICY = Policy(min_replicas=1, max_replicas=8, target_ratio=0.99, max_concurrent_requests=64)
REPLICAS = 4
NOW = 1_700_000_000.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    case: str
    answer: str
    prometheus: str
    rule: str
    active: str
    met: str
    message: str
    replicas: str
    remedy: str


def rows() -> list[Row]:
    text = PAGE.read_text().split("## Missing metrics")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [Row(*(cell.strip() for cell in line.strip("|").split(" | "))) for line in lines]


Samples = list[tuple[str, str, float | str]]


def known(
    names: int = REPLICAS,
    work: float = 0.0,
    running: float = 0.0,
    ended: float = 0.0,
    age: float = 3.0,
) -> Samples:
    """What Prometheus has of replicas that share some work: part, key and value."""
    samples: Samples = [("others", "", 9), ("queued", "", 0), ("queue_growth", "", 0)]
    samples += [("arriving", "", work), ("done", "", work)]
    samples += [("arriving_requests", "", ended / 30)]
    samples += [("short", "good", ended), ("long", "good", 10 * ended)]
    gauges = ("waiting", "waiting_floor", "waiting_growth", "owed", "owed_floor")
    for name in (f"10.0.0.{i}:9090" for i in range(names)):
        samples += [("sampled", name, NOW - age), ("present", name, running)]
        samples += [("work", name, work / REPLICAS), ("running", name, running)]
        samples += [("running_floor", name, running), ("kv_usage", name, 0.1)]
        samples += [(gauge, name, 0) for gauge in gauges]
    return samples


def without(samples: Samples, *parts: str) -> Samples:
    return [sample for sample in samples if sample[0] not in parts]


BUSY = known(work=3.0, running=20, ended=200)
ANSWERS: dict[str, Samples] = {
    "empty": [],
    "mismatch": [("others", "", 9)],
    "balancers": [("others", "", 2), ("queued", "", 0), ("queue_growth", "", 0)],
    "some": known(2, work=3.0, running=20, ended=200),
    "version": without(BUSY, "arriving", "arriving_requests", "done", "work"),
    "nan": [*without(BUSY, "done"), ("done", "", "NaN")],
    "old": known(work=3.0, running=20, ended=200, age=60.0),
    "few": known(work=0.05, running=2, ended=0.5),
    "quiet": known(),
    "busy": BUSY,
}
ODD = ("unconfigured", "down", "slow", "error", "page")


def body_of(samples: Samples) -> bytes:
    result = [
        {"metric": {"part": part} | ({"key": key} if key else {}), "value": [NOW, str(value)]}
        for part, key, value in samples
    ]
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": result}}
    ).encode()


async def answer(request: Request) -> Response:
    case = request.path_params["case"]
    if case == "slow":
        await asyncio.sleep(0.5)
    if case == "error":
        failed = {"status": "error", "errorType": "internal", "error": "disk"}
        return Response(json.dumps(failed), 500)
    if case == "page":
        return Response("<html>Sign in</html>")
    return Response(body_of(ANSWERS.get(case, [])), media_type="application/json")


@pytest.fixture
async def address() -> AsyncIterator[str]:
    app = Starlette(routes=[Route("/{case}/api/v1/query", answer, methods=["POST"])])
    server = Server(Config(app, port=0, log_config=None, lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


def url_of(case: str, address: str) -> str | None:
    if case == "unconfigured":
        return None
    return "http://127.0.0.1:9" if case == "down" else f"{address}/{case}"


def live(signals: Signals, seconds: int) -> tuple[Recommendation, ReportMemory, int]:
    """The first decision, the stance of the last one, and where the number goes."""
    memory, report, replicas, first = start(REPLICAS, NOW), ReportMemory(), REPLICAS, None
    for second in range(0, seconds, 5):
        now = NOW + second
        ready = local(min(replicas, REPLICAS), in_flight=signals.local.in_flight_requests)
        here = replace(signals, replicas=replicas, local=ready)
        decision, memory = recommend(here, POLICY, memory, now)
        report = note(report, decision, now)
        replicas = decision.replicas
        first = first or decision
    assert first is not None
    return first, report, replicas


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.case)
async def test_each_row_holds(row: Row, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = row.case.strip("`")
    if case == "slow":
        monkeypatch.setattr(prometheus, "TIMEOUT_SECONDS", 0.1)
    async with httpx2.AsyncClient() as http:
        found = await read_metrics(
            http, url_of(case, address), Selector("chat", "team-a"), Windows()
        )
    signals = Signals(REPLICAS, _seen_here(case), found)
    decision, report, replicas = live(signals, 600)
    lack = lack_of(signals, POLICY)
    active = scaling_active(ScalingMode.AUTO, lack, POLICY, report)
    met = slo_met(found, POLICY, "", lack)
    assert f"`{decision.rule}`" == row.rule
    assert f"{active.status}, `{active.reason}`" == row.active
    assert f"{met.status}, `{met.reason}`" == row.met
    assert row.message in decision.message
    assert replicas == {"stay": REPLICAS, "fall": POLICY.min_replicas}[row.replicas]
    if active.status == "False":
        assert active.reason in METRICS, "`fastgen explain` says what to do"


def _seen_here(case: str) -> LocalSignals:
    return local(REPLICAS, in_flight=0 if case == "quiet" else 40)


def test_the_table_has_each_case_and_four_answers() -> None:
    table = rows()
    cases = {row.case.strip("`") for row in table}
    assert cases == {*ANSWERS, *ODD}
    assert {row.answer for row in table} == {
        "no traffic", "no data", "not enough data", "stale data", "enough",
    }  # fmt: skip
    assert all(row.remedy for row in table)


@pytest.mark.parametrize("case", [*ODD, *ANSWERS])
async def test_a_spike_is_seen_whatever_is_missing(
    case: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "TIMEOUT_SECONDS", 0.1)
    async with httpx2.AsyncClient() as http:
        found = await read_metrics(
            http, url_of(case, address), Selector("chat", "team-a"), Windows()
        )
    spike = local(REPLICAS, queued=200, in_flight=100, saturated=REPLICAS)
    decision, _ = recommend(Signals(REPLICAS, spike, found), POLICY, start(4, NOW), NOW)
    assert decision.replicas > REPLICAS
