"""What the balancer reads: Kubernetes objects, arguments, bodies, log entries, its own files."""

import json
from pathlib import Path
from typing import Any

import pytest
from envoy.service.accesslog.v3 import als_pb2
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.spec import parse
from fastgen_api.v1 import inference_pb2 as pb
from fastgen_balancer import estimate
from fastgen_balancer.access_log import read_batch
from fastgen_balancer.endpoint_files import read_endpoints, write_endpoints, write_file
from fastgen_balancer.endpoints import (
    Endpoint,
    Slice,
    SliceConditions,
    SliceEndpoint,
    SlicePort,
    SliceTarget,
    merge,
    parse_static,
)
from fastgen_balancer.envoy_clusters import GRPC_CLUSTER, cluster_name, file_name
from fastgen_balancer.envoy_config import Addresses, bootstrap
from fastgen_balancer.estimate import (
    HIGHEST_TOKENS_PER_BYTE,
    LOWEST_TOKENS_PER_BYTE,
    MalformedBodyError,
    Size,
    learn,
    read,
    read_grpc,
    read_http,
    tokens_of,
)
from fastgen_balancer.exchange import is_generation
from fastgen_balancer.pick import Refusal
from fastgen_balancer.refusal import immediate_response
from fastgen_balancer.settings import settings_of

READY = SliceConditions(ready=True, serving=True, terminating=False)


def slice_endpoint(
    name: str, conditions: SliceConditions = READY, address: str = "10.0.0.1"
) -> SliceEndpoint:
    return SliceEndpoint((address,), conditions, SliceTarget("Pod", name))


def test_endpoints_come_from_slices_and_leave_with_their_pods() -> None:
    ports = (SlicePort("http", 8100), SlicePort("grpc", 9100))
    ending = SliceConditions(ready=False, serving=True, terminating=True)
    slices = [
        Slice(ports, (slice_endpoint("b"), slice_endpoint("a", address="10.0.0.2"))),
        Slice(ports, (slice_endpoint("c", ending), slice_endpoint("d", SliceConditions(False)))),
        Slice((), (slice_endpoint("e"), slice_endpoint("gone"), SliceEndpoint(("10.0.0.9",)))),
    ]
    pods = {"a": False, "b": True, "c": True, "d": False, "e": False}
    assert merge(slices, pods) == (
        Endpoint("a", "10.0.0.2", 8100, 9100),
        Endpoint("b", "10.0.0.1", 8100, 9100, terminating=True),
        Endpoint("c", "10.0.0.1", 8100, 9100, terminating=True),
        Endpoint("e", "10.0.0.1", 8000, 9000),
        Endpoint("gone", "10.0.0.1", 8000, 9000, terminating=True),
    )


def test_static_endpoints() -> None:
    assert parse_static("127.0.0.1:80:90") == Endpoint("127.0.0.1:80", "127.0.0.1", 80, 90)
    six = parse_static("[::1]:80:90")
    assert (six.host, six.http_address, six.grpc_address) == ("::1", "[::1]:80", "[::1]:90")
    for wrong in ("", "host", "host:1", "host:a:1", ":1:2", "host:0:1", "host:1:65536", "[::1:1:2"):
        with pytest.raises(ValueError, match=r"HOST:HTTP_PORT:GRPC_PORT|between 1 and 65535"):
            parse_static(wrong)


def test_endpoint_files_are_written_when_they_change(tmp_path: Path) -> None:
    endpoints = (Endpoint("a", "10.0.0.1", 8000, 9000), Endpoint("b", "::1", 8000, 9000, True))
    assert read_endpoints(tmp_path, "chat") == ()
    assert write_endpoints(tmp_path, "chat", endpoints)
    assert not write_endpoints(tmp_path, "chat", endpoints)
    assert read_endpoints(tmp_path, "chat") == endpoints
    grpc = json.loads((tmp_path / file_name(cluster_name(GRPC_CLUSTER, "chat"))).read_bytes())
    (group,) = grpc["resources"][0]["endpoints"]
    assert [e["health_status"] for e in group["lb_endpoints"]] == ["HEALTHY", "DRAINING"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "endpoints.chat.json",
        "replicas-grpc.chat.json",
        "replicas-http.chat.json",
    ]
    (tmp_path / "endpoints.chat.json").write_bytes(b"{")
    assert read_endpoints(tmp_path, "chat") == ()


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_file(tmp_path / "x", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_envoy_listens_on_loopback_but_for_its_listener() -> None:
    config = bootstrap(Addresses("0.0.0.0", 1, 2, 3), "/run")
    listener = config["static_resources"]["listeners"][0]
    assert listener["address"]["socket_address"] == {"address": "0.0.0.0", "port_value": 1}
    assert config["admin"]["address"]["socket_address"] == {
        "address": "127.0.0.1",
        "port_value": 3,
    }
    assert json.dumps(config).count('"0.0.0.0"') == 1


def test_sizes_of_bodies() -> None:
    body = b'{"model": "m", "prompt": "hello", "max_tokens": 7}'
    assert read_http(body).size == Size(len(body), None, 7)
    assert read_http(b'{"max_tokens": 7, "max_completion_tokens": 9}').size.max_output_tokens == 9
    for odd in (b"", b"{", b"[]", b'{"max_tokens": "many"}', b"\xff\xfe"):
        assert read_http(odd).size == Size(len(odd))
    request = pb.GenerateRequest(text="hello", stopping=pb.Stopping(max_tokens=5))
    framed = frame(request.SerializeToString())
    assert read_grpc(framed).size == Size(len(framed), None, 5)
    ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2, 3]))
    assert read_grpc(frame(ids.SerializeToString())).size.prompt_tokens == 3
    assert read_grpc(frame(b"\xff\xff", compressed=1)).size == Size(7), "the replica's to open"


def test_each_choice_counts_its_output() -> None:
    several = pb.GenerateRequest(
        text="hello", sampling=pb.Sampling(n=3), stopping=pb.Stopping(max_tokens=5)
    )
    assert read_grpc(frame(several.SerializeToString())).size.num_choices == 3
    size = read_http(b'{"max_tokens": 5, "n": 3}').size
    assert tokens_of(size, 0.0) == 15
    assert read_http(b'{"n": -4}').size.num_choices == 1
    for prompt, n, num_choices in (
        ('"a b"', 1, 1), ("[1, 2, 3]", 2, 2), ('["a", "b", "c"]', 1, 3), ("[[1, 2], [3]]", 4, 8),
        (json.dumps(["a"] * 1000), 1, 256), ("[]", 3, 3), ("5", 2, 2), ('{"a": 1}', 2, 2),
    ):  # fmt: skip
        body = f'{{"prompt": {prompt}, "n": {n}}}'.encode()
        assert read_http(body).size.num_choices == num_choices
    assert read_http(b'{"n": 1000000}').size.num_choices == 128


def frame(message: bytes, compressed: int = 0) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\0",
        frame(b"\xff\xff\xff"),
        frame(b"\x0a\x02\xff\xfe"),
        frame(b"", compressed=2),
        frame(b"") + b"\0",
        frame(b"") * 2,
        frame(b"\x0a\x01a")[:-1],
    ],
)
def test_a_grpc_body_that_no_replica_could_read(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        read(body, is_grpc=True)


def test_json_too_deep_to_be_read_counts_by_its_bytes() -> None:
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert read_http(deep).size == Size(len(deep))


def test_no_error_of_an_estimate_gets_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_(_: bytes) -> Size:
        raise OverflowError

    monkeypatch.setattr(estimate, "read_http", break_)
    assert read(b"{}", is_grpc=False).size == Size(2)


def test_a_batch_of_the_access_log_that_does_not_read_is_empty() -> None:
    batch = als_pb2.StreamAccessLogsMessage()
    batch.http_logs.log_entry.add().request.request_id = "id"
    data = batch.SerializeToString()
    assert read_batch(data) == batch
    assert read_batch(data.replace(b"id", b"\xff\xfe")) == als_pb2.StreamAccessLogsMessage()


@given(
    st.builds(
        Size,
        prompt_bytes=st.integers(0, 10**7),
        prompt_tokens=st.none() | st.integers(0, 10**6),
        max_output_tokens=st.none() | st.integers(-(2**31), 2**31),
    ),
    st.lists(st.integers(0, 10**7), max_size=30),
)
def test_estimates_stay_sane(size: Size, seen: list[int]) -> None:
    ratio = 0.25
    for tokens in seen:
        ratio = learn(ratio, size, tokens)
    assert LOWEST_TOKENS_PER_BYTE <= ratio <= HIGHEST_TOKENS_PER_BYTE
    assert tokens_of(size, ratio) >= 1


def test_the_ratio_follows_the_model() -> None:
    ratio = 0.25
    for _ in range(100):
        ratio = learn(ratio, Size(4000), 2000)
    assert ratio == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("method", "path", "is_grpc", "generates"),
    [
        ("POST", "/v1/chat/completions", False, True),
        ("POST", "/v1/completions?x=1", False, True),
        ("GET", "/v1/models", False, False),
        ("POST", "/fastgen.v1.InferenceService/Generate", True, True),
        ("POST", "/fastgen.v1.InferenceService/GetLoad", True, False),
        ("POST", "/grpc.health.v1.Health/Check", True, False),
    ],
)
def test_what_occupies_an_engine(method: str, path: str, is_grpc: bool, generates: bool) -> None:
    assert is_generation(method, path, is_grpc) == generates


@pytest.mark.parametrize("refusal", list(Refusal))
def test_refusals_speak_both_languages(refusal: Refusal) -> None:
    http = immediate_response(refusal, is_grpc=False)
    error = json.loads(http.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not http.HasField("grpc_status")
    grpc = immediate_response(refusal, is_grpc=True)
    assert grpc.grpc_status.status in (3, 4, 5, 8, 9, 14)
    assert grpc.body.decode() == error["message"]
    for response in (http, grpc):
        headers = {h.header.key: h.header.raw_value for h in response.headers.set_headers}
        final = (
                Refusal.TOO_LARGE, Refusal.MALFORMED, Refusal.QUARANTINED, Refusal.UNKNOWN_MODEL,
                Refusal.MISSING_MODEL,
            )  # fmt: skip
        assert ("retry-after" in headers) == (refusal not in final)
    told = immediate_response(refusal, is_grpc=True, retry_after_seconds=41)
    headers = {h.header.key: h.header.raw_value for h in told.headers.set_headers}
    assert headers["retry-after"] == b"41"
    assert headers.get("grpc-retry-pushback-ms") == (None if refusal in final else b"41000")


def test_settings_divide_the_queue_among_the_pods() -> None:
    spec = parse(
        {
            "model": {"source": "file:///m"},
            "balancer": {"replicas": 3, "maxQueuedRequests": 100},
            "engine": {"maxConcurrentRequests": 16},
            "slo": {"timeToFirstToken": {"milliseconds": 500}},
            "rollout": {"drainSeconds": 60},
        }
    )
    settings = settings_of(spec, max_wait_seconds=7)
    assert settings.max_queued_requests == 34
    assert settings.max_concurrent_requests == 16
    assert settings.ttft_seconds == 0.5
    assert settings.drain_seconds == 60
    assert settings.max_wait_seconds == 7
    assert settings.prefers_prefix
    assert settings_of(parse({"model": {"source": "file:///m"}})).ttft_seconds is None


def test_affinity_needs_a_prefix_cache() -> None:
    def prefers_prefix(**fields: Any) -> bool:
        return settings_of(parse({"model": {"source": "file:///m"}} | fields)).prefers_prefix

    assert prefers_prefix()
    assert not prefers_prefix(balancer={"routing": "LeastTokens"})
    assert not prefers_prefix(engine={"prefixCaching": False})
