"""The chat client against endpoints that misbehave; a good one is in tests/runtime."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fastgen_cli import chat
from fastgen_cli.chat import AnswerError, Conversation, Pace, Settings
from fastgen_cli.main import app
from fastgen_cli.url import base_url

Answer = Callable[[BaseHTTPRequestHandler], None]


def refuse(status: int, message: str, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        body = json.dumps({"error": {"message": message}}).encode()
        request.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def stream(*pieces: str, done: bool = True) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        for piece in pieces:
            choice = {"index": 0, "delta": {"content": piece}}
            send(request, json.dumps({"id": "1", "choices": [choice]}))
        if done:
            usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
            send(request, json.dumps({"id": "1", "choices": [], "usage": usage}))
            send(request, "[DONE]")
            request.wfile.write(b"0\r\n\r\n")
        request.close_connection = True

    return answer


def send(request: BaseHTTPRequestHandler, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    request.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))


@contextmanager
def endpoint(*answers: Answer, models: tuple[str, ...] = ("m",)) -> Iterator[str]:
    """A server on loopback that gives these answers to chat requests, one after the other."""
    waiting = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": name} for name in models]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            next(waiting)(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def ask(url: str, text: str = "Hi", model: str | None = None) -> tuple[Conversation, str]:
    conversation = chat.start(Settings(url, model=model))
    return conversation, "".join(conversation.ask(text))


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://localhost:8000", "http://localhost:8000/v1/"]
)
def test_a_url_may_leave_out_what_is_plain(url: str) -> None:
    assert base_url(url) == "http://localhost:8000/v1"


def test_the_pace_is_told_in_a_line() -> None:
    line = Pace(ttft_seconds=0.5, total_seconds=2.5, tokens=41).line()
    assert line == "first token after 0.50 s, then 20.0 tokens/s (41 tokens)"


def test_an_answer_is_streamed_and_kept() -> None:
    with endpoint(stream("Hel", "lo"), models=("first", "second")) as url:
        conversation, text = ask(url)
    assert (conversation.model, text) == ("first", "Hello")
    assert conversation.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    assert conversation.pace is not None
    assert conversation.pace.tokens == 7


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refuse(404, "no such model"), "does not know this (model 'x'): no such model"),
        (refuse(429, "full", **{"retry-after": "7"}), "is full: full. Try again in 7 s"),
        (refuse(503, "draining"), "takes no requests now (starting or draining): draining"),
        (refuse(400, "temperature is too high"), "answered 400: temperature is too high"),
        (stream("Hel", done=False), "The answer broke off"),
    ],
)
def test_an_error_says_what_it_means_and_leaves_no_question_behind(
    answer: Answer, says: str
) -> None:
    with endpoint(answer, stream("again")) as url:
        conversation = chat.start(Settings(url, model="x"))
        with pytest.raises(AnswerError) as caught:
            list(conversation.ask("Hi"))
        assert says in str(caught.value)
        kept = list(conversation.messages)
        assert "".join(conversation.ask("Once more")) == "again"
    assert [one["role"] for one in kept] in ([], ["user", "assistant"])


def test_nobody_there_is_told_with_the_way_out() -> None:
    with endpoint() as url:
        pass
    with pytest.raises(AnswerError, match=r"Nothing answers at .*fastgen serve smollm2"):
        ask(url)


def test_a_conversation_at_the_terminal() -> None:
    lines = iter(["Hi", "/what", "And?", "/reset", "Still there?", "/quit"])
    screen = io.StringIO()
    with endpoint(stream("Hello"), refuse(429, "full"), stream("Yes")) as url:
        conversation = chat.start(Settings(url, system="Be kind."))
        chat.talk(conversation, Console(file=screen, width=200), lambda: next(lines))
    shown = screen.getvalue()
    assert "Hello" in shown
    assert "There is no /what" in shown
    assert "is full" in shown
    assert "tokens/s" in shown
    assert conversation.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Still there?"},
        {"role": "assistant", "content": "Yes"},
    ]


def test_a_pipe_gets_the_plain_answer_alone() -> None:
    with endpoint(stream("Hel", "lo [b]")) as url:
        done = CliRunner().invoke(app, ["chat", "--url", url], input="Say hello\n")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "Hello [b]\n", "")


def test_a_failed_command_says_why_on_stderr() -> None:
    with endpoint(refuse(429, "full")) as url:
        done = CliRunner().invoke(app, ["chat", "--url", url, "-m", "Hi"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "is full" in done.stderr


def test_nothing_on_the_pipe_is_told() -> None:
    done = CliRunner().invoke(app, ["chat"], input="")
    assert done.exit_code == 1
    assert "standard input was empty" in done.stderr
