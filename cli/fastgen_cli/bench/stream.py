"""An event stream of an OpenAI endpoint, read as it comes.

Unlike `fastgen_cli.load`, which keeps its client's work smallest, this keeps the time of every
token: effective throughput is judged by them.
"""

import json
from typing import Any, Final

import msgspec

from fastgen_cli.bench.record import Failure, NoAnswerError


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(_Event)
_DONE: Final = b"[DONE]"


class EventStream:
    """The events so far: when each text came, and what the endpoint counted."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.texts: list[str] = []
        self.usage: tuple[int, int] | None = None
        """Tokens of prompt and answer; from the last event that told them."""
        self.done = False
        self._rest = b""

    def feed(self, data: bytes, now: float) -> None:
        """Takes bytes that came at `now`; raises NoAnswerError for an event that tells an error.

        Comments, empty lines and fields besides `data` say nothing about tokens.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now)

    def _take(self, payload: bytes, now: float) -> None:
        if payload == _DONE:
            self.done = True
            return
        try:
            event = _DECODER.decode(payload)
        except msgspec.DecodeError as error:
            failure = Failure("unreadable event", 500, f"{error}: {payload[:120]!r}")
            raise NoAnswerError(failure) from error
        if event.error is not None:
            raise NoAnswerError(Failure("error in the stream", 500, json.dumps(event.error)[:300]))
        if event.usage is not None:
            self.usage = (event.usage.prompt_tokens, event.usage.completion_tokens)
        if text := "".join(_text(choice) for choice in event.choices):
            self.times.append(now)
            self.texts.append(text)


def _text(choice: _Choice) -> str:
    delta = choice.delta
    if delta is None:
        return choice.text or ""
    return (delta.content or "") + (delta.reasoning_content or delta.reasoning or "")
