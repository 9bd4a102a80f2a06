"""What stops a start, and what a start costs."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from replica_process import command


def start_and_fail(last_words: Path, *flags: str) -> dict[str, str]:
    """The log event of a replica that cannot start."""
    done = subprocess.run(
        [*command(last_words), "--host=127.0.0.1", "--http-port=0", "--grpc-port=0", *flags],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stderr.splitlines()]
    (failure,) = [event for event in events if event["message"] == "cannot start"]
    return {"reason": failure["reason"], "sentence": failure["sentence"]}


@pytest.mark.parametrize(
    ("flags", "reason", "words"),
    [
        (("--model=file:///nowhere",), "ModelNotFound", "/nowhere"),
        (("--model=ftp://host/model",), "ModelUnsupported", "ftp"),
        (("--model=MODEL", "--kv-block-size=48"), "ConfigInvalid", "--kv-block-size is 48"),
        (("--model=MODEL", "--token-budget=0"), "ConfigInvalid", "--token-budget is 0"),
        (("--model=MODEL", "--memory-percent=101"), "ConfigInvalid", "--memory-percent is 101"),
        (("--model=MODEL", "--drain-seconds=nan"), "ConfigInvalid", "--drain-seconds is nan"),
        (("--model=MODEL", "--slo-file=/nowhere"), "ConfigInvalid", "--slo-file /nowhere"),
        (("--model=MODEL", "--max-model-length=999999"), "ConfigInvalid", "999999"),
        (
            ("--model=MODEL", "--tensor-parallel-size=2"),
            "ConfigInvalid",
            "--tensor-parallel-size is 2: the model's 9 heads cannot be split in 2 equal parts; "
            "it may be 1 or 3",
        ),
    ],
)
def test_what_stops_a_start_is_said_in_a_sentence(
    smollm2_path: Path, tmp_path: Path, flags: tuple[str, ...], reason: str, words: str
) -> None:
    """In the log, and where the kubelet reads it."""
    last_words = tmp_path / "termination-log"
    last_words.touch()
    flags = tuple(flag.replace("MODEL", str(smollm2_path)) for flag in flags)
    failure = start_and_fail(last_words, *flags)
    assert last_words.read_text() == "{reason}: {sentence}".format(**failure)
    assert failure["reason"] == reason
    assert words in failure["sentence"]


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
def test_a_port_that_is_taken_stops_the_start(
    smollm2_path: Path, tmp_path: Path, flag: str
) -> None:
    # A listener that would share its port with any other that says the same.
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        failure = start_and_fail(tmp_path / "absent", f"--model={smollm2_path}", f"{flag}={port}")
    assert failure["reason"] == "ConfigInvalid"
    assert "a port cannot be listened on" in failure["sentence"]
    assert list(tmp_path.iterdir()) == [], "outside Kubernetes nothing is written"


def test_the_front_never_imports_torch(smollm2_path: Path) -> None:
    """Everything that the front does until the engine's first step, in a fresh interpreter."""
    program = """
import asyncio, sys
import fastgen_runtime.main
from pathlib import Path
from fastgen_api.spec import SLO
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.front.front import Front
from fastgen_runtime.front.generation import ChatMessage, ChatPrompt
from fastgen_runtime.front.metrics import Metrics

async def main():
    checkpoint = open_checkpoint(Path(sys.argv[1]))
    front = Front(checkpoint, "m", 100, 1, 1, Metrics("", "", SLO()), SLO(), print)
    await front.encoder.encode(ChatPrompt([ChatMessage("user", "Hi")]))
    front.close()

asyncio.run(main())
print(sorted({"torch", "triton", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(smollm2_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
