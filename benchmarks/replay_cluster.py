"""The real side of `replay.py`: a FastGenDeployment on the cluster, watched while it serves."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import httpx2
import msgspec
from lightkube import ApiError

from fastgen_api import names
from fastgen_api.spec import SLO
from fastgen_cli.simulate.result import Moment
from fastgen_devcluster import clients
from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.demo.deployment import Decision, Reader
from fastgen_devcluster.demo.endpoint import open_url
from fastgen_devcluster.demo.installation import SYSTEM_NAMESPACE, install_chart, look
from fastgen_devcluster.images import build_images

NAME: Final = "replay"
NAMESPACE: Final = "fastgen-replay"
READY_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 0.5
MAX_CONCURRENT: Final = 8
MAX_LENGTH: Final = 512
BLOCK_SIZE: Final = 64
BUDGET_TOKENS: Final = 64


class ReplayError(Exception):
    """The cluster did not do its part; the text says which."""


def manifest_of(slo: SLO, cpu: str, max_replicas: int) -> dict[str, Any]:
    """SmolLM2 on a part of a core for each replica.

    What the simulator knows nothing of is off: the prefix cache, since traces hold no texts, and a
    second balancer pod. A fixed budget, as in examples/smollm2-cpu.yaml: with `Auto` it follows
    the noise of the measured steps, and the simulator's steps have none.
    """
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf", "servedName": NAME},
            "engine": {
                "dtype": "BFloat16",
                "maxModelLength": MAX_LENGTH,
                "maxConcurrentRequests": MAX_CONCURRENT,
                "kvBlockSize": BLOCK_SIZE,
                "tokenBudget": {"mode": "Fixed", "maxTokens": BUDGET_TOKENS},
                "prefixCaching": False,
            },
            "slo": msgspec.to_builtins(slo),
            "scaling": {
                "mode": "Auto",
                "minReplicas": 1,
                "maxReplicas": max_replicas,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
            },
            "balancer": {"replicas": 1, "routing": "LeastTokens"},
            "rollout": {"drainSeconds": 60},
            "resources": {
                "requests": {"cpu": "100m", "memory": "1Gi"},
                "limits": {"cpu": cpu, "memory": "2Gi"},
            },
        },
    }


@contextmanager
def installation(cluster: Cluster) -> Iterator[None]:
    """FastGen of this tree on the cluster; at the end it is gone, unless it was there before."""
    listed = ("list", "--namespace", SYSTEM_NAMESPACE, "--short", "--filter", "^fastgen$")
    was_there = bool(clients.helm(cluster, *listed).strip())
    install_chart(cluster, build_images(), ())
    try:
        clients.kubectl(cluster, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
        clients.kubectl(cluster, "create", "namespace", NAMESPACE)
        yield
    finally:
        clients.kubectl(cluster, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
        if not was_there:
            clients.helm(cluster, "uninstall", "fastgen", "-n", SYSTEM_NAMESPACE, "--wait")
            clients.kubectl(cluster, "delete", "namespace", SYSTEM_NAMESPACE, "--wait")


@contextmanager
def deployment(cluster: Cluster, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A new FastGenDeployment with one ready replica, and the base URL of its API.

    New for each replay: what the autoscaler learnt in one must not help it in the next one.
    """
    where = ("--namespace", NAMESPACE)
    clients.kubectl(cluster, "apply", *where, "-f", "-", stdin=json.dumps(manifest))
    try:
        _wait_until_ready(Reader.open(cluster.kubeconfig, NAME, NAMESPACE))
        with open_url(cluster, NAME, NAMESPACE) as base:
            _wait_until_reachable(base)
            yield f"{base}/v1"
    finally:
        gone = ("--cascade=foreground", "--ignore-not-found", "--timeout=150s")
        clients.kubectl(cluster, "delete", "fgd", NAME, *where, *gone)


def _wait_until_ready(reader: Reader) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while (state := look(reader)) is None or not state.is_settled(1):
        if time.monotonic() > deadline:
            conditions = state.conditions if state else ()
            told = [f"{one.type}={one.status} {one.message}" for one in conditions]
            raise ReplayError(f"{NAME} is not Ready after {READY_SECONDS:.0f} s: {'; '.join(told)}")
        time.sleep(LOOK_SECONDS)


def _wait_until_reachable(base: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"{base}/v1/models", trust_env=False).status_code == 200:
                return
        if time.monotonic() > deadline:
            raise ReplayError(f"{base}/v1/models does not answer")
        time.sleep(LOOK_SECONDS)


class Watch(threading.Thread):
    """Notes the replicas and the decisions of a deployment until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="watch", daemon=True)
        self._reader = Reader.open(cluster.kubeconfig, NAME, NAMESPACE)
        self._stop_asked = threading.Event()
        self._moments: list[Moment] = []
        self._decisions: list[Decision] = []

    def run(self) -> None:
        """Looks twice a second; a look that failed is made up for by the next one."""
        while not self._stop_asked.wait(LOOK_SECONDS):
            with suppress(ApiError, httpx2.HTTPError):
                state = self._reader.read()
                seen = (state.wanted, state.ready_replicas, state.replicas)
                last = self._moments[-1] if self._moments else None
                if last is None or seen != (last.wanted, last.ready, last.gpus):
                    self._moments.append(Moment(time.monotonic(), *seen))
                decision = state.decision
                if decision and (not self._decisions or self._decisions[-1] != decision):
                    self._decisions.append(decision)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(timeout=30)

    def timeline(self, start: float) -> tuple[Moment, ...]:
        """What was noted, in seconds since `start` of the monotonic clock."""
        return tuple(Moment(m.at - start, m.wanted, m.ready, m.gpus) for m in self._moments)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(self._decisions)


def cold_start_told(cluster: Cluster) -> float | None:
    """`status.coldStartSeconds`, which the autoscaler plans with."""
    words = ("get", "fgd", NAME, "--namespace", NAMESPACE, "-o", "json")
    seconds = json.loads(clients.kubectl(cluster, *words))["status"].get("coldStartSeconds")
    return None if seconds is None else float(seconds)


def ask_range(url: str, query: str, begin: float, end: float) -> list[dict[str, Any]]:
    """Prometheus' series from one Unix time to another, a sample each second."""
    asked = {"query": query, "start": f"{begin:.0f}", "end": f"{end:.0f}", "step": "1"}
    answer = httpx2.get(f"{url}/api/v1/query_range", params=asked, trust_env=False, timeout=30)
    if answer.status_code != 200:
        raise ReplayError(f"Prometheus at {url} answers {answer.status_code}: {answer.text[:200]}")
    return list(answer.json()["data"]["result"])
