"""The front of a running replica, looked at from outside: its log, its spans, what it loads."""

import json
import signal
from pathlib import Path

import grpc
import pytest
from collector import attributes, collecting
from replica_process import MODEL, ReplicaProcess, running_replica

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

MARKER = "unmistakable words"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def libraries(pid: int) -> set[str]:
    """Names of the files that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.rpartition("/")[2] for line in lines if "/" in line}


async def test_torch_is_in_the_engine_process_and_never_in_the_front(
    replica: ReplicaProcess,
) -> None:
    async with replica.openai() as client:
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=2
        )
    front, engine = libraries(replica.process.pid), libraries(replica.engine_pid())
    assert "libtorch_cpu.so" in engine
    assert not [name for name in front if "torch" in name or "triton" in name]
    assert any(name.startswith("tokenizers") for name in front)


async def test_a_request_has_one_line_with_its_seconds_and_none_of_its_words(
    replica: ReplicaProcess,
) -> None:
    begun = len(replica.events())
    async with replica.openai() as client:
        await client.completions.create(
            model=MODEL, prompt=f"{MARKER} {MARKER}", max_tokens=5,
            extra_headers={"x-request-id": "told-by-http"}, extra_body={"ignore_eos": True},
        )  # fmt: skip
    async with replica.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(request_id="told-by-grpc", text=MARKER)
        request.stopping.max_tokens = 3
        request.stopping.ignore_eos = True
        assert [response async for response in stub.Generate(request)]
        request.sampling.temperature = 9
        assert await stub.Generate(request).code() is grpc.StatusCode.INVALID_ARGUMENT
    lines = [event for event in replica.events()[begun:] if event["message"] == "request"]
    assert MARKER not in json.dumps(lines)
    by_http, by_grpc, refused = lines
    assert (by_http["request_id"], by_http["protocol"]) == ("told-by-http", "http")
    assert (by_http["end"], by_http["output_tokens"]) == ("completed", 5)
    assert by_http["finish_reasons"] == ["length"]
    assert (by_grpc["request_id"], by_grpc["protocol"]) == ("told-by-grpc", "grpc")
    phases = [by_http[f"{phase}_seconds"] for phase in ("queue", "prefill", "decode")]
    assert min(phases) >= 0
    assert sum(phases) <= by_http["total_seconds"] + 0.001
    assert (refused["end"], refused["error"].split()[0]) == ("invalid", "temperature")


async def test_a_drained_replica_has_sent_its_spans(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        with running_replica(smollm2_path, tmp_path, "--max-model-length=64") as replica:
            async with replica.openai() as client:
                await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=2,
                    extra_headers={"traceparent": TRACEPARENT},
                )  # fmt: skip
            replica.process.send_signal(signal.SIGTERM)
            assert replica.process.wait(20) == 0
    spans = {span.name: span for span in collector.spans()}
    assert spans.keys() == {f"chat {MODEL}", "queue", "prefill", "decode"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACEPARENT.split("-")[1]}
    told = attributes(spans[f"chat {MODEL}"].attributes)
    assert (told["gen_ai.usage.output_tokens"], told["fastgen.request.protocol"]) == (2, "http")
    assert collector.resource()["service.instance.id"] == "replica-under-test"
