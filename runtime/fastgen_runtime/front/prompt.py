"""Prompts into token ids, without holding up other requests."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from tokenizers import Tokenizer

from fastgen_runtime.front.chat_values import change_strings, chat_values, strings_in
from fastgen_runtime.front.generation import (
    ChatPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    invalid,
)
from fastgen_runtime.front.plain_content import PlainContent
from fastgen_runtime.models.checkpoint import Checkpoint
from fastgen_runtime.text.chat_template import ChatTemplateError
from fastgen_runtime.text.text_bound import text_bound
from fastgen_runtime.text.tools.format import ModelTools, find_format

CONTINUE_FINAL_MESSAGE: Final = "continue_final_message"
"""A template variable of a chat's: the answer goes on with its last message."""
_QUICK_CHARACTERS: Final = 2000
"""Shorter prompts take less time than handing them to a thread."""
_BIG_CHARACTERS: Final = 50_000
"""Longer prompts take so long that they wait for one another, and shorter ones not for them."""

_Result = TypeVar("_Result")


class PromptEncoder:
    """A model's tokenizer and chat template."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        # In the library's own pool one text would queue with all others.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = checkpoint.tokenizer
        self._plain = PlainContent(self._tokenizer)
        self.tools = _model_tools(self._tokenizer, checkpoint.chat_template_text)
        self._template = checkpoint.chat_template
        self._vocabulary_size = checkpoint.config.vocab_size
        self.text_bound = text_bound(self._tokenizer)
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._big = ThreadPoolExecutor(1, thread_name_prefix="big-tokenizer")

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self._tokenizer

    async def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids, at least one; raises RequestError naming the field."""
        return await self._run(prompt_length(prompt), partial(self._encode, prompt))

    async def encode_plain(self, text: str) -> list[int]:
        """A text's token ids, without those that the tokenizer adds by itself."""
        return await self._run(len(text), partial(self._tokenize, text, "prompt", False))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included; raises RequestError naming `tokens`."""
        given = self._check_ids(list(token_ids), "tokens")
        decode = partial(self._tokenizer.decode, given, skip_special_tokens=False)
        return await self._run(len(given), decode)

    async def _run(self, length: int, work: Callable[[], _Result]) -> _Result:
        if length <= _QUICK_CHARACTERS:
            return work()
        thread = self._long if length <= _BIG_CHARACTERS else self._big
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def close(self) -> None:
        for thread in (self._long, self._big):
            thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, prompt: Prompt) -> list[int]:
        match prompt:
            case TextPrompt(text):
                field, token_ids = "prompt", self._tokenize(text, "prompt", True)
            case TokenPrompt(given):
                field, token_ids = "prompt", self._check_ids(list(given), "prompt")
            case ChatPrompt():
                field, token_ids = "messages", self._encode_chat(prompt)
        if not token_ids:
            raise invalid(field, "is empty: it must have at least one token")
        return token_ids

    def _encode_chat(self, prompt: ChatPrompt) -> list[int]:
        """Special tokens are the template's, which writes them all out; contents are text."""
        for name in prompt.template_variables:
            if self._template is not None and name in self._template.own_names:
                raise invalid(
                    f"chat_template_kwargs.{name[:64]}", "belongs to the template: use another name"
                )
        values = chat_values(prompt)
        try:
            disguise = self._plain.disguise_for(strings_in(values))
            if not disguise:
                return self._tokenize(self._render(values), "messages", False)
            disguised = change_strings(values, lambda text: self._plain.disguise(text, disguise))
        except RecursionError:
            raise invalid("tools", "are nested too deeply") from None
        text = self._render(disguised)
        _check_text(text, "messages")
        return self._plain.encode(text, disguise)

    def _tokenize(self, text: str, field: str, add_special_tokens: bool) -> list[int]:
        _check_text(text, field)
        # Unlike `encode`, it lets go of the interpreter's lock while it works.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return encoding.ids

    def _check_ids(self, token_ids: list[int], field: str) -> list[int]:
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocabulary_size:
            raise invalid(field, f"holds a token id outside 0 to {self._vocabulary_size - 1}")
        return token_ids

    def _render(self, values: dict[str, Any]) -> str:
        if self._template is None:
            raise invalid("messages", "need a chat template, and this model has none: use prompt")
        variables = dict(values)
        messages = variables.pop("messages")
        goes_on = bool(variables.pop(CONTINUE_FINAL_MESSAGE, False))
        if goes_on:
            variables["add_generation_prompt"] = False
        try:
            text = self._template.render(messages, variables)
        except ChatTemplateError as error:
            raise invalid("messages", str(error).removeprefix("messages: ")) from error
        return _until_final_content(text, messages[-1]["content"]) if goes_on else text


def _until_final_content(text: str, content: str) -> str:
    """The prompt without what the template writes after the last message's content."""
    # Some templates strip contents.
    start = text.rfind(content.strip())
    if not content.strip() or start < 0:
        raise invalid(
            CONTINUE_FINAL_MESSAGE, "needs a last message whose content the template shows"
        )
    end = start + len(content.strip())
    trailing = content[len(content.rstrip()) :]
    return text[: end + len(trailing) * text.startswith(trailing, end)]


def _model_tools(tokenizer: Tokenizer, template: str | None) -> ModelTools:
    added = tokenizer.get_added_tokens_decoder()
    ids = {token.content: number for number, token in added.items()}
    special = frozenset(number for number, token in added.items() if token.special)
    form, problem = find_format(template)
    return ModelTools(form, problem, ids.get, special)


def _check_text(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid(field, "holds half a surrogate pair, which is no text") from error


def prompt_length(prompt: Prompt) -> int:
    """Characters of its texts, or tokens."""
    match prompt:
        case TextPrompt(text):
            return len(text)
        case TokenPrompt(token_ids):
            return len(token_ids)
        case ChatPrompt(messages=messages):
            return sum(len(message.content) for message in messages) + _called_length(prompt)


def _called_length(prompt: ChatPrompt) -> int:
    """Characters of tools and of calls; their JSON is about as long as what templates write."""
    calls = (call for message in prompt.messages for call in message.tool_calls)
    return sum(len(call.name) + len(call.arguments) for call in calls) + sum(
        len(tool.name) + len(tool.description) + _json_length(tool.parameters)
        for tool in prompt.tools
    )


def _json_length(value: Mapping[str, Any]) -> int:
    try:
        return len(msgspec.json.encode(dict(value)))
    except RecursionError:
        raise invalid("tools", "are nested too deeply") from None
