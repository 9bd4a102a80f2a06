"""/tokenize and /detokenize, in vLLM's shapes."""

from typing import Any, Final

import msgspec

from fastgen_runtime.front.admission import check_size
from fastgen_runtime.front.front import Front
from fastgen_runtime.front.generation import ChatPrompt, Generation, Prompt, TextPrompt, invalid
from fastgen_runtime.front.generation_check import check
from fastgen_runtime.protocols.openai_chat import template_variables
from fastgen_runtime.protocols.openai_fields import decode
from fastgen_runtime.protocols.openai_message import Message, chat_message
from fastgen_runtime.protocols.openai_tools import ToolField, tool_use
from fastgen_runtime.protocols.raw_json import NOT_GIVEN
from fastgen_runtime.text.token_text import TokenTexts


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """prompt or messages. add_special_tokens: those that the tokenizer adds by itself; only with
    prompt, since chat templates write them. return_token_strs: tokens as texts, too."""

    model: str = ""
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[ToolField] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: msgspec.Raw = NOT_GIVEN
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tokens: list[int]
    model: str = ""


_tokenize_decoder: Final = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder: Final = msgspec.json.Decoder(DetokenizeRequest)


def read_tokenize(body: bytes) -> TokenizeRequest:
    """Raises RequestError naming the field."""
    request: TokenizeRequest = decode(_tokenize_decoder, body)
    if (request.prompt is None) == (request.messages is None):
        raise invalid("prompt", "or messages must be given, and not both")
    return request


def read_detokenize(body: bytes) -> DetokenizeRequest:
    """Raises RequestError naming the field."""
    request: DetokenizeRequest = decode(_detokenize_decoder, body)
    return request


async def tokenize(request: TokenizeRequest, front: Front, texts: TokenTexts) -> dict[str, Any]:
    """The response's body; raises RequestError naming the field."""
    encoder = front.encoder
    prompt = _prompt(request, front)
    # A prompt that could not be answered is not worth the work, either.
    check_size(prompt, front.max_length, encoder.text_bound)
    if isinstance(prompt, TextPrompt) and request.add_special_tokens is False:
        token_ids = await encoder.encode_plain(prompt.text)
    else:
        token_ids = await encoder.encode(prompt)
    strings = [texts.text_of(token_id) for token_id in token_ids]
    return {
        "count": len(token_ids),
        "max_model_len": front.max_length,
        "tokens": token_ids,
        "token_strs": strings if request.return_token_strs else None,
    }


def _prompt(request: TokenizeRequest, front: Front) -> Prompt:
    if request.prompt is not None:
        return TextPrompt(request.prompt)
    messages = [
        chat_message(number, message) for number, message in enumerate(request.messages or ())
    ]
    use = tool_use(request.tools, None, None, front.encoder.tools)
    prompt = ChatPrompt(
        messages,
        use.tools if use is not None else (),
        template_variables(
            request.chat_template_kwargs,
            request.add_generation_prompt,
            request.continue_final_message,
        ),
    )
    check(Generation(prompt))
    return prompt
