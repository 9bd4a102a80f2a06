"""Log probabilities in the shapes of OpenAI's two endpoints, and vLLM's of the prompt's."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from fastgen_runtime.engine.step import TokenLogprobs
from fastgen_runtime.protocols.response_head import encode
from fastgen_runtime.text.token_text import TokenTexts

LEAST: Final = -9999.0
"""JSON has no infinity."""


def chat_logprobs(
    tokens: Iterable[TokenLogprobs], num_top: int, texts: TokenTexts
) -> dict[str, Any]:
    """A chat choice's `logprobs`, each token's encoded."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": texts.text_of(token_id),
            "logprob": max(logprob, LEAST),
            "bytes": list(texts.bytes_of(token_id)),
        }

    content = [
        raw(
            entry(token.token_id, token.logprob)
            | {"top_logprobs": [entry(*likely) for likely in token.top[:num_top]]}
        )
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def prompt_entries(token: TokenLogprobs, num_top: int, texts: TokenTexts) -> dict[str, Any]:
    """One token's part of vLLM's `prompt_logprobs`: by token id."""

    def entry(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {
            "logprob": max(logprob, LEAST),
            "rank": rank,
            "decoded_token": texts.text_of(token_id),
        }

    likely = token.top[:num_top]
    entries = {
        str(token_id): entry(token_id, logprob, rank)
        for rank, (token_id, logprob) in enumerate(likely, start=1)
    }
    entries.setdefault(str(token.token_id), entry(token.token_id, token.logprob, token.rank))
    return entries


def raw(value: Any) -> msgspec.Raw:
    """The value as JSON: a tenth of the room, and encoded once however often it is told."""
    return msgspec.Raw(encode(value))


class TextOffsets:
    """Where each token of one choice begins in its text, in characters."""

    __slots__ = ("_decoder", "_offset", "_texts")

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def of_prompt(self, text: str, token_id: int) -> int:
        """The next token's of a prompt; special ones take the room that its text gives them."""
        offset = self._offset
        name = self._texts.text_of(token_id)
        if not self._texts.is_special(token_id):
            self._take(token_id)
        elif text.startswith(name, offset):
            self._offset += len(name)
        return offset

    def end_prompt(self, text: str) -> None:
        """The answer begins."""
        self._offset = len(text)

    def copy(self) -> "TextOffsets":
        """Another choice's, that goes on from here."""
        other = TextOffsets(self._texts)
        other._offset = self._offset
        other._decoder.setstate(self._decoder.getstate())
        return other

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

    def __init__(self, num_top: int, texts: TokenTexts, offsets: TextOffsets | None = None) -> None:
        """offsets: behind the prompt's text, where that is told, too."""
        self._num_top = num_top
        self._texts = texts
        self._offsets = TextOffsets(texts) if offsets is None else offsets.copy()

    def of_output(self, tokens: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        return {
            "tokens": [self._texts.text_of(token.token_id) for token in tokens],
            "token_logprobs": [max(token.logprob, LEAST) for token in tokens],
            "top_logprobs": [
                raw(top_by_text(token, self._num_top, self._texts)) for token in tokens
            ],
            "text_offset": self._offsets.of_output([token.token_id for token in tokens]),
        }


def top_by_text(token: TokenLogprobs, num_top: int, texts: TokenTexts) -> dict[str, float]:
    """The likeliest by their texts, and the token itself."""
    top: dict[str, float] = {}
    for token_id, logprob in (*token.top[:num_top], (token.token_id, token.logprob)):
        # Two tokens may have one text; the likelier one comes first.
        top.setdefault(texts.text_of(token_id), max(logprob, LEAST))
    return top


def joined(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """A completion choice's `logprobs`, the second part behind the first."""
    return {name: values + other[name] for name, values in one.items()}
