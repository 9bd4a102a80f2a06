"""Replicas on CPUs: the step as one op, and what they do where it cannot be had."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from replica_process import MODEL, ReplicaProcess, running_replica
from tiny_model import write_tiny_model

from fastgen_kernels.cpu_step.isa import isa_of
from fastgen_runtime.engine import cores

pytestmark = pytest.mark.skipif(isa_of(cores.cpu_flags()) is None, reason="needs AVX2")

NOT_USED: Final = "the whole-step op is not used"
SHAPE: Final = {"hidden_size": 64, "intermediate_size": 96}
"""Four heads of 16 dimensions."""
FIND: Final = """
import logging, sys
from pathlib import Path
from fastgen_runtime.device.cpu_path import find_cpu_path
from fastgen_runtime.engine import cores
from fastgen_runtime.engine.runner_config import RunnerConfig
from fastgen_runtime.log import start_logging
from fastgen_runtime.models.checkpoint import open_checkpoint

start_logging("test")
found = find_cpu_path(open_checkpoint(Path(sys.argv[1])).config, RunnerConfig(), cores.cpu_flags())
print(found.library if found else "")
"""


async def answers(replica: ReplicaProcess) -> list[str]:
    """Of prompts that are computed side by side, in chunks and as decodes."""
    prompts = [
        "The capital of France is",
        "Once upon a time, in a small village by the sea, " * 8,
        "def fibonacci(n):",
    ]
    async with replica.openai() as client:
        asked = [
            client.completions.create(model=MODEL, prompt=prompt, max_tokens=24, temperature=0)
            for prompt in prompts
        ]
        return [answer.choices[0].text for answer in await asyncio.gather(*asked)]


def told(replica: ReplicaProcess, message: str) -> list[dict[str, Any]]:
    return [event for event in replica.events() if event["message"].startswith(message)]


async def test_a_replica_without_a_compiler_says_so_once_and_answers_the_same(
    replica: ReplicaProcess, smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(replica, "whole-step op"), "the shared replica does not use the op"
    assert not told(replica, NOT_USED)
    expected = await answers(replica)
    monkeypatch.setenv("FASTGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    flags = ("--max-model-length=1024", "--kv-block-size=16", "--token-budget=64")
    with running_replica(smollm2_path, tmp_path, *flags) as other:
        (warning,) = told(other, NOT_USED)
        assert "no C++ compiler is installed" in warning["why"]
        assert await answers(other) == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", **SHAPE)


def start_finding(folder: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", FIND, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def found_by(process: "subprocess.Popen[str]") -> tuple[str, list[dict[str, Any]]]:
    """The library's path, empty for none, and what was logged."""
    output, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    return output.strip(), [json.loads(line) for line in log.splitlines()]


def test_processes_that_start_at_once_compile_once(folder: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    found = [
        found_by(process)
        for process in [start_finding(folder, FASTGEN_CACHE=cache) for _ in range(2)]
    ]
    assert found[0][0] == found[1][0]
    assert found[0][0].startswith(cache)
    compiled = [
        event for _, log in found for event in log if event["message"] == "whole-step op compiled"
    ]
    assert len(compiled) == 1


@pytest.mark.parametrize("name", ["c++", "g++"])
def test_a_broken_compiler_is_told_in_its_own_words(
    folder: Path, tmp_path: Path, name: str
) -> None:
    compiler = tmp_path / "bin" / name
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\necho 'cc1plus: out of luck' >&2\nexit 4\n")
    compiler.chmod(0o755)
    library, log = found_by(
        start_finding(
            folder, FASTGEN_CACHE=str(tmp_path / "cache"), PATH=f"{compiler.parent}:/nothing"
        )
    )
    assert library == ""
    (warning,) = [event for event in log if event["level"] == "warning"]
    assert "cc1plus: out of luck" in warning["why"]
    assert not list(tmp_path.glob("cache/**/*.so"))


def test_a_cache_that_cannot_be_written_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    library, log = found_by(start_finding(folder, FASTGEN_CACHE=str(tmp_path / "cache")))
    assert library == ""
    (warning,) = [event for event in log if event["level"] == "warning"]
    assert "cannot be kept in" in warning["why"]


def test_a_library_that_does_not_load_is_told(folder: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    library, _ = found_by(start_finding(folder, FASTGEN_CACHE=cache))
    Path(library).write_text("no library")
    again, log = found_by(start_finding(folder, FASTGEN_CACHE=cache))
    assert again == ""
    (warning,) = [event for event in log if event["level"] == "warning"]
    assert "does not load" in warning["why"]
