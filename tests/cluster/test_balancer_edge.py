"""API keys and TLS on a real cluster: Secrets by name, changed under a running balancer."""

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from certificates import Certificate, make_certificate
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in

from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-balancer-edge"
HOST = f"chat.{NAMESPACE}.svc"
SELECTOR = "fastgen.dev/deployment=chat,app.kubernetes.io/component=balancer"
MANIFEST: dict[str, Any] = {
    "apiVersion": "fastgen.dev/v1alpha1",
    "kind": "FastGenDeployment",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
        "engine": {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 8},
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi"},
            "limits": {"memory": "1536Mi"},
        },
        "scaling": {"mode": "Disabled"},
        "balancer": {
            "replicas": 1,
            "apiKeys": {"secretName": "keys"},
            "tls": {"secretName": "cert"},
        },
    },
}


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, 18098) as process:
        process.start()
        yield process


def certificate(folder: Path) -> Certificate:
    folder.mkdir()
    return make_certificate(folder, (f"DNS:{HOST}",))


def put_secret(operator: OperatorProcess, name: str, kind: str, data: dict[str, bytes]) -> None:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": kind,
        "data": encoded,
    }
    operator.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-",
                     stdin=json.dumps(secret))  # fmt: skip


def put_certificate(operator: OperatorProcess, made: Certificate) -> None:
    files = {"tls.crt": made.certificate.read_bytes(), "tls.key": made.key.read_bytes()}
    put_secret(operator, "cert", "kubernetes.io/tls", files)


def status(operator: OperatorProcess, made: Certificate, key: str) -> int | None:
    """Of a request for the models, to the Service by its own name; None: not trusted."""
    service = operator.get("service", "chat")["spec"]
    context = ssl.create_default_context(cafile=str(made.authority))
    url = f"https://{service['clusterIP']}:{service['ports'][0]['port']}/v1/models"
    headers = {"host": HOST, "authorization": f"Bearer {key}"}
    with httpx2.Client(verify=context, trust_env=False, timeout=10) as client:
        try:
            answer = client.get(url, headers=headers, extensions={"sni_hostname": HOST})
        except httpx2.ConnectError:
            return None
        return answer.status_code


def balancers(operator: OperatorProcess) -> list[tuple[str, list[int]]]:
    """The pods, and how often each of their containers was started anew."""
    pods = operator.get("pods", "-l", SELECTOR)["items"]
    return [
        (
            pod["metadata"]["uid"],
            [each["restartCount"] for each in pod["status"].get("containerStatuses", ())],
        )
        for pod in pods
    ]


def test_secrets_are_awaited_served_and_changed(operator: OperatorProcess, tmp_path: Path) -> None:
    operator.kubectl("apply", "-f", "-", stdin=json.dumps(MANIFEST))

    def is_told() -> bool:
        message = operator.condition("chat", "Ready").get("message", "")
        return "not found" in message and "spec.balancer.apiKeys" in message

    wait_until("the missing Secret is told", is_told, seconds=120)

    first, second = certificate(tmp_path / "first"), certificate(tmp_path / "second")
    put_secret(operator, "keys", "Opaque", {"alice": b"sk-alice-1"})
    put_certificate(operator, first)
    wait_until(
        "Ready", lambda: operator.condition("chat", "Ready").get("status") == "True", seconds=240
    )
    assert operator.get("fgd", "chat")["status"]["url"] == f"https://{HOST}/v1"
    assert status(operator, first, "sk-alice-1") == 200
    assert status(operator, first, "sk-bob-1") == 401
    before = balancers(operator)

    put_secret(operator, "keys", "Opaque", {"bob": b"sk-bob-1"})
    put_certificate(operator, second)
    wait_until("the new key", lambda: status(operator, second, "sk-bob-1") == 200, seconds=150)
    wait_until("no old key", lambda: status(operator, second, "sk-alice-1") == 401, seconds=30)
    assert status(operator, first, "sk-bob-1") is None, "signed by another authority"
    assert balancers(operator) == before, "nothing was restarted"
