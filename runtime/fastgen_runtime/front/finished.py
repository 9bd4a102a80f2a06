"""What is told of a request once it has ended: by its log line and its span."""

from dataclasses import dataclass

from fastgen_api.names import Outcome
from fastgen_runtime.front.generation import ChatPrompt
from fastgen_runtime.front.goodness import End
from fastgen_runtime.front.submission import Submission


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request's facts; never a word of prompt or answer.

    num_choices, tokens: of all its prompts. protocol: `http` or `grpc`. received: Unix seconds
    when it came. waited_seconds: at a balancer before. queue_seconds: until its first chunk.
    prefill_seconds: from then to the first token. decode_seconds: from there to the last one. None
    where it did not get so far. finish_reasons: of the choices that are complete. error: the
    sentence that the client got. is_chat: whether a chat template made the prompt.
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


def finished_request(
    submission: Submission,
    model: str,
    end: End,
    outcome: Outcome,
    total_seconds: float,
    error: str | None,
) -> FinishedRequest:
    """The facts of a request that has ended. Its phases are those of its first choice to begin."""
    generation = submission.generation
    timings, usage, choices = submission.timings, submission.usage, submission.choices
    first, last = timings.first, timings.last
    started = min(
        (choice.started.queue_seconds for choice in choices if choice.started is not None),
        default=None,
    )
    to_first = None if first is None else first - timings.arrived
    return FinishedRequest(
        request_id=generation.request_id,
        protocol=generation.protocol,
        model=model,
        end=end,
        outcome=outcome,
        num_choices=submission.num_choices,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        received=submission.received,
        waited_seconds=timings.waited,
        total_seconds=total_seconds,
        queue_seconds=started,
        prefill_seconds=None if started is None or to_first is None else to_first - started,
        decode_seconds=None if first is None or last is None else last - first,
        finish_reasons=tuple(
            choice.answer.finish.value for choice in choices if choice.answer.finish is not None
        ),
        error=error,
        traceparent=generation.traceparent,
        is_chat=isinstance(generation.prompt, ChatPrompt),
    )
