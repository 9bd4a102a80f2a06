"""The autoscaler's query on the real Prometheus, which scrapes series like ours from loopback."""

import asyncio
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from cluster_access import wait_until
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from fastgen_api.names import Metric, MetricLabel, Outcome, Phase, Target
from fastgen_balancer.prometheus import read_metrics
from fastgen_balancer.promql import Selector, Windows
from fastgen_balancer.signals import MetricSignals, Unknown
from fastgen_devcluster.programs import PROMETHEUS, ensure_programs
from fastgen_devcluster.settings import Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LABELS = {MetricLabel.DEPLOYMENT: "chat", MetricLabel.NAMESPACE: "team-a"}
WINDOWS = Windows(short_seconds=4.0, long_seconds=20.0)


class Replica:
    """Serves a replica's series; its numbers grow as a test wants them to."""

    def __init__(self, deployment: str = "chat") -> None:
        registry = CollectorRegistry()
        names = tuple(LABELS)
        labels = LABELS | {MetricLabel.DEPLOYMENT: deployment}

        def gauge(name: str) -> Gauge:
            return Gauge(name, name, names, registry=registry).labels(**labels)

        def counter(name: str) -> Counter:
            return Counter(name, name, names, registry=registry).labels(**labels)

        self.running = gauge(Metric.RUNNING_REQUESTS)
        self.waiting = gauge(Metric.WAITING_REQUESTS)
        self.owed = gauge(Metric.OWED_WORK)
        self.kv_usage = gauge(Metric.KV_USAGE)
        self.queued = gauge(Metric.QUEUED_REQUESTS)
        self.arrived = counter(Metric.ARRIVED_REQUESTS)
        arriving = Counter(Metric.ARRIVED_WORK, "arriving", (*names, "phase"), registry=registry)
        self.arriving = {p: arriving.labels(**labels, phase=p.value) for p in Phase}
        done = Counter(Metric.DONE_WORK, "done", (*names, "phase"), registry=registry)
        self.done = {p: done.labels(**labels, phase=p.value) for p in Phase}
        requests = Counter(Metric.REQUESTS, "requests", (*names, "outcome"), registry=registry)
        self.ended = {o: requests.labels(**labels, outcome=o.value) for o in Outcome}
        misses = Counter(Metric.TARGET_MISSES, "misses", (*names, "target"), registry=registry)
        self.misses = {t: misses.labels(**labels, target=t.value) for t in Target}
        self._server, self._thread = start_http_server(0, "127.0.0.1", registry)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class Scene:
    """A Prometheus, and the file that tells it what to scrape."""

    url: str
    targets: Path

    def scrape(self, *replicas: Replica) -> None:
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps([{"targets": [replica.address for replica in replicas]}]))
        new.replace(self.targets)

    def read(self, deployment: str = "chat") -> MetricSignals | Unknown:
        async def read() -> MetricSignals | Unknown:
            async with httpx2.AsyncClient() as http:
                return await read_metrics(http, self.url, Selector(deployment, "team-a"), WINDOWS)

        return asyncio.run(read())

    def instances(self) -> list[str]:
        found = self.read()
        return [] if isinstance(found, Unknown) else [r.instance for r in found.replicas]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("prometheus")
    program = ensure_programs(Settings.from_environment().cache, (PROMETHEUS,)).prometheus
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    targets = folder / "targets.json"
    targets.write_text("[]")
    job = {
        "job_name": "replicas",
        "scrape_interval": "1s",
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
    }
    (folder / "prometheus.yaml").write_text(json.dumps({"scrape_configs": [job]}))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yaml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until("Prometheus is ready", lambda: _is_ready(url), seconds=30)
        yield Scene(url, targets)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/-/ready").status_code == 200
    except httpx2.HTTPError:
        return False


@pytest.fixture
def work() -> Iterator[list[Replica]]:
    """Two replicas: the first is saturated, the second is not, until the test ends."""
    first, second = Replica(), Replica()
    done = threading.Event()

    def go() -> None:
        while not done.wait(0.1):
            first.arrived.inc(0.5)
            first.arriving[Phase.PREFILL].inc(0.09)
            first.arriving[Phase.DECODE].inc(0.03)
            first.done[Phase.PREFILL].inc(0.08)
            first.done[Phase.DECODE].inc(0.02)
            second.done[Phase.DECODE].inc(0.01)
            first.ended[Outcome.GOOD].inc(0.9)
            first.ended[Outcome.LATE_FIRST_TOKEN].inc(0.1)
            first.misses[Target.TTFT].inc(0.1)
            first.waiting.inc(0.2)

    first.waiting.set(3)
    first.running.set(8)
    first.owed.set(500)
    first.kv_usage.set(0.95)
    thread = threading.Thread(target=go)
    thread.start()
    yield [first, second]
    done.set()
    thread.join()
    first.stop()
    second.stop()


def test_no_series_is_unknown(scene: Scene) -> None:
    found = scene.read("nobody")
    assert isinstance(found, Unknown)
    assert found.reason == "NoSeries"


def test_every_signal_is_read_as_it_is(scene: Scene, work: list[Replica]) -> None:
    first, second = work
    scene.scrape(first, second)
    wait_until("both replicas", lambda: len(scene.instances()) == 2, seconds=20)
    time.sleep(7)
    found = scene.read()
    assert isinstance(found, MetricSignals)
    assert found.not_numbers == ()
    one, two = sorted(found.replicas, key=lambda r: r.instance != first.address)
    assert (one.instance, two.instance) == (first.address, second.address)
    assert one.age_seconds < 2.5
    assert one.whole_window
    assert one.work == pytest.approx(1.0, rel=0.2)
    assert two.work == pytest.approx(0.1, rel=0.2)
    assert found.done == pytest.approx(1.1, rel=0.2)
    assert found.arriving == pytest.approx(1.2, rel=0.2)
    assert found.arriving_requests == pytest.approx(5, rel=0.2)
    assert (one.running, one.running_floor, one.owed, one.owed_floor) == (8, 8, 500, 500)
    assert (one.kv_usage, one.kv_usage_floor) == (0.95, 0.95)
    assert one.waiting is not None
    assert one.waiting_floor is not None
    assert one.waiting > one.waiting_floor >= 3
    assert one.waiting_growth == pytest.approx(2, rel=0.3)
    assert (two.waiting, two.waiting_floor, two.waiting_growth) == (0, 0, 0)
    assert (found.queued_requests, found.queue_growth) == (0, 0)
    assert found.short is not None
    assert found.short.total == pytest.approx(40, rel=0.3)
    assert found.short.good / found.short.total == pytest.approx(0.9, abs=0.03)
    assert found.long is not None
    assert found.long.misses is not None
    assert set(found.long.misses) == set(Target)
    assert found.long.misses[Target.TTFT] / found.long.total == pytest.approx(0.1, abs=0.03)


def test_a_replica_that_has_gone_is_gone(scene: Scene, work: list[Replica]) -> None:
    first, second = work
    scene.scrape(first, second)
    wait_until("both replicas", lambda: len(scene.instances()) == 2, seconds=20)
    scene.scrape(second)
    wait_until("one replica", lambda: scene.instances() == [second.address], seconds=20)


def test_another_deployment_is_not_ours(scene: Scene) -> None:
    other = Replica("other")
    try:
        other.kv_usage.set(float("nan"))
        scene.scrape(other)
        wait_until("the other", lambda: isinstance(scene.read("other"), MetricSignals), seconds=20)
        found = scene.read("other")
        assert isinstance(found, MetricSignals)
        assert [r.instance for r in found.replicas] == [other.address]
        assert "kv_usage" in found.not_numbers
        assert found.replicas[0].kv_usage is None
        assert other.address not in scene.instances()
        missing = scene.read("nobody")
        assert isinstance(missing, Unknown)
        assert missing.reason == "LabelMismatch"
    finally:
        other.stop()
