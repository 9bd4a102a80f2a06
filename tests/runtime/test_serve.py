"""`fastgen serve` and `fastgen chat` as a person uses them, with the real model."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx2
import pytest
from typer.testing import CliRunner, Result

from fastgen_api.spec import SLO
from fastgen_api.v1 import inference_pb2, inference_pb2_grpc
from fastgen_cli.load import Load, Plan, make_arrivals
from fastgen_cli.main import app
from fastgen_cli.plan import free_ports
from fastgen_cli.summary import summarize
from fastgen_runtime.sources.fetch import SMOLLM2, fetch

FASTGEN = str(Path(sys.executable).parent / "fastgen")
START_SECONDS = 120.0
QUESTION = "What is the capital of France?"

pytestmark = pytest.mark.timeout(300)


@dataclass
class Server:
    """A running `fastgen serve`."""

    process: "subprocess.Popen[bytes]"
    output: Path
    port: int
    grpc_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def said(self) -> str:
        return self.output.read_text()

    def family(self) -> set[int]:
        """Pids of everything that descends from it."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (stat := read(entry / "stat")):
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.process.pid}

    def find(self, *words: str) -> int:
        """The pid of the descendant whose command line holds these words."""
        for pid in sorted(self.family()):
            command = read(Path(f"/proc/{pid}/cmdline")).split("\0")
            if all(word in command for word in words):
                return pid
        raise LookupError(f"no process with {words}")


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    stat = read(Path(f"/proc/{pid}/stat"))
    return not stat or stat.rpartition(")")[2].split()[0] in "ZX"


def wait_until_gone(pids: set[int], seconds: float = 10) -> set[int]:
    """The pids that still live after so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(is_gone(pid) for pid in pids):
        time.sleep(0.05)
    return {pid for pid in pids if not is_gone(pid)}


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[Server]:
    fetch(SMOLLM2)
    port, grpc_port = free_ports(2)
    output = directory / "serve.txt"
    words = [FASTGEN, "serve", "smollm2", "--port", str(port), *options]
    if "--replicas" not in options:
        words += ["--grpc-port", str(grpc_port)]
    with output.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
    server = Server(process, output, port, grpc_port if "--replicas" not in options else port)
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Ctrl-C ends it" not in server.said():
            assert process.poll() is None, server.said()
            assert time.monotonic() < deadline, server.said()
            time.sleep(0.1)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("single"), "--dtype", "float32") as server:
        yield server


def chat(server: Server, *words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["chat", "--url", server.url, *words], input=stdin)


def test_serve_says_what_to_do_next(single: Server) -> None:
    said = single.said()
    assert f"{single.url}/v1" in said
    assert f"fastgen chat --url {single.url}" in said
    assert f"curl -N {single.url}/v1/chat/completions" in said


def test_chat_prints_a_plain_answer(single: Server) -> None:
    words = [FASTGEN, "chat", "--url", single.url, "-m", QUESTION, "--temperature", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout
    assert "tokens/s" not in done.stdout


def test_chat_reads_a_pipe_and_a_system_message(single: Server) -> None:
    words = ("--temperature", "0", "--max-tokens", "24")
    plain = chat(single, *words, stdin="Who are you?")
    told = chat(single, *words, "--system", "You are Bob, a pirate.", stdin="Who are you?")
    again = chat(single, *words, "--message", "Who are you?")
    assert plain.exit_code == told.exit_code == again.exit_code == 0
    assert plain.stdout.strip()
    assert plain.stdout == again.stdout, "standard input is the message"
    assert told.stdout.strip()
    assert told.stdout != plain.stdout, "the system message reached the model"


def test_chat_tells_of_a_model_that_is_not_served(single: Server) -> None:
    done = chat(single, "-m", QUESTION, "--model", "other")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "other" in done.stderr
    assert "Leave --model out" in done.stderr


def test_the_load_generator_measures_real_answers(single: Server) -> None:
    plan = Plan(2.0, 4.0, prompt_words=(5, 20), max_tokens=8)
    load = Load(f"{single.url}/v1", "smollm2")
    arrivals = list(make_arrivals(plan))
    asyncio.run(load.run(arrivals, plan, asyncio.Event()))
    assert len(load.samples) == load.sent == len(arrivals)
    assert [sample.error for sample in load.samples] == [""] * len(arrivals)
    for sample in load.samples:
        assert sample.ttft_seconds is not None
        assert 0 < sample.ttft_seconds < sample.ended_seconds - sample.sent_seconds + 0.01
        assert sample.prompt_tokens > 5
        assert 1 <= sample.output_tokens <= 8
    assert {sample.replica for sample in load.samples} == {"replica-0"}


def test_a_taken_port_is_refused_before_anything_starts(single: Server) -> None:
    words = [FASTGEN, "serve", "smollm2", "--port", str(single.port)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "choose another with --port" in done.stderr


def test_two_replicas_share_a_port_and_sigterm_lets_answers_end(tmp_path: Path) -> None:
    with serving(tmp_path, "--replicas", "2") as server:
        plan = Plan(4.0, 5.0, prompt_words=(5, 20), max_tokens=12)
        load = Load(f"{server.url}/v1", "smollm2")
        asyncio.run(load.run(make_arrivals(plan), plan, asyncio.Event()))
        summary = summarize(load.samples, 5.0, SLO())
        assert set(summary.statuses) == {200}
        assert set(summary.replicas) == {"replica-0", "replica-1"}
        assert ask_over_grpc(server) != ""
        family = server.family()
        assert len(family) >= 4
        assert "data: [DONE]" in stream_over_sigterm(server)
        assert server.process.wait(60) == 0, server.said()
        assert wait_until_gone(family) == set()
        assert "Stopped." in server.said()


def stream_over_sigterm(server: Server) -> list[str]:
    """The lines of an answer in whose midst the server is told to stop."""
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "max_tokens": 64,
        "stream": True,
    }
    url = f"{server.url}/v1/chat/completions"
    with httpx2.stream("POST", url, json=body, timeout=60, trust_env=False) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.terminate()
        return list(lines)


def ask_over_grpc(server: Server) -> str:
    request = inference_pb2.GenerateRequest(
        chat=inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="Hi")]),
        stopping=inference_pb2.Stopping(max_tokens=8),
    )
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return "".join(reply.text for reply in stub.Generate(request, timeout=60))


def test_one_replica_answers_grpc_on_its_own_port(single: Server) -> None:
    assert ask_over_grpc(single) != ""


def test_a_killed_replica_ends_all_with_its_name_and_log(tmp_path: Path) -> None:
    with serving(tmp_path, "--replicas", "2") as server:
        family = server.family()
        victim = server.find("--served-name", "smollm2", "45")
        os.kill(victim, signal.SIGKILL)
        assert server.process.wait(60) == 1
        assert "was killed by SIGKILL. Its last log lines:" in server.said()
        assert wait_until_gone(family) == set()


def test_a_replica_that_cannot_start_ends_serve_with_its_reason(smollm2_path: Path) -> None:
    port, grpc_port = free_ports(2)
    words = [FASTGEN, "serve", "smollm2", "--port", str(port), "--grpc-port", str(grpc_port)]
    words += ["--max-model-length", "999999"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "replica-0 ended with code 1" in done.stderr
    assert "ConfigInvalid" in done.stderr
