"""One log line per request: who got what, how it ended, and where its time went."""

from typing import Any, Final

from fastgen_runtime.front.finished import FinishedRequest
from fastgen_runtime.log import log_event

MESSAGE: Final = "request"


def log_request(request: FinishedRequest) -> None:
    """Writes the line, in some 50 µs."""
    log_event(MESSAGE, **request_fields(request))


def request_fields(request: FinishedRequest) -> dict[str, Any]:
    """The line's fields; seconds to a tenth of a millisecond, and none that there was no time for.

    No word of prompt or answer is in them, and nothing that the client sent but the request's id.
    """
    fields: dict[str, Any] = {
        "request_id": request.request_id,
        "protocol": request.protocol,
        "model": request.model,
        "outcome": str(request.outcome),
        "end": request.end.value,
        "choices": request.num_choices,
        "finish_reasons": request.finish_reasons,
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.output_tokens,
        "waited_seconds": round(request.waited_seconds, 4),
        "total_seconds": round(request.total_seconds, 4),
    }
    phases = {
        "queue_seconds": request.queue_seconds,
        "prefill_seconds": request.prefill_seconds,
        "decode_seconds": request.decode_seconds,
    }
    fields |= {name: round(value, 4) for name, value in phases.items() if value is not None}
    if request.error is not None:
        fields["error"] = request.error
    return fields
