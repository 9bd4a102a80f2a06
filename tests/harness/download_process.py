"""`fastgen-download` as a process, into a cache of the test's own."""

import json
import multiprocessing
import os
import sys
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from fastgen_api import names

_SETTINGS = ("HF_TOKEN", "HF_ENDPOINT", "HF_HOME", "HF_HUB_OFFLINE")
_CONTEXT = multiprocessing.get_context("forkserver")
# Half a second of imports once, and not for each process.
_CONTEXT.set_forkserver_preload(["fastgen_runtime.download_main", "httpx2", "pytest"])


@dataclass(frozen=True, slots=True)
class Ended:
    """How a download ended. text: all that it wrote."""

    code: int
    text: str
    last_words: str

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Its log lines of this message."""
        lines = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in lines if line["message"] == message]


@dataclass(frozen=True, slots=True)
class Running:
    """A download that has been started."""

    process: ForkServerProcess
    output: Path
    last_words: Path

    def end(self, seconds: float = 60) -> Ended:
        """Waits for its end; kills it when that does not come."""
        self.process.join(seconds)
        self.kill()
        code = self.process.exitcode
        assert code is not None
        return Ended(code, self.output.read_text(), self.last_words.read_text())

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()


@dataclass(frozen=True, slots=True)
class Downloads:
    """Starts downloads. folder: holds the cache and the last words; environment: of all."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def start(self, source: str, *flags: str, **environment: str) -> Running:
        """A running download; whoever started it ends it."""
        self.folder.mkdir(exist_ok=True)
        number = len(list(self.folder.glob("*.log")))
        output, last_words = self.folder / f"{number}.log", self.folder / f"{number}.words"
        output.touch()
        last_words.touch()
        inherited = {key: value for key, value in os.environ.items() if key not in _SETTINGS}
        settings = inherited | self.environment | environment
        arguments = [f"--source={source}", f"--cache={self.cache}", *flags]
        process = _CONTEXT.Process(target=_run, args=(arguments, settings, output, last_words))
        process.start()
        return Running(process, output, last_words)

    def run(self, source: str, *flags: str, **environment: str) -> Ended:
        return self.start(source, *flags, **environment).end()

    def partial_bytes(self) -> int:
        """How much has come of files that are not whole."""
        return sum(path.stat().st_size for path in self.cache.rglob("*.incomplete"))


def _run(arguments: list[str], environment: dict[str, str], output: Path, last_words: Path) -> None:
    """The program in this process, with another path than the kubelet's for its last words."""
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    names.TERMINATION_MESSAGE_PATH = str(last_words)  # type: ignore[misc]
    sys.argv = ["fastgen-download", *arguments]
    from fastgen_runtime.download_main import app

    app()
