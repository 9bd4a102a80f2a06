"""Body of /v1/chat/completions."""

from typing import Any, Final

import msgspec

from fastgen_runtime.front.generation import ChatPrompt, Generation, invalid
from fastgen_runtime.front.prompt import CONTINUE_FINAL_MESSAGE
from fastgen_runtime.protocols.asked import Asked, Origin, Told
from fastgen_runtime.protocols.openai_fields import (
    NEUTRAL,
    CommonFields,
    check_neutral,
    decode,
    sampling_fields,
    stream_options,
)
from fastgen_runtime.protocols.openai_grammar import grammar_of
from fastgen_runtime.protocols.openai_message import Message, chat_message
from fastgen_runtime.protocols.openai_tools import (
    ToolChoice,
    ToolField,
    tool_grammar,
    tool_use,
)
from fastgen_runtime.protocols.raw_json import NOT_GIVEN, is_given, json_object
from fastgen_runtime.text.tools.format import ModelTools


class ChatRequest(CommonFields, frozen=True, kw_only=True):
    """Fields of type Any are let pass or refused: see `check_neutral`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolField] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: msgspec.Raw = NOT_GIVEN
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    moderation: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None


CHAT_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = NEUTRAL | {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "moderation": (),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_OWN_VARIABLES: Final = ("messages", "tools", "now", CONTINUE_FINAL_MESSAGE)

_decoder: Final = msgspec.json.Decoder(ChatRequest)


def read_chat(body: bytes, origin: Origin, model: ModelTools) -> Asked:
    """What a body asks for; raises RequestError naming the field."""
    request: ChatRequest = decode(_decoder, body)
    check_neutral(request, CHAT_NEUTRAL)
    fields = sampling_fields(request)
    use = tool_use(request.tools, request.tool_choice, request.parallel_tool_calls, model)
    grammar, grammar_field = grammar_of(request.response_format, request.structured_outputs)
    if use is not None:
        grammar, grammar_field = tool_grammar(use, grammar, grammar_field, model)
    messages = [chat_message(number, message) for number, message in enumerate(request.messages)]
    prompt = ChatPrompt(
        messages,
        use.tools if use is not None else (),
        template_variables(
            request.chat_template_kwargs,
            request.add_generation_prompt,
            request.continue_final_message,
        ),
    )
    generation = Generation(
        prompt=prompt,
        max_tokens=_max_tokens(request),
        num_logprobs=_num_logprobs(request),
        num_prompt_logprobs=request.prompt_logprobs,
        grammar=grammar,
        tells_prompt_ids=bool(request.return_token_ids),
        shown_token_ids=use.shown_token_ids if use is not None else (),
        **fields,
        **origin.fields,
    )
    return Asked(
        generations=(generation,),
        is_stream=bool(request.stream),
        told=Told(
            num_choices=generation.num_choices,
            num_logprobs=generation.num_logprobs,
            num_prompt_logprobs=request.prompt_logprobs,
            with_token_ids=bool(request.return_token_ids),
            tools=use,
            **stream_options(request),
        ),
        field_names={
            "grammar": grammar_field,
            "logprobs": "top_logprobs",
            "max_tokens": "max_tokens" if request.max_tokens is not None
            else "max_completion_tokens",
        },
    )  # fmt: skip


def _max_tokens(request: ChatRequest) -> int | None:
    given = (request.max_tokens, request.max_completion_tokens)
    limits = {limit for limit in given if limit is not None}
    if len(limits) > 1:
        raise invalid("max_tokens", "contradicts max_completion_tokens: give one of them")
    return next(iter(limits), None)


def _num_logprobs(request: ChatRequest) -> int | None:
    if not request.logprobs:
        if request.top_logprobs:
            raise invalid("top_logprobs", "needs logprobs set to true")
        return None
    return request.top_logprobs or 0


def template_variables(
    given: msgspec.Raw, add_generation_prompt: bool | None, goes_on: bool | None
) -> dict[str, Any]:
    """What the template reads beside messages and tools; raises RequestError.

    given: `chat_template_kwargs`. goes_on: the answer continues the last message.
    """
    variables: dict[str, Any] = {}
    if is_given(given):
        variables = json_object("chat_template_kwargs", given)
        for name in _OWN_VARIABLES:
            if name in variables:
                raise invalid(f"chat_template_kwargs.{name}", "is no variable to be set here")
    if add_generation_prompt is not None:
        variables["add_generation_prompt"] = add_generation_prompt
    if goes_on:
        if add_generation_prompt:
            raise invalid(CONTINUE_FINAL_MESSAGE, "contradicts add_generation_prompt")
        variables[CONTINUE_FINAL_MESSAGE] = True
    return variables
