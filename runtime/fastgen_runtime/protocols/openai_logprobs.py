"""Log probabilities in the shapes of OpenAI's two endpoints, and vLLM's of the prompt's."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, Final

from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.front.answer import PromptEcho
from fastgen_runtime.text.token_text import TokenTexts

_LEAST: Final = -9999.0
"""JSON has no infinity."""


def chat_logprobs(
    tokens: Iterable[TokenLogprobs], num_top: int, texts: TokenTexts
) -> dict[str, Any]:
    """A chat choice's `logprobs`."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": texts.text_of(token_id),
            "logprob": max(logprob, _LEAST),
            "bytes": list(texts.bytes_of(token_id)),
        }

    content = [
        entry(token.token_id, token.logprob)
        | {"top_logprobs": [entry(*likely) for likely in token.top[:num_top]]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(
    echo: PromptEcho, num_top: int, texts: TokenTexts
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: by token id, nothing for the first token."""

    def entry(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {
            "logprob": max(logprob, _LEAST),
            "rank": rank,
            "decoded_token": texts.text_of(token_id),
        }

    told: list[dict[str, Any] | None] = [None]
    for token in echo.logprobs:
        likely = token.top[:num_top]
        entries = {
            str(token_id): entry(token_id, logprob, rank)
            for rank, (token_id, logprob) in enumerate(likely, start=1)
        }
        entries.setdefault(str(token.token_id), entry(token.token_id, token.logprob, token.rank))
        told.append(entries)
    return told


class TextOffsets:
    """Where each token of one choice begins in its text, in characters."""

    __slots__ = ("_decoder", "_offset", "_texts")

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def of_prompt(self, echo: PromptEcho) -> list[int]:
        """Special tokens take the room that the echoed text gives them."""
        offsets = []
        for token_id in echo.token_ids:
            offsets.append(self._offset)
            name = self._texts.text_of(token_id)
            if self._texts.is_special(token_id):
                if echo.text.startswith(name, self._offset):
                    self._offset += len(name)
            else:
                self._take(token_id)
        self._offset = len(echo.text)
        return offsets

    def of_output(self, token_ids: Sequence[int]) -> list[int]:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            if not self._texts.is_special(token_id):
                self._take(token_id)
        return offsets

    def _take(self, token_id: int) -> None:
        self._offset += len(self._decoder.decode(self._texts.bytes_of(token_id)))


class CompletionLogprobs:
    """A completion choice's `logprobs`, as its tokens come."""

    __slots__ = ("_num_top", "_offsets", "_texts")

    def __init__(self, num_top: int, texts: TokenTexts) -> None:
        self._num_top = num_top
        self._texts = texts
        self._offsets = TextOffsets(texts)

    def of_prompt(self, echo: PromptEcho) -> dict[str, list[Any]]:
        """The echoed prompt's; nothing is known of the first token."""
        told = self._told(echo.logprobs)
        first = [self._texts.text_of(token_id) for token_id in echo.token_ids[:1]]
        return {
            "tokens": first + told["tokens"],
            "token_logprobs": [None] * len(first) + told["token_logprobs"],
            "top_logprobs": [None] * len(first) + told["top_logprobs"],
            "text_offset": self._offsets.of_prompt(echo),
        }

    def of_output(self, tokens: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        offsets = self._offsets.of_output([token.token_id for token in tokens])
        return self._told(tokens) | {"text_offset": offsets}

    def _told(self, tokens: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        return {
            "tokens": [self._texts.text_of(token.token_id) for token in tokens],
            "token_logprobs": [max(token.logprob, _LEAST) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
        }

    def _top(self, token: TokenLogprobs) -> dict[str, float]:
        """The likeliest by their texts, and the token itself."""
        top: dict[str, float] = {}
        for token_id, logprob in (*token.top[: self._num_top], (token.token_id, token.logprob)):
            # Two tokens may have one text; the likelier one comes first.
            top.setdefault(self._texts.text_of(token_id), max(logprob, _LEAST))
        return top


def joined(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """A completion choice's `logprobs`, the second part behind the first."""
    return {name: values + other[name] for name, values in one.items()}
