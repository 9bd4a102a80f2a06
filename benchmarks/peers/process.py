"""An engine in a process of its own, asked through its adapter."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from peers.memory import busy_seconds, seconds_of_tree
from peers.protocol import Answer, Request, Settings

PACKAGE = Path(__file__).resolve().parent
_STOP_SECONDS = 30.0
PATIENCE_SECONDS = 1800.0
"""For loading, what an engine compiles then included, and for each list of requests."""


class EngineError(Exception):
    """The engine cannot load, or failed; the text is its own."""


@dataclass(frozen=True, slots=True)
class Run:
    """Answers to a list of requests. foreign_share: of the machine's CPU time that others took."""

    answers: list[Answer]
    seconds: float
    foreign_share: float


def ending(code: int) -> str:
    """What an exit status says."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


class EngineProcess:
    """Started with its adapter; a context manager that ends it and all that it started."""

    def __init__(
        self, python: Path, adapter: str, settings: Settings, log: Path,
        environment: dict[str, str], patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:  # fmt: skip
        """adapter: a module of `peers.adapters`. log: gets what the engine prints."""
        self._log = log
        self._patience_seconds = patience_seconds
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, "-m", f"peers.adapters.{adapter}", json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=log.parent,
                env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment},
                start_new_session=True, text=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the adapter; what it starts is below it."""
        return self._process.pid

    def facts(self) -> dict[str, Any]:
        """Waits until the engine has loaded; raises EngineError."""
        ready: dict[str, Any] = self._read()["ready"]
        return ready

    def run(self, requests: Sequence[Request]) -> Run:
        """Answers to the requests, checked for their lengths; raises EngineError."""
        assert self._process.stdin is not None
        message = {"requests": [asdict(request) for request in requests]}
        busy, own, begun = busy_seconds(), seconds_of_tree(self.pid), time.monotonic()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise EngineError(self._last_words()) from None
        read = self._read()
        spent = time.monotonic() - begun
        foreign = busy_seconds() - busy - (seconds_of_tree(self.pid) - own)
        answers = [Answer(**fields) for fields in read["outputs"]]
        for request, answer in zip(requests, answers, strict=True):
            if len(answer.times) != request.output:
                raise EngineError(f"{len(answer.times)} tokens came, not {request.output}")
        share = max(0.0, foreign) / (spent * (os.cpu_count() or 1))
        return Run(answers, read["seconds"], share)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self._kill()

        watch = threading.Timer(self._patience_seconds, end)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        if not line:
            words = f"no answer in {self._patience_seconds:g} s, " if is_late.is_set() else ""
            raise EngineError(words + self._last_words())
        read: dict[str, Any] = json.loads(line)
        if "error" in read:
            raise EngineError(read["error"])
        return read

    def _kill(self) -> None:
        """The adapter and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        """Why it ended, with the last line that it printed."""
        code = self._process.wait(_STOP_SECONDS)
        lines = [
            line for line in self._log.read_text(errors="replace").splitlines() if line.strip()
        ]
        return f"{ending(code)}; its last line: {lines[-1].strip()[:300] if lines else 'none'}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End of input is the adapter's end; what is left of its session then is killed."""
        assert self._process.stdin is not None
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(0.0 if error else _STOP_SECONDS)
        self._kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
