"""Responses of /v1/chat/completions."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from fastgen_runtime.engine.request import FinishReason
from fastgen_runtime.front.answer import Delta, PromptEcho, Usage
from fastgen_runtime.protocols.asked import Told
from fastgen_runtime.protocols.openai_logprobs import chat_logprobs
from fastgen_runtime.protocols.openai_tools import ToolUse
from fastgen_runtime.protocols.response_head import (
    ResponseHead,
    encode,
    end_events,
    event,
    split_event,
    usage_fields,
    usage_in_chunk,
)
from fastgen_runtime.protocols.told_prompt import ToldPrompts, body_pieces
from fastgen_runtime.text.token_text import TokenTexts
from fastgen_runtime.text.tools.source import Arguments, CallStart, Text, ToolEvent

_HOLE: Final = "\0content\0"


class ChatWriter:
    """Writes one response, whole or as events."""

    def __init__(self, head: ResponseHead, told: Told, texts: TokenTexts) -> None:
        self._whole_head = head.fields("chat.completion")
        self._head = head.fields("chat.completion.chunk")
        self._told = told
        self._texts = texts
        self._choices: dict[int, _Choice] = {}
        self._prompts = ToldPrompts(told, texts)
        self._prompt: dict[str, Any] = {}

    def prepare(self, base: int, echo: PromptEcho) -> Iterator[None]:
        return self._prompts.prepare(base, echo)

    def add(self, base: int, delta: Delta) -> None:
        self._note_prompt(base, delta.prompt)
        self._choice(base, delta).add(delta)

    def whole(self, usage: Usage) -> Iterator[bytes]:
        choices = (choice.whole() for _, choice in sorted(self._choices.items()))
        tail = {"choices": [], "usage": usage_fields(usage)}
        return body_pieces(self._whole_head | tail | self._prompt, choices)

    def events(self, base: int, delta: Delta, so_far: Usage | None = None) -> bytes:
        choice = self._choice(base, delta)
        if choice.is_plain and choice.has_begun:
            return choice.plain_events(delta)
        told = self._told_prompt(base, delta.prompt)
        chunks = choice.chunks(delta)
        if not chunks:
            return b""
        head = self._head | usage_in_chunk(self._told.with_usage, so_far)
        first = event(head | {"choices": [chunks[0]]} | told)
        return first + b"".join(event(head | {"choices": [chunk]}) for chunk in chunks[1:])

    def end(self, usage: Usage) -> bytes:
        return end_events(self._head, usage if self._told.with_usage else None)

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

    def _told_prompt(self, base: int, echo: PromptEcho | None) -> dict[str, Any]:
        """What is told of the prompt once, with whichever choice comes first."""
        is_told = bool(self._prompt)
        self._note_prompt(base, echo)
        return {} if is_told else self._prompt

    def _note_prompt(self, base: int, echo: PromptEcho | None) -> None:
        if echo is not None:
            self._prompt = self._prompts.take(base, echo).fields


class _Choice:
    """One choice: what its deltas tell, and all of them together."""

    def __init__(self, index: int, told: Told, texts: TokenTexts, head: dict[str, Any]) -> None:
        self._index = index
        self._told = told
        self._texts = texts
        self._head = head
        self._calls = _Calls(told.tools) if told.tools is not None else None
        self._content: list[str] = []
        self._tool_calls: list[dict[str, Any]] = []
        self._logprobs: list[msgspec.Raw] = []
        self._token_ids: list[int] = []
        self._last: Delta | None = None
        self.has_begun = False
        self.is_plain = told.tools is None and not (
            told.num_logprobs is not None or told.with_token_ids or told.with_usage_so_far
        )
        if self.is_plain:
            body = head | {"choices": [self._chunk({"content": _HOLE})]}
            self._before, self._after = split_event(body, _HOLE)

    def plain_events(self, delta: Delta) -> bytes:
        """Where only text is told, most of an event is always the same."""
        events = b""
        if delta.text:
            events = self._before + encode(delta.text) + self._after
        if delta.finish is not None:
            events += event(self._head | {"choices": [self._finish(delta)]})
        return events

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """The choice as chunks tell it: the first one names the role, the last one the end."""
        content, calls = self._parts(delta)
        fields: dict[str, Any] = {}
        if not self.has_begun:
            # Of an answer that may turn out to be calls only, nothing is said to be its content.
            nothing = "" if self._calls is None else None
            fields = {"role": "assistant", "content": content or nothing}
            self.has_begun = True
        elif content:
            fields["content"] = content
        if calls:
            fields["tool_calls"] = calls
        logprobs = self._logprobs_of(delta)
        is_told = bool(fields or logprobs or (self._told.with_token_ids and delta.token_ids))
        chunks = []
        if is_told:
            chunk = self._chunk(fields)
            chunk["logprobs"] = logprobs
            if self._told.with_token_ids:
                chunk["token_ids"] = list(delta.token_ids)
            chunks.append(chunk)
        if delta.finish is not None:
            chunks.append(self._finish(delta))
        return chunks

    def add(self, delta: Delta) -> None:
        """Takes in a delta of a choice that is told whole."""
        content, calls = self._parts(delta)
        self._content.append(content)
        for call in calls:
            _merge(self._tool_calls, call)
        if self._told.num_logprobs is not None:
            told = chat_logprobs(delta.logprobs, self._told.num_logprobs, self._texts)
            self._logprobs += told["content"]
        if self._told.with_token_ids:
            self._token_ids += delta.token_ids
        self._last = delta

    def whole(self) -> dict[str, Any]:
        """The choice, once every delta was added."""
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._tool_calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {name: value for name, value in call.items() if name != "index"}
                for call in self._tool_calls
            ]
        has_logprobs = self._told.num_logprobs is not None
        logprobs = {"content": self._logprobs, "refusal": None} if has_logprobs else None
        choice = {"index": self._index, "message": message, "logprobs": logprobs}
        if self._told.with_token_ids:
            choice["token_ids"] = self._token_ids
        return choice | (self._reasons(self._last) if self._last is not None else {})

    def _parts(self, delta: Delta) -> tuple[str, list[dict[str, Any]]]:
        if self._calls is None:
            return delta.text, []
        return self._calls.read(delta.text, is_last=delta.finish is not None)

    def _logprobs_of(self, delta: Delta) -> dict[str, Any] | None:
        if self._told.num_logprobs is None or not delta.logprobs:
            return None
        return chat_logprobs(delta.logprobs, self._told.num_logprobs, self._texts)

    def _chunk(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": fields, "logprobs": None, "finish_reason": None}

    def _finish(self, delta: Delta) -> dict[str, Any]:
        return self._chunk({}) | self._reasons(delta)

    def _reasons(self, delta: Delta) -> dict[str, Any]:
        reason: str | None = delta.finish
        if delta.finish is FinishReason.STOP and self._calls is not None and self._calls.count:
            reason = "tool_calls"
        return {"finish_reason": reason, "stop_reason": delta.matched_stop}


class _Calls:
    """Parts one choice's text into content and calls of tools, as OpenAI's streams tell them."""

    def __init__(self, use: ToolUse) -> None:
        self._format = use.form
        self._parser = use.form.parser(use.names)
        self.count = 0

    def read(self, text: str, is_last: bool) -> tuple[str, list[dict[str, Any]]]:
        """Content, and pieces of calls with their index, at most one of each call."""
        events: Sequence[ToolEvent] = self._parser.push(text)
        if is_last:
            events = [*events, *self._parser.flush()]
        content, calls = "", []
        for found in events:
            match found:
                case Text(piece):
                    content += piece
                case CallStart(name):
                    self.count += 1
                    function = {"name": name, "arguments": ""}
                    call_id = self._format.new_call_id()
                    calls.append(self._piece(function) | {"id": call_id, "type": "function"})
                case Arguments(piece):
                    _merge(calls, self._piece({"arguments": piece}))
        return content, calls

    def _piece(self, function: dict[str, str]) -> dict[str, Any]:
        return {"index": self.count - 1, "function": function}


def _merge(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """Adds a piece to its call, or the call to the list: one entry of each per chunk."""
    if calls and calls[-1]["index"] == piece["index"]:
        calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    else:
        calls.append(piece)
