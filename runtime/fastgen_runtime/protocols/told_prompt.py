"""What a response tells of a prompt: encoded once for all its choices, and in pieces."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastgen_runtime.front.answer import PromptEcho
from fastgen_runtime.protocols.asked import Told
from fastgen_runtime.protocols.openai_logprobs import (
    LEAST,
    TextOffsets,
    prompt_entries,
    raw,
    top_by_text,
)
from fastgen_runtime.protocols.response_head import encode
from fastgen_runtime.text.token_text import TokenTexts

_TOKENS_AT_ONCE: Final = 64
"""With twenty log probabilities each they take some two milliseconds."""

_NO_CHOICES: Final = b'"choices":[]'


class ToldPrompt:
    """fields: of the response. logprobs: the echoed prompt's, where it is told as one of the
    answer's. offsets: behind its text.
    """

    __slots__ = ("echo", "fields", "logprobs", "offsets")

    def __init__(self, echo: PromptEcho, texts: TokenTexts) -> None:
        self.echo = echo
        self.fields: dict[str, Any] = {}
        self.logprobs: dict[str, list[Any]] | None = None
        self.offsets = TextOffsets(texts)


def tell_prompt(prompt: ToldPrompt, told: Told, texts: TokenTexts) -> Iterator[None]:
    """Fills `prompt`; between two pieces of the work others get their turn."""
    echo = prompt.echo
    if told.with_token_ids:
        prompt.fields["prompt_token_ids"] = raw(echo.token_ids)
    num_top = told.num_prompt_logprobs
    if num_top is not None:
        # Nothing is known of the first token.
        entries: list[Any] = [None]
        for number, token in enumerate(echo.logprobs):
            entries.append(raw(prompt_entries(token, num_top, texts)))
            if number % _TOKENS_AT_ONCE == 0:
                yield
        prompt.fields["prompt_logprobs"] = raw(entries)
    if told.is_echo and told.num_logprobs is not None:
        yield from _tell_echo(prompt, told.num_logprobs, texts)


def _tell_echo(prompt: ToldPrompt, num_top: int, texts: TokenTexts) -> Iterator[None]:
    echo = prompt.echo
    tokens: list[str] = []
    logprobs: list[float | None] = [None] * len(echo.token_ids[:1])
    tops: list[Any] = [None] * len(echo.token_ids[:1])
    offsets: list[int] = []
    for number, token_id in enumerate(echo.token_ids):
        tokens.append(texts.text_of(token_id))
        offsets.append(prompt.offsets.of_prompt(echo.text, token_id))
        if number:
            token = echo.logprobs[number - 1]
            logprobs.append(max(token.logprob, LEAST))
            tops.append(raw(top_by_text(token, num_top, texts)))
        if number % _TOKENS_AT_ONCE == 0:
            yield
    prompt.offsets.end_prompt(echo.text)
    prompt.logprobs = {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


class ToldPrompts:
    """The prompts of one response, by the index of their first choice, until all have begun."""

    def __init__(self, told: Told, texts: TokenTexts) -> None:
        self._told = told
        self._texts = texts
        self._prompts: dict[int, ToldPrompt] = {}
        self._num_begun: dict[int, int] = {}

    def prepare(self, base: int, echo: PromptEcho) -> Iterator[None]:
        """Encodes a prompt that is not yet; to be gone through before it is taken."""
        if base not in self._prompts:
            prompt = ToldPrompt(echo, self._texts)
            yield from tell_prompt(prompt, self._told, self._texts)
            self._prompts[base] = prompt

    def take(self, base: int, echo: PromptEcho) -> ToldPrompt:
        """The prompt, for a choice that begins."""
        for _ in self.prepare(base, echo):
            pass
        prompt = self._prompts[base]
        self._num_begun[base] = self._num_begun.get(base, 0) + 1
        if self._num_begun[base] == self._told.num_choices:
            del self._prompts[base], self._num_begun[base]
        return prompt


def body_pieces(body: Mapping[str, Any], choices: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """A response with `choices`, encoded one by one; `body` has an empty list of them."""
    before, after = encode(body).split(_NO_CHOICES, 1)
    yield before + _NO_CHOICES[:-1]
    for number, choice in enumerate(choices):
        yield (b"," if number else b"") + encode(choice)
    yield b"]" + after
