"""llama.cpp's adapters against programs that speak as its own do."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.adapters import llamacpp_batched, llamacpp_server
from peers.protocol import Request, Settings

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["ignore_eos"] and body["cache_prompt"] is False and body["stream"]
        self.send_response(500 if body["prompt"] == [666] else 200)
        self.end_headers()
        count = body["n_predict"]
        for number in range(1, count + 1):
            # The second token is inside a character: it is not sent on its own.
            if number == 2 and body["prompt"][0] == 2:
                continue
            event = {"tokens": [number], "tokens_predicted": number}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
        end = {"tokens": [], "tokens_predicted": count, "stop": True}
        self.wfile.write(b"data: " + json.dumps(end).encode() + b"\\n\\n")

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

BENCH = """
import json, sys
value = lambda name: int(sys.argv[sys.argv.index(name) + 1])
assert value("-c") == value("-npl") * (value("-npp") + value("-ntg") + 1)
print("some words")
print(json.dumps({"t_pp": 2.0, "t_tg": float(value("-ntg"))}))
"""


def program(folder: Path, source: str) -> str:
    path = folder / "program"
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(0o755)
    return str(path)


def settings(folder: Path, source: str) -> Settings:
    return {"program": program(folder, source), "model": "m.gguf", "threads": 2,
            "kv_bytes": 1 << 30, "slots": 4, "batch": 512}  # fmt: skip


@pytest.fixture
def stopped() -> Iterator[list[llamacpp_server.Server]]:
    """Servers that a test starts are ended after it."""
    servers: list[llamacpp_server.Server] = []
    yield servers
    for server in servers:
        server.stop()


def test_the_server_streams_every_token(
    tmp_path: Path, stopped: list[llamacpp_server.Server]
) -> None:
    server = llamacpp_server.Server(settings(tmp_path, SERVER))
    stopped.append(server)
    server.wait_until_ready()
    whole, split = server.run([Request([1], 3), Request([2], 4, at=0.05)])
    assert whole.ids == [1, 2, 3]
    assert whole.times == sorted(whole.times)
    assert split.ids is None, "a token that was not sent is not known"
    assert len(split.times) == 4
    assert split.times[1] == split.times[2]
    assert split.times[0] >= 0.05


def test_a_refusal_of_the_server_is_raised(
    tmp_path: Path, stopped: list[llamacpp_server.Server]
) -> None:
    server = llamacpp_server.Server(settings(tmp_path, SERVER))
    stopped.append(server)
    server.wait_until_ready()
    with pytest.raises(RuntimeError, match="500"):
        server.run([Request([666], 3)])


def test_a_server_that_ends_is_told_at_once(
    tmp_path: Path, stopped: list[llamacpp_server.Server]
) -> None:
    server = llamacpp_server.Server(settings(tmp_path, "raise SystemExit(3)"))
    stopped.append(server)
    with pytest.raises(RuntimeError, match="ended with 3"):
        server.wait_until_ready()


def test_slots_share_the_cache_evenly_and_by_its_bytes(tmp_path: Path) -> None:
    command = llamacpp_server.command(settings(tmp_path, SERVER), 80)
    tokens = int(command[command.index("-c") + 1])
    # SmolLM2's keys and values: 23,040 bytes a token in 16 bits.
    assert tokens == (1 << 30) // 23_040
    assert "--no-kv-unified" in command


def test_the_bench_gives_the_first_token_with_the_prompt(tmp_path: Path) -> None:
    answer, _ = llamacpp_batched.load(settings(tmp_path, BENCH))
    found = answer([Request([1] * 8, 5)] * 2)
    assert [each.times for each in found] == [[2.0, 3.0, 4.0, 5.0, 6.0]] * 2
    assert all(each.ids is None for each in found)


def test_a_bench_that_fails_says_why(tmp_path: Path) -> None:
    answer, _ = llamacpp_batched.load(settings(tmp_path, "raise SystemExit('no such model')"))
    with pytest.raises(RuntimeError, match="no such model"):
        answer([Request([1], 2)])
