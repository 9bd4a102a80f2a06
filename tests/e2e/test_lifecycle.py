"""The life of a FastGenDeployment on a real cluster, in the order in which a user lives it."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import openai
import pytest
from cluster_access import NAMESPACE, Kubernetes, wait_until
from streams import channel, chat
from traffic import run_traffic

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc
from fastgen_devcluster.demo.installation import SYSTEM_NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = "smollm2"
REPOSITORY = Path(__file__).resolve().parents[2]
KILL_ENGINE = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if b"fastgen_runtime.engine_main" in (process / "cmdline").read_bytes() and process.name != "1":
        os.kill(int(process.name), signal.SIGKILL)
"""


@pytest.fixture
def one_replica(deployment: Kubernetes) -> Iterator[Kubernetes]:
    """Starts and ends with one replica that nobody but the test scales."""
    yield deployment
    deployment.patch(NAME, {"scaling": {"mode": "Disabled"}, "replicas": 1})
    wait_until("one replica", lambda: deployment.is_settled(NAME, 1), seconds=180)


@pytest.fixture
def two_replicas(one_replica: Kubernetes) -> Kubernetes:
    """Two replicas that nobody but the test scales."""
    one_replica.kubectl("scale", "-n", NAMESPACE, "fgd", NAME, "--replicas=2")
    wait_until("two replicas", lambda: one_replica.is_settled(NAME, 2), seconds=180)
    return one_replica


def kill(kubernetes: Kubernetes, pod: dict[str, Any]) -> None:
    """Ends a replica with SIGKILL: its first process, or on a cluster elsewhere the engine.

    A signal from inside a container cannot kill its first process, but the engine's end is its end.
    """
    if kubernetes.cluster.is_own:
        name = pod["metadata"]["name"]
        kubernetes.kubectl("exec", "-n", NAMESPACE, name, "--", "python3", "-c", KILL_ENGINE)
    else:
        os.kill(process_of(pod), signal.SIGKILL)


def process_of(pod: dict[str, Any]) -> int:
    """The host's pid of a replica's first process."""
    uid = pod["metadata"]["uid"]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            inside = uid in (entry / "cgroup").read_text()
            command = (entry / "cmdline").read_bytes()
            status = (entry / "status").read_text()
        except OSError:
            continue
        namespace_pids = status.partition("NSpid:")[2].split("\n")[0].split()
        if inside and b"fastgen" in command and namespace_pids[-1:] == ["1"]:
            return int(entry.name)
    raise LookupError(f"no process of pod {uid}")


def restarts(kubernetes: Kubernetes) -> int:
    """How often the replicas' containers were started again."""
    return sum(
        state["restartCount"]
        for pod in kubernetes.replicas(NAME)
        for state in pod["status"].get("containerStatuses", [])
    )


def test_a_stream_of_a_killed_replica_ends_with_an_error(
    one_replica: Kubernetes, url: str, address: str
) -> None:
    victim, restarts_before = one_replica.replicas(NAME)[0], restarts(one_replica)
    request = inference_pb2.GenerateRequest(
        text="Once upon a time",
        sampling=inference_pb2.Sampling(temperature=0),
        stopping=inference_pb2.Stopping(max_tokens=1000, ignore_eos=True),
    )
    with channel(address) as stubs:
        over_grpc = inference_pb2_grpc.InferenceServiceStub(stubs).Generate(request)
        over_http = iter(chat(url, NAME, "Tell a very long story.", max_tokens=1000, temperature=0))
        assert next(over_grpc).text
        assert next(over_http).choices
        kill(one_replica, victim)
        with pytest.raises(grpc.RpcError):
            list(over_grpc)
        # Cut without [DONE]: a client must not take a part for the whole.
        with pytest.raises((httpx2.HTTPError, openai.APIError)):
            list(over_http)
    wait_until(
        "the container restarted", lambda: restarts(one_replica) > restarts_before, seconds=60
    )


async def test_a_killed_replica_breaks_only_its_own_streams(
    two_replicas: Kubernetes, url: str
) -> None:
    victim = two_replicas.replicas(NAME)[0]
    name, restarts_before = victim["metadata"]["name"], restarts(two_replicas)
    async with run_traffic(url, NAME, streams=6) as traffic:
        await asyncio.sleep(8)
        streaming = [a for a in traffic.answers if a.started and not a.finished]
        kill(two_replicas, victim)
        await asyncio.sleep(12)
        served_after = {answer.replica for answer in traffic.answers[-6:]}
    assert {answer.replica for answer in traffic.broken} <= {name}
    refused = [answer for answer in traffic.failed if not answer.started]
    assert {answer.status for answer in refused} <= {503}
    # A container that was killed before, too, is started again only after a while.
    wait_until(
        "the container restarted", lambda: restarts(two_replicas) > restarts_before, seconds=60
    )
    assert {a.finished for a in streaming if a.replica not in (name, None)} <= {True}
    assert served_after - {name, None}
    assert len(traffic.failed) < len(traffic.answers) / 2


async def test_a_rolling_update_under_load_breaks_no_stream(
    one_replica: Kubernetes, url: str
) -> None:
    before = {pod["metadata"]["uid"] for pod in one_replica.replicas(NAME)}
    async with run_traffic(url, NAME, streams=3) as traffic:
        await asyncio.sleep(3)
        one_replica.patch(NAME, {"engine": {"maxConcurrentRequests": 7}})
        await asyncio.to_thread(
            wait_until,
            "every replica replaced",
            lambda: (
                one_replica.is_settled(NAME, 1)
                and before.isdisjoint(p["metadata"]["uid"] for p in one_replica.replicas(NAME))
            ),
            240,
        )
        await asyncio.sleep(3)
    assert traffic.failed == []
    assert len({answer.replica for answer in traffic.answers}) == 2


async def test_load_scales_up_and_its_end_scales_down(one_replica: Kubernetes, url: str) -> None:
    scaling = {
        "mode": "Auto",
        "minReplicas": 1,
        "maxReplicas": 2,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 20}},
    }
    one_replica.patch(NAME, {"scaling": scaling})

    def ready_replicas() -> int:
        return int(one_replica.get("fgd", NAME)["status"].get("readyReplicas", 0))

    async with run_traffic(url, NAME, streams=24, max_tokens=48) as traffic:
        await asyncio.to_thread(wait_until, "a second replica", lambda: ready_replicas() == 2, 240)
        decision = one_replica.get("fgd", NAME)["status"]["lastDecision"]
        assert decision["replicas"] == 2
        assert decision["rule"]
        assert decision["message"]
    assert not traffic.broken
    await asyncio.to_thread(
        wait_until, "one replica again", lambda: one_replica.is_settled(NAME, 1), 240
    )
    events = one_replica.get("events", "--field-selector", f"involvedObject.name={NAME}")["items"]
    assert {"ScaledUp", "ScaledDown"} <= {event["reason"] for event in events}


def test_a_model_that_does_not_exist_is_told(
    deployment: Kubernetes, example: dict[str, Any]
) -> None:
    manifest = json.loads(json.dumps(example)) | {"metadata": {"name": "absent"}}
    manifest["spec"]["model"] = {"source": "file:///models/absent.gguf"}
    deployment.apply(manifest)
    try:
        found = wait_until(
            "ModelReady=False",
            lambda: (
                (c := deployment.condition("absent", "ModelReady")).get("status") == "False"
                and c["reason"] == "ModelNotFound"
                and c
            ),
            seconds=120,
        )
        assert "/models/absent.gguf" in found["message"]
    finally:
        deployment.kubectl("delete", "-n", NAMESPACE, "fgd", "absent", "--wait")


def test_helm_test_sends_a_real_request(deployment: Kubernetes) -> None:
    release = ("fastgen", "--namespace", SYSTEM_NAMESPACE)
    target = f"test.deployment={NAME},test.namespace={NAMESPACE}"
    chart = str(REPOSITORY / "charts/fastgen")
    deployment.helm(
        "upgrade", *release[:1], chart, *release[1:], "--reuse-values", "--wait", "--set", target
    )
    report = deployment.helm("test", *release, "--logs", "--timeout", "2m")
    assert "Succeeded" in report


def test_kopf_leaves_no_mark(deployment: Kubernetes) -> None:
    resource = deployment.get("fgd", NAME)
    assert "finalizers" not in resource["metadata"]
    assert not [key for key in resource["metadata"].get("annotations", {}) if "kopf" in key]


def test_deletion_needs_no_operator(deployment: Kubernetes) -> None:
    operator = ("-n", SYSTEM_NAMESPACE, "deployment", "fastgen")
    deployment.kubectl("scale", *operator, "--replicas=0")
    pods = ("pods", "-n", SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/name=fastgen-operator")
    try:
        wait_until(
            "no operator", lambda: not deployment.kubectl("get", *pods, "-o", "name"), seconds=60
        )
        deployment.kubectl("delete", "-n", NAMESPACE, "fgd", NAME, "--wait", "--timeout=60s")
        kinds = "deployments,replicasets,pods,services,configmaps,serviceaccounts"
        selector = f"fastgen.dev/deployment={NAME}"
        wait_until(
            "every child gone",
            lambda: deployment.get(f"{kinds},roles,rolebindings", "-l", selector)["items"] == [],
            seconds=180,
        )
    finally:
        deployment.kubectl("scale", *operator, "--replicas=1")
