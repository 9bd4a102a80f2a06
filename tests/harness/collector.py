"""A real OTLP/HTTP collector on loopback that keeps the spans it was sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """endpoint: for OTEL_EXPORTER_OTLP_ENDPOINT. status: what it answers with. answered: is
    released with each answer."""

    endpoint: str
    status: int = 200
    answered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resource(self) -> dict[str, Any]:
        """The attributes of whoever sent spans; of the first of them."""
        return attributes(self.requests[0].resource_spans[0].resource.attributes)


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""
    return {pair.key: _value(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collects until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces" and collector.status == 200:
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()
            collector.answered.release()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
