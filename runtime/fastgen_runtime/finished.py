"""What is told of a request once it has ended: by its log line and its span."""

from dataclasses import dataclass

from fastgen_api.names import Outcome
from fastgen_runtime.goodness import End


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request's facts; never a word of prompt or answer.

    protocol: `http` or `grpc`. received: Unix seconds when it came. waited_seconds: at a balancer
    before. queue_seconds: until its first chunk. prefill_seconds: from then to the first token.
    decode_seconds: from there to the last one. None where it did not get so far. finish_reasons:
    of the choices that are complete. error: the sentence that the client got. is_chat: whether a
    chat template made the prompt.
    """

    request_id: str
    protocol: str
    model: str
    end: End
    outcome: Outcome
    num_choices: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    received: float
    waited_seconds: float
    total_seconds: float
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    finish_reasons: tuple[str, ...] = ()
    error: str | None = None
    traceparent: str | None = None
    is_chat: bool = False
