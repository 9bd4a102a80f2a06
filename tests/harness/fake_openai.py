"""An OpenAI endpoint without a model: a word is a token, and answers come at once."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "fake"
TEMPLATE_TOKENS = 5
"""What its chat template adds to a prompt."""


@dataclass
class FakeOpenAI:
    """What it was asked, and how it misbehaves. refuse: status and message of every answer.

    long_words: what it counts as two tokens. hold: answers wait for it after their first token.
    """

    url: str = ""
    api_key: str | None = None
    has_usage: bool = True
    refuse: tuple[int, str] | None = None
    breaks_off: bool = False
    long_words: frozenset[str] = frozenset()
    hold: threading.Event | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    first_token: threading.Event = field(default_factory=threading.Event)

    def count(self, text: str) -> int:
        return sum(2 if word in self.long_words else 1 for word in text.split())

    def prompt_tokens(self, body: dict[str, Any]) -> int:
        if "messages" in body:
            return TEMPLATE_TOKENS + self.count(body["messages"][0]["content"])
        prompt = body["prompt"]
        return self.count(prompt) if isinstance(prompt, str) else len(prompt)

    def events(self, body: dict[str, Any]) -> Iterator[bytes]:
        for number in range(body["max_tokens"]):
            if number == 1 and self.hold is not None:
                self.first_token.set()
                self.hold.wait(60)
            text = f" w{number}"
            choice = {"delta": {"content": text}} if "messages" in body else {"text": text}
            yield _event({"choices": [choice], "usage": None})
        if self.breaks_off:
            return
        if self.has_usage:
            prompt = self.prompt_tokens(body)
            usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
            yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@contextmanager
def fake_openai(**faults: Any) -> Iterator[FakeOpenAI]:
    """Serves on a free port of loopback until the block ends."""
    fake = FakeOpenAI(**faults)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self._is_let_in():
                self._send(200, {"data": [{"id": MODEL}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self._is_let_in():
                return
            fake.bodies.append(body)
            if fake.refuse is not None:
                self._send(fake.refuse[0], {"error": {"message": fake.refuse[1]}})
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in fake.events(body):
                self.wfile.write(event)
                self.wfile.flush()

        def _is_let_in(self) -> bool:
            given = self.headers.get("authorization", "").removeprefix("Bearer ")
            fake.keys.append(given)
            if fake.api_key is None or given == fake.api_key:
                return True
            self._send(401, {"error": {"message": f"wrong key {given}"}})
            return False

        def _send(self, status: int, value: dict[str, Any]) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield fake
    finally:
        if fake.hold is not None:
            fake.hold.set()
        server.shutdown()
        server.server_close()
