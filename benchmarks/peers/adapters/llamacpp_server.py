"""llama.cpp's server, over HTTP: it has no continuous batching that a program could drive.

Its client, this program, computes on the same cores, as a user's would.
"""

import atexit
import http.client
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from peers.protocol import Answer, Answerer, Request, Settings, serve

HOST = "127.0.0.1"
START_SECONDS = 300.0
SAMPLING = {"samplers": ["top_k"], "top_k": 1, "ignore_eos": True, "cache_prompt": False}
CACHE_BYTES = 2 * 30 * 3 * 64 * 2
"""Of one token of SmolLM2 in the server's own type of cache, float16."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def command(settings: Settings, port: int) -> list[str]:
    """Own settings: program, batch (-b), micro_batch (-ub), slots."""
    threads = str(settings["threads"])
    return [
        settings["program"], "-m", settings["model"], "--host", HOST, "--port", str(port),
        "-c", str(settings["kv_bytes"] // CACHE_BYTES), "-np", str(settings["slots"]),
        "--no-kv-unified", "--cache-ram", "0", "-t", threads, "-tb", threads,
        "-b", str(settings["batch"]), "-ub", str(settings.get("micro_batch", 512)),
    ]  # fmt: skip


def stream(port: int, request: Request, begun: float, answer: Answer) -> None:
    """One request from its arrival on; tokens inside a character come with its last one."""
    time.sleep(max(0.0, begun + request.at - time.perf_counter()))
    connection = http.client.HTTPConnection(HOST, port, timeout=3600)
    body = {"prompt": request.prompt, "n_predict": request.output, "stream": True,
            "return_tokens": True, **SAMPLING}  # fmt: skip
    connection.request(
        "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"llama-server: {response.status} {response.read()[:300]!r}")
    ids: list[int] = []
    for line in response:
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        now = time.perf_counter() - begun
        answer.times += [now] * (event.get("tokens_predicted", 0) - len(answer.times))
        ids += event.get("tokens", [])
    answer.ids = ids if len(ids) == request.output else None
    if len(answer.times) != request.output:
        raise RuntimeError(f"llama-server: {len(answer.times)} tokens, not {request.output}")


class Server:
    """A running llama-server."""

    def __init__(self, settings: Settings) -> None:
        self._port = free_port()
        self._process = subprocess.Popen(command(settings, self._port), stdin=subprocess.DEVNULL)

    def wait_until_ready(self) -> None:
        """Raises RuntimeError when the server ends instead."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self._process.returncode}")
            with suppress(OSError):
                connection = http.client.HTTPConnection(HOST, self._port, timeout=10)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError("llama-server did not become ready")

    def run(self, requests: list[Request]) -> list[Answer]:
        """All requests, a thread each; raises what the first that failed raised."""
        answers = [Answer(None, []) for _ in requests]
        begun = time.perf_counter()
        with ThreadPoolExecutor(len(requests)) as threads:
            streams = [
                threads.submit(stream, self._port, request, begun, answer)
                for request, answer in zip(requests, answers, strict=True)
            ]
        for each in streams:
            each.result()
        return answers

    def stop(self) -> None:
        """Ends the server."""
        self._process.terminate()
        self._process.wait()


def load(settings: Settings) -> tuple[Answerer, dict[str, Any]]:
    """Starts the server; it ends with this program."""
    server = Server(settings)
    atexit.register(server.stop)
    server.wait_until_ready()
    return server.run, {
        "version": Path(settings["program"]).resolve().parent.parent.name,
        "cache": f"float16 {settings['kv_bytes'] >> 20} MiB, {settings['slots']} slots",
    }


if __name__ == "__main__":
    serve(load)
