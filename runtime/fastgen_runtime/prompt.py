"""Prompts into token ids, without holding up other requests."""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fastgen_runtime.chat_template import ChatTemplateError
from fastgen_runtime.checkpoint import Checkpoint
from fastgen_runtime.generation import (
    ChatMessage,
    ChatPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    invalid,
)
from fastgen_runtime.plain_content import PlainContent
from fastgen_runtime.text_bound import text_bound

_QUICK_CHARACTERS: Final = 2000
"""Shorter prompts take less time than handing them to a thread."""
_BIG_CHARACTERS: Final = 50_000
"""Longer prompts take so long that they wait for one another, and shorter ones not for them."""


class PromptEncoder:
    """A model's tokenizer and chat template."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        # In the library's own pool one text would queue with all others.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = checkpoint.tokenizer
        self._plain = PlainContent(self._tokenizer)
        self._template = checkpoint.chat_template
        self._vocabulary_size = checkpoint.config.vocab_size
        self.text_bound = text_bound(self._tokenizer)
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._big = ThreadPoolExecutor(1, thread_name_prefix="big-tokenizer")

    async def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids, at least one; raises RequestError naming the field."""
        length = prompt_length(prompt)
        if length <= _QUICK_CHARACTERS:
            return self._encode(prompt)
        thread = self._long if length <= _BIG_CHARACTERS else self._big
        return await asyncio.get_running_loop().run_in_executor(thread, self._encode, prompt)

    def close(self) -> None:
        for thread in (self._long, self._big):
            thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, prompt: Prompt) -> list[int]:
        match prompt:
            case TextPrompt(text):
                field, token_ids = "prompt", self._tokenize(text, "prompt", True)
            case TokenPrompt(given):
                field, token_ids = "prompt", self._check_ids(list(given))
            case ChatPrompt():
                field, token_ids = "messages", self._encode_chat(prompt)
        if not token_ids:
            raise invalid(field, "is empty: it must have at least one token")
        return token_ids

    def _encode_chat(self, prompt: ChatPrompt) -> list[int]:
        """Special tokens are the template's, which writes them all out; contents are text."""
        disguise = self._plain.disguise_for(
            text for message in prompt.messages for text in (message.content, message.name or "")
        )
        if not disguise:
            return self._tokenize(self._render(prompt.messages), "messages", False)
        disguised = [
            ChatMessage(
                message.role,
                self._plain.disguise(message.content, disguise),
                message.name and self._plain.disguise(message.name, disguise),
            )
            for message in prompt.messages
        ]
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

    def _check_ids(self, token_ids: list[int]) -> list[int]:
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocabulary_size:
            raise invalid("prompt", f"holds a token id outside 0 to {self._vocabulary_size - 1}")
        return token_ids

    def _render(self, given: Sequence[ChatMessage]) -> str:
        if self._template is None:
            raise invalid("messages", "need a chat template, and this model has none: use prompt")
        messages = [
            {"role": message.role, "content": message.content}
            | ({} if message.name is None else {"name": message.name})
            for message in given
        ]
        try:
            return self._template.render(messages)
        except ChatTemplateError as error:
            raise invalid("messages", str(error).removeprefix("messages: ")) from error


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
        case ChatPrompt(messages):
            return sum(len(message.content) for message in messages)
