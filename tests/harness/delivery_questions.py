"""What tests of model delivery ask, and a hub and an operator for them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_access import wait_until
from hub_server import TOKEN, HubServer, serving_hub
from operator_process import OperatorProcess, operator_in
from tiny_model import write_tiny_model

from fastgen_devcluster import Cluster
from fastgen_devcluster.images import build_images

SMALL = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
ENGINE = {"dtype": "Float32", "maxModelLength": 64, "maxConcurrentRequests": 2}
SOURCE = "hf://test/tiny"
SECRET = {"name": "hf", "key": "token"}
LOCAL = {"type": "PersistentVolumeClaim", "size": "1Gi", "retentionPolicy": "Delete"}
WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@contextmanager
def hub_for_pods(folder: Path) -> Iterator[HubServer]:
    """A private repository of some megabytes, where pods can reach it."""
    host = Cluster.current().host_address
    if host is None:
        pytest.skip("only the development cluster reaches this machine")
    write_tiny_model(folder, hidden_size=256, intermediate_size=512, num_hidden_layers=4)
    with serving_hub(folder, host=host, known_as=host) as server:
        server.is_private = True
        yield server


@contextmanager
def delivering_operator(
    namespace: str, folder: Path, hub: HubServer, port: int
) -> Iterator[OperatorProcess]:
    """An operator in a namespace that holds the hub's token."""
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(namespace, folder, images, port) as operator:
        set_token(operator, TOKEN)
        start(operator, hub)
        yield operator


def start(operator: OperatorProcess, hub: HubServer) -> None:
    """Its downloads give a silent connection up after some seconds."""
    patience = {"FASTGEN_DOWNLOAD_STALL_SECONDS": "8"}
    settings = {"FASTGEN_DOWNLOAD_ENVIRONMENT": json.dumps(patience)}
    operator.start({"FASTGEN_HUB_ENDPOINT": hub.url} | settings)


def set_token(operator: OperatorProcess, token: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET["name"]},
              "stringData": {SECRET["key"]: token}}  # fmt: skip
    operator.kubectl("apply", "-f", "-", stdin=json.dumps(secret))


def create(
    operator: OperatorProcess, name: str, model: dict[str, Any], replicas: int = 0, **more: Any
) -> None:
    """A FastGenDeployment of the hub's model, by default without replicas.

    more: further fields of the spec.
    """
    mode = {"mode": "Disabled", "maxReplicas": max(1, replicas)}
    operator.create(
        name,
        model={"source": SOURCE, "tokenSecretRef": SECRET} | model,
        replicas=replicas,
        resources=SMALL,
        engine=ENGINE,
        scaling=mode,
        **more,
    )


def delete(operator: OperatorProcess, *names: str, wait: bool = True) -> None:
    how = ("--wait", "--cascade=foreground") if wait else ("--wait=false",)
    operator.kubectl("delete", "fgd", *names, *how)


def ready(operator: OperatorProcess, name: str) -> dict[str, Any]:
    return operator.condition(name, "Ready")


def is_ready(operator: OperatorProcess, name: str) -> bool:
    found = operator.get("fgd", name)
    conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
    return bool(
        conditions.get("Ready", {}).get("status") == "True"
        and found["status"]["observedGeneration"] == found["metadata"]["generation"]
    )


def model_of(operator: OperatorProcess, name: str) -> dict[str, Any]:
    found: dict[str, Any] = operator.get("fgd", name).get("status", {}).get("model", {})
    return found


def pods(operator: OperatorProcess, name: str, component: str = "replica") -> dict[str, Any]:
    """Pods that are not going away, by name."""
    selector = f"fastgen.dev/deployment={name},app.kubernetes.io/component={component}"
    found = operator.get("pods", "-l", selector)["items"]
    return {each["metadata"]["name"]: each for each in found
            if "deletionTimestamp" not in each["metadata"]}  # fmt: skip


def scale(operator: OperatorProcess, name: str, replicas: int) -> None:
    operator.kubectl("scale", "fgd", name, f"--replicas={replicas}")
    wait_until(
        f"{replicas} replicas of {name}",
        lambda: len(pods(operator, name)) == replicas,
        seconds=120,
    )


def wait_for_message(operator: OperatorProcess, name: str, words: str, seconds: float) -> Any:
    return wait_until(
        f"{words!r} in the condition Ready of {name}",
        lambda: words in ready(operator, name).get("message", "") and ready(operator, name),
        seconds=seconds,
    )


def wait_until_delivered(operator: OperatorProcess, name: str) -> None:
    wait_until(
        f"the model of {name} is there",
        lambda: model_of(operator, name).get("downloadedPercent") == 100,
        seconds=120,
    )


def sent(hub: HubServer) -> float:
    """How many times the weights were sent."""
    size = sum((hub.folder / name).stat().st_size for name in WEIGHTS)
    return sum(hub.sent_bytes[name] for name in WEIGHTS) / size
