"""What is told of a request that has ended: its log line, its metrics, its spans."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from collector import attributes, collecting
from prometheus_client.parser import text_string_to_metric_families

from fastgen_api.names import Outcome
from fastgen_api.spec import SLO
from fastgen_runtime.front.finished import FinishedRequest
from fastgen_runtime.front.goodness import End
from fastgen_runtime.front.metrics import Metrics
from fastgen_runtime.front.request_log import log_request
from fastgen_runtime.front.tracing import start_tracing

DONE = FinishedRequest(
    request_id="r-1", protocol="http", model="llama", end=End.COMPLETED, outcome=Outcome.GOOD,
    num_choices=2, prompt_tokens=100, cached_tokens=64, output_tokens=20, received=1_000.5,
    waited_seconds=0.25, total_seconds=2.0, queue_seconds=0.5, prefill_seconds=0.25,
    decode_seconds=1.00001, finish_reasons=("stop", "length"), is_chat=True,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)  # fmt: skip
REFUSED = replace(
    DONE, end=End.REFUSED, outcome=Outcome.REFUSED, queue_seconds=None, prefill_seconds=None,
    decode_seconds=None, finish_reasons=(), error="9 requests are open", num_choices=1,
    traceparent=None, is_chat=False,
)  # fmt: skip


def test_a_request_is_one_line_with_its_phases(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "fastgen"):
        log_request(DONE)
        log_request(REFUSED)
    done, refused = (vars(record) for record in caplog.records)
    assert (done["message"], done["request_id"], done["outcome"]) == ("request", "r-1", "good")
    assert done["finish_reasons"] == ("stop", "length")
    assert (done["queue_seconds"], done["decode_seconds"]) == (0.5, 1.0)
    assert refused["error"] == "9 requests are open"
    assert "queue_seconds" not in refused
    assert "error" not in done


def test_phases_and_ends_are_counted() -> None:
    metrics = Metrics("d", "n", SLO())
    for request in (DONE, DONE, REFUSED):
        metrics.note_request(request)
    text = metrics.render().decode()
    labels = 'deployment="d",deployment_namespace="n"'
    assert f'fastgen_request_ends_total{{{labels},end="completed"}} 2.0' in text
    assert f'fastgen_request_ends_total{{{labels},end="refused"}} 1.0' in text
    assert f"fastgen_request_queue_seconds_count{{{labels}}} 2.0" in text
    assert f"fastgen_request_prefill_seconds_sum{{{labels}}} 0.5" in text


def test_every_series_is_on_the_page_of_observability() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    exposition = Metrics("d", "n", SLO()).render().decode()
    for family in text_string_to_metric_families(exposition):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}`" in page or f"`{name}{{" in page


async def test_a_span_tells_the_phases_under_the_callers_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=blue")
        spans = start_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "set"}, "pod-1", "llama", "team")
        assert spans is not None
        spans(DONE)
        spans(REFUSED)
        await spans.close(10)
    names = {span.name: span for span in collector.spans()}
    chat, refused = names["chat llama"], names["text_completion llama"]
    assert chat.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert chat.parent_span_id.hex() == "b7ad6b7169203331"
    assert chat.kind == chat.SPAN_KIND_SERVER
    assert chat.end_time_unix_nano - chat.start_time_unix_nano == 2_000_000_000
    told = attributes(chat.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.response.finish_reasons"] == ["stop", "length"]
    assert told["gen_ai.usage.input_tokens"] == 100
    assert told["gen_ai.usage.cache_read.input_tokens"] == 64
    assert told["gen_ai.request.choice.count"] == 2
    assert "error.type" not in told
    begun = chat.start_time_unix_nano
    for name, seconds in (("queue", 0.5), ("prefill", 0.25), ("decode", 1.00001)):
        assert names[name].parent_span_id == chat.span_id
        assert names[name].start_time_unix_nano == begun
        begun += round(seconds * 1e9)
        assert names[name].end_time_unix_nano == begun
    assert refused.status.code == refused.status.STATUS_CODE_ERROR
    assert refused.status.message == "9 requests are open"
    assert attributes(refused.attributes)["error.type"] == "refused"
    assert collector.resource().items() >= {
        "service.name": "fastgen-runtime", "service.instance.id": "pod-1",
        "fastgen.deployment": "llama", "k8s.namespace.name": "team", "team": "blue",
    }.items()  # fmt: skip


async def test_a_request_that_its_caller_does_not_sample_has_no_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert DONE.traceparent is not None
    unsampled = DONE.traceparent.removesuffix("01") + "00"
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        spans = start_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "set"}, "pod", "", "")
        assert spans is not None
        spans(replace(DONE, traceparent=unsampled))
        spans(replace(DONE, traceparent="nonsense", request_id="kept"))
        await spans.close(10)
    (span,) = (span for span in collector.spans() if span.name == "chat llama")
    assert attributes(span.attributes)["fastgen.request.id"] == "kept"
    assert not span.parent_span_id


async def test_a_collector_that_fails_is_told_once_and_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        collector.status = 400
        spans = start_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "set"}, "pod", "", "")
        assert spans is not None
        with caplog.at_level("INFO"):
            for _ in range(3):
                spans(REFUSED)
                assert await asyncio.to_thread(collector.answered.acquire, timeout=10)
            collector.status = 200
            spans(REFUSED)
            await spans.close(10)
    messages = [record.message for record in caplog.records]
    assert messages == [
        "spans cannot be sent to the collector, and are lost until it answers",
        "spans are sent to the collector again",
    ]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ],
)
def test_without_a_collector_nothing_of_opentelemetry_is_loaded(
    environment: dict[str, str],
) -> None:
    program = (
        "import json, sys; from fastgen_runtime.front.tracing import start_tracing; "
        "assert start_tracing(json.loads(sys.argv[1]), 'pod', '', '') is None; "
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, json.dumps(environment)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ("no spans are sent" in ended.stderr) == ("OTEL_EXPORTER_OTLP_PROTOCOL" in environment)
