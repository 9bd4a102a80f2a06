"""A real replica on loopback: `fastgen-runtime` with the real model."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
import openai
from prometheus_client.parser import text_string_to_metric_families

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

MODEL = "smollm2"
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ReplicaProcess:
    """A running replica, its ports and its log."""

    process: "subprocess.Popen[bytes]"
    log: Path
    http_port: int
    grpc_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120
        )

    def channel(self) -> grpc.aio.Channel:
        options = (("grpc.use_local_subchannel_pool", 1),)
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc_port}", options=options)

    def load(self) -> inference_pb2.GetLoadResponse:
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            load: inference_pb2.GetLoadResponse = stub.GetLoad(
                inference_pb2.GetLoadRequest(), timeout=10
            )
            return load

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample."""
        text = httpx2.get(f"{self.url}/metrics").text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        raise AssertionError(f"no sample {name} {labels}")

    def events(self) -> list[dict[str, Any]]:
        """The log's lines; each must be JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def engine_pid(self) -> int:
        """The engine process, found as the front's only child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = children.read_text().split()
        return int(pid)

    def is_idle(self) -> bool:
        """Whether no request is open and every block is free."""
        load = self.load()
        return (
            load.running_requests == load.waiting_requests == 0
            and load.free_blocks == load.total_blocks
        )


def command(termination_message: Path) -> list[str]:
    """`fastgen-runtime`, with another path than the kubelet's for its last words."""
    program = (
        "import sys; from fastgen_api import names; names.TERMINATION_MESSAGE_PATH = sys.argv[1]; "
        "del sys.argv[1]; from fastgen_runtime.main import app; app()"
    )
    return [sys.executable, "-c", program, str(termination_message)]


@contextmanager
def running_replica(
    model: Path, directory: Path, *flags: str, wait: bool = True
) -> Iterator[ReplicaProcess]:
    """Starts a replica on free ports, and ends it when the block does.

    Its last words go to the file `termination-log` in the directory, if there is one.
    """
    log = directory / f"replica-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *command(directory / "termination-log"),
                f"--model={model}", f"--served-name={MODEL}", "--host=127.0.0.1",
                "--http-port=0", "--grpc-port=0", "--memory-percent=40", "--dtype=Float32",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"POD_NAME": "replica-under-test"},
        )  # fmt: skip
    try:
        ports = _ports(process, log)
        replica = ReplicaProcess(process, log, *ports)
        if wait:
            _wait_until_serving(replica)
        yield replica
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def _ports(process: "subprocess.Popen[bytes]", log: Path) -> tuple[int, int]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["message"] == "listening":
                http_port = int(event["url"].rsplit(":", 1)[1].split("/")[0])
                return http_port, int(event["grpc"].rsplit(":", 1)[1])
        time.sleep(0.02)
    raise AssertionError(f"the replica does not listen:\n{log.read_text()}")


def _wait_until_serving(replica: ReplicaProcess) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if replica.process.poll() is not None:
            break
        if httpx2.get(f"{replica.url}/health").status_code == 200:
            return
        time.sleep(0.05)
    raise AssertionError(f"the replica does not serve:\n{replica.log.read_text()}")
