"""Deployments behind one balancer, and routes to another: the small model, on a real cluster.

Everything happens under the traffic of one of them, which is to notice nothing.
"""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in
from traffic import Traffic, run_traffic

from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-shared-balancer"
BALANCERS = "fastgen.dev/deployment=models,app.kubernetes.io/component=balancer"
SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}}
BATCH = {"x-fastgen-class": "batch"}


def manifest(name: str, balancer: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fastgen.dev/v1alpha1",
        "kind": "FastGenDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
            "engine": {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 8},
            "resources": SMALL,
            "scaling": {"mode": "Disabled"},
            "balancer": {"replicas": 1} | balancer,
            "rollout": {"drainSeconds": 10},
        }
        | spec,
    }


def route(name: str, value: str, deployment: str) -> dict[str, Any]:
    return {"match": {"header": {"name": name, "value": value}}, "deployment": deployment}


SHARED = {"name": "models"}
CHAT = manifest("chat", SHARED)
CODE = manifest("code", SHARED, model=CHAT["spec"]["model"] | {"servedName": "coder"})
SLEEPER = manifest(
    "batch",
    {},
    replicas=0,
    scaling={"minReplicas": 0, "maxReplicas": 1, "scaleToZero": {"holdSeconds": 120}},
)


def apply(operator: OperatorProcess, *manifests: dict[str, Any]) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    operator.kubectl("apply", "-f", "-", stdin=json.dumps(items))


def status(operator: OperatorProcess, name: str, kind: str) -> tuple[str, str]:
    """Status and reason of a condition."""
    found = operator.condition(name, kind)
    return found.get("status", ""), found.get("reason", "")


def is_ready(operator: OperatorProcess, name: str) -> bool:
    return status(operator, name, "Ready")[0] == "True"


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, 18104) as process:
        process.start()
        apply(process, CHAT, CODE, SLEEPER)
        for name in ("chat", "code", "batch"):
            wait_until(f"{name} is Ready", lambda name=name: is_ready(process, name), seconds=240)
        yield process


def balancers(operator: OperatorProcess) -> list[tuple[str, list[int]]]:
    """The shared balancer's pods, and how often each of their containers was started anew."""
    return [
        (
            pod["metadata"]["uid"],
            [each["restartCount"] for each in pod["status"].get("containerStatuses", ())],
        )
        for pod in operator.get("pods", "-l", BALANCERS)["items"]
    ]


def address(operator: OperatorProcess) -> str:
    return f"http://{operator.get('service', 'models')['spec']['clusterIP']}/v1"


def owners(operator: OperatorProcess, *what: str) -> set[str]:
    return {each["name"] for each in operator.get(*what)["metadata"]["ownerReferences"]}


class Client:
    """Asks the shared balancer, for one token each."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, model: str | None, **headers: str) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        with httpx2.Client(trust_env=False, timeout=150) as http:
            return http.post(
                f"{self.url}/chat/completions",
                json=body | ({"model": model} if model else {}),
                headers={name.replace("_", "-"): value for name, value in headers.items()},
            )

    def server(self, model: str, **headers: str) -> str:
        """The deployment whose replica answers; with the status when none does."""
        answer = self.ask(model, **headers)
        replica = answer.headers.get("x-fastgen-replica", "")
        return replica.partition("-replica-")[0] or f"{answer.status_code}"

    def models(self) -> set[str]:
        with httpx2.Client(trust_env=False, timeout=10) as http:
            return {each["id"] for each in http.get(f"{self.url}/models").json()["data"]}


@pytest.fixture(scope="module")
def client(operator: OperatorProcess) -> Client:
    return Client(address(operator))


@contextmanager
def undisturbed(operator: OperatorProcess) -> Iterator[None]:
    """Streams of `chat` run meanwhile: none fails, and no balancer pod is made anew."""
    before, ended = balancers(operator), threading.Event()
    records: list[Traffic] = []

    async def stream(url: str) -> None:
        async with run_traffic(url, "chat", streams=2, max_tokens=16) as traffic:
            records.append(traffic)
            await asyncio.to_thread(ended.wait)

    with ThreadPoolExecutor(1) as pool:
        streams = pool.submit(asyncio.run, stream(address(operator)))
        try:
            until("a stream ended", lambda: records and any(a.finished for a in records[0].answers))
            yield
        finally:
            ended.set()
        streams.result()
    assert records[0].failed == [], "neither broken nor refused"
    assert balancers(operator) == before


def until(what: str, holds: Callable[[], Any], seconds: float = 60) -> None:
    wait_until(what, holds, seconds)


def test_the_model_chooses_behind_one_service(operator: OperatorProcess, client: Client) -> None:
    assert client.models() == {"chat", "coder"}
    assert client.server("chat") == "chat"
    assert client.server("coder") == "code"
    assert client.server("chat", x_fastgen_model="code") == "code"
    unknown, missing = client.ask("other"), client.ask(None)
    assert (unknown.status_code, missing.status_code) == (404, 400)
    assert unknown.json()["error"]["code"] == "model_not_found"
    for name in ("chat", "code"):
        found = operator.get("fgd", name)["status"]
        assert found["url"] == f"http://models.{NAMESPACE}.svc/v1"
        assert operator.find("deployment", f"{name}-balancer") is None
    for child in ("service/models", "deployment/models-balancer", "role/models-balancer"):
        assert owners(operator, child) == {"chat", "code"}


def test_explain_tells_of_the_balancer_in_front(operator: OperatorProcess) -> None:
    program = Path(sys.executable).parent / "fastgen"
    words = ["explain", "code", "-n", NAMESPACE, "-o", "json"]
    environment = {"KUBECONFIG": str(operator.kubernetes.kubeconfig), "HOME": "/nonexistent"}
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pods = {pod["name"].rpartition("-")[0].rpartition("-")[0]: pod["role"]
            for pod in json.loads(done.stdout)["pods"]}  # fmt: skip
    assert pods == {"code-replica": "replica", "models-balancer": "balancer"}


def test_one_that_cannot_serve_joins_and_hurts_nobody(
    operator: OperatorProcess, client: Client
) -> None:
    bad = manifest("bad", SHARED, image="127.0.0.1:1/none:1")
    odd = manifest("odd", SHARED | {"tls": {"secretName": "cert"}})
    taken = manifest("taken", SHARED, model=CHAT["spec"]["model"] | {"servedName": "coder"})
    lost = manifest("lost", {"name": "busy"})
    with undisturbed(operator):
        operator.kubectl("create", "service", "clusterip", "busy", "--tcp=80")
        apply(operator, bad, odd, taken | {"spec": taken["spec"] | {"replicas": 0}}, lost)
        stalled = {"odd": "BalancerDiffers", "taken": "ServedNameTaken", "lost": "NameConflict"}
        for name, reason in stalled.items():
            until(
                f"{name} is told",
                lambda name=name, reason=reason: (
                    status(operator, name, "Stalled") == ("True", reason)
                ),
            )
        assert "spec.balancer.tls" in operator.condition("odd", "Stalled")["message"]
        until(
            "the image is told", lambda: status(operator, "bad", "Ready")[1] == "ImagePullBackOff"
        )
        assert client.models() == {"chat", "coder", "bad"}
        assert client.server("bad") == "503"
        assert client.server("coder") == "code"
        assert owners(operator, "service", "models") == {"chat", "code", "bad", "taken"}
        for name in ("chat", "code"):
            assert is_ready(operator, name)
            assert status(operator, name, "Stalled")[0] == "False"
        for name in ("bad", "odd", "taken", "lost"):
            operator.kubectl("delete", "fgd", name, "--wait")
        until("they are gone", lambda: client.models() == {"chat", "coder"})
        until(
            "nobody owns for them",
            lambda: owners(operator, "service", "models") == {"chat", "code"},
        )


def test_routes_lead_to_members_and_wake_whoever_sleeps_elsewhere(
    operator: OperatorProcess, client: Client
) -> None:
    routes = [
        route("x-fastgen-class", "batch", "batch"),
        route("x-fastgen-class", "code", "code"),
        route("x-fastgen-class", "gone", "nowhere"),
    ]
    with undisturbed(operator):
        operator.patch("chat", {"balancer": {"routes": routes}})
        until(
            "the lost route is told",
            lambda: status(operator, "chat", "RouteBlocked") == ("True", "RouteTargetMissing"),
        )
        assert "nowhere" in operator.condition("chat", "RouteBlocked")["message"]
        assert is_ready(operator, "chat")
        until("a route", lambda: client.server("chat", x_fastgen_class="code") == "code")
        assert client.server("chat", x_fastgen_class="gone") == "chat"
        assert client.server("chat", X_FastGen_Class="other") == "chat"
        assert client.server("coder", x_fastgen_class="batch") == "code", "its own routes count"
        assert operator.get("fgd", "batch")["status"]["readyReplicas"] == 0
        woken = client.server("chat", x_fastgen_class="batch")
        assert woken == "batch", "held by one balancer, woken by the leader of another"


def test_one_is_deleted_under_the_streams_of_the_other(
    operator: OperatorProcess, client: Client
) -> None:
    with undisturbed(operator):
        operator.kubectl("delete", "fgd", "code", "--wait")
        until("its model is gone", lambda: client.server("coder") == "404")
        assert client.models() == {"chat"}
        assert client.server("chat", x_fastgen_class="code") == "chat", "served without the route"
        until("one owner", lambda: owners(operator, "service", "models") == {"chat"})
        until("no replica", lambda: operator.find("deployment", "code-replica") is None)
        assert is_ready(operator, "chat")
    operator.kubectl("delete", "fgd", "chat", "--wait")
    until("the Service goes with the last", lambda: not operator.find("service", "models"))
    until("and all else", lambda: not operator.children("models"))
    assert operator.find("service", "batch") is not None
