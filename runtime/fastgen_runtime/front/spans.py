"""Requests as OpenTelemetry spans, with the GenAI conventions' attributes.

Names: open-telemetry/semantic-conventions-genai, docs/gen-ai/client-inference.md (status:
Development); what it has no name for is under `fastgen.`.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from fastgen_runtime.front.finished import FinishedRequest
from fastgen_runtime.front.goodness import End
from fastgen_runtime.log import log_event, log_problem

_SERVICE: Final = "fastgen-runtime"
_PROVIDER: Final = "fastgen"
_NANOSECONDS: Final = 1_000_000_000
_ERRORS: Final = (End.DEADLINE, End.REFUSED, End.FAILED)
"""Ends that are the server's: a client's own error or leaving makes no failed span."""


class ToldOnce(SpanExporter):
    """Tells that the collector does not answer once, not with every batch that it misses."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_failing = False
        # What the library logs of every attempt says nothing more.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            log_problem("spans cannot be sent to the collector, and are lost until it answers")
        elif self._is_failing and not is_failing:
            log_event("spans are sent to the collector again")
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Spans:
    """Makes a span of each request that has ended; a thread of its own sends them in batches."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("fastgen_runtime")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def exported(cls, replica: str, deployment: str, namespace: str) -> "Spans":
        """Sent where the OTEL_EXPORTER_OTLP_… variables say; OTEL_… ones set all the rest."""
        ours = {
            "service.name": _SERVICE,
            "service.instance.id": replica,
            "fastgen.deployment": deployment,
            "k8s.namespace.name": namespace,
        }
        resource = Resource.create().merge(Resource({k: v for k, v in ours.items() if v}))
        # The environment's word counts more than ours.
        resource = resource.merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(ToldOnce(OTLPSpanExporter())))
        return cls(provider)

    def __call__(self, request: FinishedRequest) -> None:
        """Makes the request's span and one for each phase that it came to."""
        parent = None
        if request.traceparent is not None:
            parent = self._propagator.extract({"traceparent": request.traceparent})
        begun = round(request.received * _NANOSECONDS)
        span = self._tracer.start_span(
            f"{_operation(request)} {request.model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(request),
            start_time=begun,
        )
        if span.is_recording():
            if request.end in _ERRORS:
                span.set_status(Status(StatusCode.ERROR, request.error))
            self._add_phases(request, span, begun)
        span.end(begun + round(request.total_seconds * _NANOSECONDS))

    def _add_phases(self, request: FinishedRequest, span: trace.Span, begun: int) -> None:
        context = trace.set_span_in_context(span)
        phases = (
            ("queue", request.queue_seconds),
            ("prefill", request.prefill_seconds),
            ("decode", request.decode_seconds),
        )
        for name, seconds in phases:
            if seconds is None:
                return
            ended = begun + round(seconds * _NANOSECONDS)
            self._tracer.start_span(name, context=context, start_time=begun).end(ended)
            begun = ended

    async def close(self, seconds: float) -> None:
        """Sends what is left, for at most so long; a collector that hangs keeps nobody waiting."""
        loop = asyncio.get_running_loop()
        sent = asyncio.Event()

        def send() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=send, daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await sent.wait()


def _operation(request: FinishedRequest) -> str:
    return "chat" if request.is_chat else "text_completion"


def _attributes(request: FinishedRequest) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": _operation(request),
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": request.model,
        "gen_ai.response.model": request.model,
        "gen_ai.response.finish_reasons": request.finish_reasons,
        "gen_ai.usage.input_tokens": request.prompt_tokens,
        "gen_ai.usage.output_tokens": request.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": request.cached_tokens,
        "fastgen.request.id": request.request_id,
        "fastgen.request.protocol": request.protocol,
        "fastgen.request.waited_seconds": request.waited_seconds,
        "fastgen.request.end": request.end.value,
        "fastgen.request.outcome": str(request.outcome),
    }
    if request.num_choices != 1:
        attributes["gen_ai.request.choice.count"] = request.num_choices
    if request.end in _ERRORS or request.end is End.INVALID:
        attributes["error.type"] = request.end.value
    return attributes
