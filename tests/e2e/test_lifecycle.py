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
from greedy_reference import PROMPTS, greedy_texts
from traffic import run_traffic

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc
from fastgen_devcluster.demo.installation import SYSTEM_NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = "smollm2"
REPOSITORY = Path(__file__).resolve().parents[2]
GREEDY_TOKENS = 32


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


def chat(url: str, prompt: str, **options: Any) -> openai.Stream[Any]:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    return client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": prompt}], stream=True, **options
    )


def channel(url: str) -> grpc.Channel:
    """A gRPC channel to the same address as the OpenAI API."""
    host = url.removeprefix("http://").removesuffix("/v1")
    return grpc.insecure_channel(f"{host}:80")


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


def test_the_openai_client_streams_an_answer(url: str) -> None:
    chunks = list(chat(url, "Say hello.", max_tokens=16, temperature=0))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip()
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_grpc_streams_the_same_answer(url: str) -> None:
    request = inference_pb2.GenerateRequest(
        chat=inference_pb2.Chat(
            messages=[inference_pb2.ChatMessage(role="user", content="Say hello.")]
        ),
        sampling=inference_pb2.Sampling(temperature=0),
        stopping=inference_pb2.Stopping(max_tokens=16),
    )
    with channel(url) as stubs:
        replies = list(inference_pb2_grpc.InferenceServiceStub(stubs).Generate(request))
    assert replies[-1].usage.output_tokens > 0
    over_http = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in chat(url, "Say hello.", max_tokens=16, temperature=0)
    )
    assert "".join(reply.text for reply in replies) == over_http


def test_greedy_text_equals_transformers(url: str, smollm2_path: Path) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    served = [
        client.completions.create(
            model=NAME, prompt=prompt, max_tokens=GREEDY_TOKENS, temperature=0
        )
        .choices[0]
        .text
        for prompt in PROMPTS
    ]
    assert served == greedy_texts(smollm2_path, PROMPTS, GREEDY_TOKENS)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": 9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": "hello"}, "messages"),
        ({"temprature": 0.5}, "temprature"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
    ],
)
def test_a_bad_request_is_told_its_field(url: str, body: dict[str, Any], field: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    good = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    with pytest.raises(openai.BadRequestError, match=field):
        client.post("/chat/completions", body=good | body, cast_to=object)


def test_a_bad_grpc_request_is_told_its_field(url: str) -> None:
    request = inference_pb2.GenerateRequest(
        text="Hi", sampling=inference_pb2.Sampling(temperature=9)
    )
    with channel(url) as stubs, pytest.raises(grpc.RpcError) as caught:
        list(inference_pb2_grpc.InferenceServiceStub(stubs).Generate(request))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "temperature" in caught.value.details()


def test_a_stream_of_a_killed_replica_ends_with_an_error(one_replica: Kubernetes, url: str) -> None:
    victim = one_replica.replicas(NAME)[0]
    request = inference_pb2.GenerateRequest(
        text="Once upon a time",
        sampling=inference_pb2.Sampling(temperature=0),
        stopping=inference_pb2.Stopping(max_tokens=1000, ignore_eos=True),
    )
    with channel(url) as stubs:
        over_grpc = inference_pb2_grpc.InferenceServiceStub(stubs).Generate(request)
        over_http = iter(chat(url, "Tell a very long story.", max_tokens=1000, temperature=0))
        assert next(over_grpc).text
        assert next(over_http).choices
        os.kill(process_of(victim), signal.SIGKILL)
        with pytest.raises(grpc.RpcError):
            list(over_grpc)
        # Cut without [DONE]: a client must not take a part for the whole.
        with pytest.raises((httpx2.HTTPError, openai.APIError)):
            list(over_http)
    wait_until("the container restarted", lambda: restarts(one_replica) >= 1, seconds=60)


async def test_a_killed_replica_breaks_only_its_own_streams(
    two_replicas: Kubernetes, url: str
) -> None:
    victim = two_replicas.replicas(NAME)[0]
    name = victim["metadata"]["name"]
    async with run_traffic(url, NAME, streams=6) as traffic:
        await asyncio.sleep(8)
        os.kill(process_of(victim), signal.SIGKILL)
        await asyncio.sleep(12)
        served_after = {answer.replica for answer in traffic.answers[-6:]}
    assert {answer.replica for answer in traffic.broken} <= {name}
    refused = [answer for answer in traffic.failed if not answer.started]
    assert {answer.status for answer in refused} <= {503}
    assert restarts(two_replicas) >= 1
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


def test_deletion_needs_no_operator(deployment: Kubernetes, example: dict[str, Any]) -> None:
    system = ("-n", SYSTEM_NAMESPACE)
    deployment.kubectl("scale", *system, "deployment", "fastgen", "--replicas=0")
    deployment.kubectl("wait", *system, "pod", "--all", "--for=delete", "--timeout=60s")
    deployment.kubectl("delete", "-n", NAMESPACE, "fgd", NAME, "--wait", "--timeout=60s")
    kinds = "deployments,replicasets,pods,services,configmaps,serviceaccounts,roles,rolebindings"
    selector = f"fastgen.dev/deployment={NAME}"
    wait_until(
        "every child gone",
        lambda: deployment.get(kinds, "-l", selector)["items"] == [],
        seconds=180,
    )
    deployment.kubectl("scale", *system, "deployment", "fastgen", "--replicas=1")
