"""Responses of /v1/completions."""

from collections.abc import Iterator
from typing import Any, Final

from fastgen_runtime.front.answer import Delta, PromptEcho, Usage
from fastgen_runtime.protocols.asked import Told
from fastgen_runtime.protocols.openai_logprobs import CompletionLogprobs, joined
from fastgen_runtime.protocols.response_head import (
    ResponseHead,
    encode,
    end_events,
    event,
    split_event,
    usage_fields,
    usage_in_chunk,
)
from fastgen_runtime.protocols.told_prompt import ToldPrompt, ToldPrompts, body_pieces
from fastgen_runtime.text.token_text import TokenTexts

_KIND: Final = "text_completion"
_HOLE: Final = "\0text\0"


class CompletionWriter:
    """Writes one response, whole or as events."""

    def __init__(self, head: ResponseHead, told: Told, texts: TokenTexts) -> None:
        self._head = head.fields(_KIND)
        self._told = told
        self._texts = texts
        self._choices: dict[int, _Choice] = {}
        self._prompts = ToldPrompts(told, texts)

    def prepare(self, base: int, echo: PromptEcho) -> Iterator[None]:
        return self._prompts.prepare(base, echo)

    def add(self, base: int, delta: Delta) -> None:
        self._choice(base, delta).add(delta, self._prompt(base, delta))

    def whole(self, usage: Usage) -> Iterator[bytes]:
        choices = (choice.whole() for _, choice in sorted(self._choices.items()))
        return body_pieces(self._head | {"choices": [], "usage": usage_fields(usage)}, choices)

    def events(self, base: int, delta: Delta, so_far: Usage | None = None) -> bytes:
        choice = self._choice(base, delta)
        if choice.is_plain and delta.prompt is None:
            return choice.plain_events(delta)
        fields = choice.told_of(delta, self._prompt(base, delta))
        if not any(fields.get(name) for name in _TOLD):
            return b""
        return event(
            self._head | {"choices": [fields]} | usage_in_chunk(self._told.with_usage, so_far)
        )

    def end(self, usage: Usage) -> bytes:
        return end_events(self._head, usage if self._told.with_usage else None)

    def _prompt(self, base: int, delta: Delta) -> ToldPrompt | None:
        return None if delta.prompt is None else self._prompts.take(base, delta.prompt)

    def _choice(self, base: int, delta: Delta) -> "_Choice":
        index = base + delta.index
        choice = self._choices.get(index)
        if choice is None:
            choice = _Choice(
                index,
                self._told,
                self._texts,
                self._head | usage_in_chunk(self._told.with_usage, None),
            )
            self._choices[index] = choice
        return choice


_TOLD: Final = ("text", "finish_reason", "logprobs", "token_ids", "prompt_token_ids",
                "prompt_logprobs")  # fmt: skip
"""A chunk in which all of these are empty tells nothing."""


class _Choice:
    """One choice: what its deltas tell, and all of them together."""

    def __init__(self, index: int, told: Told, texts: TokenTexts, head: dict[str, Any]) -> None:
        self._index = index
        self._told = told
        self._texts = texts
        self._logprobs: CompletionLogprobs | None = None
        self._echo_text = ""
        self._whole: dict[str, Any] | None = None
        self.is_plain = (
            told.num_logprobs is None and not told.with_token_ids and not told.with_usage_so_far
        )
        if self.is_plain:
            body = head | {"choices": [self._fields(_HOLE, None)]}
            self._before, self._after = split_event(body, _HOLE)
        self._head = head

    def plain_events(self, delta: Delta) -> bytes:
        """Where only text is told, most of an event is always the same."""
        events = b""
        if delta.text:
            events = self._before + encode(delta.text) + self._after
        if delta.finish is not None:
            events += event(self._head | {"choices": [self._fields("", delta)]})
        return events

    def told_of(self, delta: Delta, prompt: ToldPrompt | None) -> dict[str, Any]:
        """The choice as one chunk tells it; prompt: with the first one, where it is told."""
        text = delta.text if prompt is None else prompt.echo.text + delta.text
        return self._told_without_echo(delta, prompt) | {"text": text}

    def add(self, delta: Delta, prompt: ToldPrompt | None) -> None:
        """Takes in a delta of a choice that is told whole; all choices share the prompt's text."""
        if prompt is not None:
            self._echo_text = prompt.echo.text
        fields = self._told_without_echo(delta, prompt)
        if self._whole is None:
            self._whole = fields
            return
        whole = self._whole
        whole["text"] += fields["text"]
        whole["finish_reason"] = fields["finish_reason"]
        whole["stop_reason"] = fields["stop_reason"]
        if fields["logprobs"] is not None:
            before = whole["logprobs"]
            whole["logprobs"] = joined(before, fields["logprobs"]) if before else fields["logprobs"]
        if "token_ids" in fields:
            whole["token_ids"] += fields["token_ids"]

    def whole(self) -> dict[str, Any]:
        whole = self._whole or self._fields("", None)
        return whole | {"text": self._echo_text + whole["text"]}

    def _told_without_echo(self, delta: Delta, prompt: ToldPrompt | None) -> dict[str, Any]:
        fields = self._fields(delta.text, delta)
        if self._told.num_logprobs is not None:
            fields["logprobs"] = self._logprobs_of(self._told.num_logprobs, delta, prompt)
        if self._told.with_token_ids:
            fields["token_ids"] = list(delta.token_ids)
        return fields if prompt is None else fields | prompt.fields

    def _fields(self, text: str, delta: Delta | None) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": text,
            "logprobs": None,
            "finish_reason": delta.finish if delta is not None else None,
            "stop_reason": delta.matched_stop if delta is not None else None,
        }

    def _logprobs_of(
        self, num_top: int, delta: Delta, prompt: ToldPrompt | None
    ) -> dict[str, list[Any]] | None:
        if self._logprobs is None:
            offsets = None if prompt is None else prompt.offsets
            self._logprobs = CompletionLogprobs(num_top, self._texts, offsets)
        of_output = self._logprobs.of_output(delta.logprobs)
        if prompt is not None and prompt.logprobs is not None:
            return joined(prompt.logprobs, of_output)
        return of_output if delta.logprobs else None
