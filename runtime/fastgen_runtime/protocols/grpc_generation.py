"""gRPC's messages into what a client asks for, and deltas into gRPC's messages."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from google.protobuf.message import Message

from fastgen_api.v1 import inference_pb2
from fastgen_runtime.engine.request import FinishReason, Grammar, GrammarKind
from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.answer import Delta
from fastgen_runtime.front.generation import (
    ChatMessage,
    ChatPrompt,
    Generation,
    Prompt,
    RequestError,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
    invalid,
)
from fastgen_runtime.front.generation_check import (
    MAX_LOGIT_BIASES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from fastgen_runtime.protocols.raw_json import json_value

_FINISH: Final = {
    None: inference_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}
_OPTIONAL_SAMPLING: Final = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "seed",
)  # fmt: skip


def generation_of(
    request: inference_pb2.GenerateRequest,
    max_messages: int,
    *,
    request_id: str,
    traceparent: str | None,
    waited_seconds: float | None,
    model_judged: bool,
    is_unwitnessed: bool,
    deadline: float | None,
) -> Generation:
    """What the message asks for; raises RequestError naming the field.

    Of lists that are too long as much is taken as shows it: one too many refuses a million.
    """
    sampling, stopping, output = request.sampling, request.stopping, request.output
    return Generation(
        prompt=_prompt(request, max_messages),
        model=request.model,
        model_judged=model_judged,
        num_choices=sampling.n if sampling.HasField("n") else 1,
        max_tokens=_optional(stopping, "max_tokens"),
        min_tokens=stopping.min_tokens,
        logit_bias=dict(islice(sampling.logit_bias.items(), MAX_LOGIT_BIASES + 1)),
        stop=tuple(stopping.stop[: MAX_STOP_STRINGS + 1]),
        stop_token_ids=tuple(stopping.stop_token_ids[: MAX_STOP_TOKEN_IDS + 1]),
        ignore_eos=stopping.ignore_eos,
        echo=output.echo,
        num_logprobs=_optional(output, "logprobs"),
        num_prompt_logprobs=_optional(output, "prompt_logprobs"),
        grammar=_grammar(request),
        priority=request.priority,
        waited_seconds=waited_seconds,
        is_unwitnessed=is_unwitnessed,
        deadline=deadline,
        request_id=request_id,
        traceparent=traceparent,
        protocol="grpc",
        **{name: _optional(sampling, name) for name in _OPTIONAL_SAMPLING},
    )


def response_of(request_id: str, delta: Delta) -> inference_pb2.GenerateResponse:
    """The message that tells a delta."""
    text = delta.text if delta.prompt is None else delta.prompt.text + delta.text
    response = inference_pb2.GenerateResponse(
        request_id=request_id, index=delta.index, text=text, token_ids=delta.token_ids
    )
    if delta.logprobs:
        response.logprobs.extend(_logprobs(delta.logprobs))
    if delta.prompt is not None:
        response.prompt_logprobs.extend(_logprobs(delta.prompt.logprobs))
    if delta.finish is not None:
        _add_end(response, delta)
    return response


def _add_end(response: inference_pb2.GenerateResponse, delta: Delta) -> None:
    response.finish_reason = _FINISH[delta.finish]
    match delta.matched_stop:
        case str(stop):
            response.stop = stop
        case int(token_id):
            response.stop_token_id = token_id
    if delta.usage is not None:
        usage = response.usage
        usage.prompt_tokens = delta.usage.prompt_tokens
        usage.output_tokens = delta.usage.output_tokens
        usage.cached_tokens = delta.usage.cached_tokens


def _logprobs(logprobs: Iterable[TokenLogprobs]) -> Iterable[inference_pb2.TokenLogprobs]:
    for one in logprobs:
        yield inference_pb2.TokenLogprobs(
            token_id=one.token_id,
            logprob=one.logprob,
            rank=one.rank,
            top=[
                inference_pb2.TopLogprob(token_id=token_id, logprob=logprob)
                for token_id, logprob in one.top
            ],
        )


def _optional(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _grammar(request: inference_pb2.GenerateRequest) -> Grammar | None:
    kind = request.WhichOneof("grammar")
    return None if kind is None else Grammar(GrammarKind(kind), getattr(request, kind))


def _prompt(request: inference_pb2.GenerateRequest, max_messages: int) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            return TextPrompt(request.text)
        case "token_ids":
            return TokenPrompt(request.token_ids.ids)
        case "chat":
            messages, tools = request.chat.messages, request.chat.tools
            for name, entries in (("messages", messages), ("tools", tools)):
                if len(entries) > max_messages:
                    raise invalid(f"chat.{name}", f"may hold at most {max_messages} {name}")
            return ChatPrompt(
                [_message(message) for message in messages],
                [_tool(number, tool) for number, tool in enumerate(tools)],
            )
    raise invalid("prompt", "is missing: set text, token_ids or chat")


def _message(message: inference_pb2.ChatMessage) -> ChatMessage:
    return ChatMessage(
        message.role,
        message.content,
        message.name or None,
        [ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls],
        message.tool_call_id or None,
    )


def _tool(number: int, tool: inference_pb2.Tool) -> Tool:
    field = f"chat.tools[{number}].parameters"
    try:
        parameters = json_value(field, tool.parameters or "{}", dict[str, Any])
    except RequestError as error:
        raise invalid(field, "is no JSON object") from error
    return Tool(tool.name, tool.description, parameters)
