"""Starts OpenTelemetry tracing where the environment names a collector, and only there.

Without one nothing of OpenTelemetry is imported: a replica pays for it in memory and at its start.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fastgen_runtime.log import log_problem

if TYPE_CHECKING:
    from fastgen_runtime.front.spans import Spans

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SPOKEN: Final = "http/protobuf"


def start_tracing(
    environment: Mapping[str, str], replica: str, deployment: str, namespace: str
) -> "Spans | None":
    """Spans of ended requests, or None where no collector is named or tracing is switched off."""
    if not any(environment.get(name) for name in _ENDPOINTS):
        return None
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
        return None
    protocol = next(filter(None, map(environment.get, _PROTOCOLS)), _SPOKEN)
    if protocol != _SPOKEN:
        log_problem(
            f"no spans are sent: OTLP is spoken as {_SPOKEN} only, and "
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}"
        )
        return None
    from fastgen_runtime.front.spans import Spans

    return Spans.exported(replica, deployment, namespace)
