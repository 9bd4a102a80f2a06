"""Talks to an OpenAI endpoint from the terminal."""

import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Final

import openai
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
from rich.console import Console

from fastgen_cli.errors import UserError
from fastgen_cli.url import base_url, is_local

GOODBYE: Final = ("/quit", "/exit")
HELP: Final = "/reset forgets the conversation, /quit ends it, Ctrl-C stops an answer."


class AnswerError(UserError):
    """The endpoint gave no answer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person asked for; `None` leaves it to the server."""

    url: str
    model: str | None = None
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast an answer came; tokens are the server's count when it gives one."""

    ttft_seconds: float
    total_seconds: float
    tokens: int

    def line(self) -> str:
        """For people."""
        text = f"first token after {self.ttft_seconds:.2f} s"
        after = self.total_seconds - self.ttft_seconds
        if self.tokens > 1 and after > 0:
            text += f", then {(self.tokens - 1) / after:.1f} tokens/s"
        return f"{text} ({self.tokens} tokens)"


def make_client(url: str) -> openai.OpenAI:
    """A client of the endpoint, with OPENAI_API_KEY when it is set."""
    base = base_url(url)
    # A proxy of the shell must not stand between us and this very machine.
    return openai.OpenAI(
        base_url=base,
        api_key=os.environ.get("OPENAI_API_KEY") or "none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=not is_local(base)),
        timeout=openai.Timeout(600, connect=10),
    )


def explain(error: openai.OpenAIError, url: str, model: str | None = None) -> str:
    """What an error of the client means, and the way out."""
    if isinstance(error, openai.APITimeoutError):
        return f"{url} did not answer in time. Is it overloaded? Try again."
    if isinstance(error, openai.APIConnectionError):
        return (
            f"Nothing answers at {url}. "
            "Start a server with `fastgen serve smollm2`, or name another with --url."
        )
    if not isinstance(error, openai.APIStatusError):
        return f"{url} gave an answer that could not be read: {error}"
    said = _message(error)
    if error.status_code == 404:
        which = f" (model {model!r})" if model else ""
        return (
            f"{url} does not know this{which}: {said}. "
            "Leave --model out to take the first that it serves, and check --url."
        )
    if error.status_code == 429:
        after = error.response.headers.get("retry-after")
        when = f"in {after} s" if after else "in a moment"
        return f"{url} is full: {said}. Try again {when}, or add replicas."
    if error.status_code == 503:
        return f"{url} takes no requests now (starting or draining): {said}. Try again in a moment."
    return f"{url} answered {error.status_code}: {said}"


def _message(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return str(body["message"]).rstrip(".")
    return error.response.text.strip()[:300].rstrip(".") or "no reason given"


def first_model(client: openai.OpenAI, url: str) -> str:
    """The first model that the endpoint serves; raises AnswerError."""
    try:
        models = [model.id for model in client.models.list()]
    except openai.OpenAIError as error:
        raise AnswerError(explain(error, url)) from error
    if not models:
        raise AnswerError(f"{url} serves no model; name one with --model.")
    return models[0]


@dataclass(slots=True)
class Conversation:
    """The messages so far: always a question, then its answer."""

    client: openai.OpenAI
    settings: Settings
    model: str
    now: Callable[[], float] = time.monotonic
    messages: list[ChatCompletionMessageParam] = field(default_factory=list)
    pace: Pace | None = None
    """Of the last answer."""

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = []
        if self.settings.system:
            self.messages.append({"role": "system", "content": self.settings.system})

    def ask(self, text: str) -> Generator[str, None, None]:
        """Stream the answer's pieces; an answer that was stopped is kept as far as it came.

        Raises AnswerError, and then forgets the question.
        """
        self.messages.append({"role": "user", "content": text})
        self.pace = None
        pieces: list[str] = []
        try:
            for piece in self._stream():
                pieces.append(piece)
                yield piece
        except openai.OpenAIError as error:
            if pieces and not isinstance(error, openai.APIStatusError):
                raise AnswerError(
                    "The answer broke off: its replica is gone. Ask again."
                ) from error
            raise AnswerError(explain(error, self.settings.url, self.model)) from error
        finally:
            if pieces:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()

    def _stream(self) -> Iterator[str]:
        started, first, tokens = self.now(), None, 0
        temperature, max_tokens = self.settings.temperature, self.settings.max_tokens
        with self.client.chat.completions.create(
            model=self.model,
            messages=self.messages,
            stream=True,
            stream_options={"include_usage": True},
            temperature=openai.omit if temperature is None else temperature,
            max_tokens=openai.omit if max_tokens is None else max_tokens,
        ) as chunks:
            for chunk in chunks:
                if chunk.usage:
                    tokens = chunk.usage.completion_tokens
                if piece := _text(chunk):
                    first = first or self.now()
                    tokens += 1
                    yield piece
        if first is not None:
            self.pace = Pace(first - started, self.now() - started, tokens)


def _text(chunk: ChatCompletionChunk) -> str:
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""


def start(settings: Settings) -> Conversation:
    """Connect, and choose the model; raises AnswerError."""
    client = make_client(settings.url)
    model = settings.model or first_model(client, settings.url)
    return Conversation(client, settings, model)


def say_once(conversation: Conversation, text: str, write: Callable[[str], object]) -> None:
    """Ask one thing and write the plain answer; raises AnswerError."""
    for piece in conversation.ask(text):
        write(piece)
    write("\n")


def talk(conversation: Conversation, console: Console, read: Callable[[], str]) -> None:
    """Talk until `/quit` or the end of input."""
    console.print(f"[bold]{conversation.model}[/bold] at {conversation.settings.url}. {HELP}")
    while True:
        try:
            text = read().strip()
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:
            console.print(f"\n[dim]{HELP}[/dim]")
            continue
        if text in GOODBYE:
            return
        if text == "/reset":
            conversation.reset()
            console.print("[dim]Forgotten.[/dim]")
        elif text.startswith("/"):
            console.print(f"[dim]There is no {text.split()[0]}. {HELP}[/dim]")
        elif text:
            _answer(conversation, console, text)


def _answer(conversation: Conversation, console: Console, text: str) -> None:
    """Stream one answer to the terminal; Ctrl-C stops it, an error leaves the conversation."""
    pieces = conversation.ask(text)
    try:
        for piece in pieces:
            console.out(piece, end="", highlight=False)
            console.file.flush()
    except KeyboardInterrupt:
        console.print("\n[dim]Stopped.[/dim]")
        return
    except AnswerError as error:
        console.print(f"\n[red]{error}[/red]")
        return
    finally:
        pieces.close()
    pace = conversation.pace
    console.print(f"\n[dim]{pace.line() if pace else 'An empty answer.'}[/dim]\n")
