"""Child processes that end with us: started in groups of their own, ended by recorded pid."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fastgen_cli.errors import UserError, missing_module, needs

POLL_SECONDS: Final = 0.05


class ProgramMissingError(UserError):
    """A program of ours is not installed; the text says how to get it."""


class ChildDiedError(UserError):
    """A child ended that should run; the text carries its last log lines."""


def find_program(name: str) -> str:
    """The program beside this interpreter, else on the PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ProgramMissingError(needs("fastgen serve", name))
    return found


@dataclass(frozen=True, slots=True)
class Child:
    """A process with a name for people and a log file."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def is_alive(self) -> bool:
        """Whether it still runs; reaps it when not."""
        return self.process.poll() is None

    def last_lines(self, count: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def signal_group(self, number: signal.Signals) -> None:
        """Signal its process group, which it leads, so that nothing that it started stays."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return


def _end_with_parent(argv: Sequence[str]) -> list[str]:
    """Linux: the child gets SIGTERM when this process is gone, even by SIGKILL.

    By util-linux' setpriv, which becomes the program: a call of our own between fork and exec is
    not safe in a process with threads.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--", *argv] if setpriv else list(argv)


@dataclass(slots=True)
class Children:
    """All that was started; leaving the context ends it."""

    directory: Path
    """Where the logs go."""
    running: list[Child] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(self.running, grace_seconds=5)

    def start(self, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a program with these variables added to ours."""
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                _end_with_parent(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                # Ctrl-C in the terminal reaches us alone; we then end the children in order.
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.running.append(child)
        return child

    def check(self) -> None:
        """Raise ChildDiedError when one has ended."""
        for child in self.running:
            if not child.is_alive():
                raise ChildDiedError(describe_death(child))

    def end(
        self,
        chosen: Iterable[Child],
        grace_seconds: float,
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        """SIGTERM, then SIGKILL to what is left after the grace or when `hurry` says so."""
        children = list(chosen)
        for child in children:
            if child.is_alive():
                child.process.terminate()
        deadline = time.monotonic() + grace_seconds
        while any(child.is_alive() for child in children):
            if time.monotonic() > deadline or hurry():
                break
            time.sleep(POLL_SECONDS)
        for child in children:
            child.signal_group(signal.SIGKILL)
            child.process.wait()
        self.running = [child for child in self.running if child not in children]


def describe_death(child: Child) -> str:
    """How a child ended, with the end of its log, or what must be installed for it."""
    missing = missing_module(child.last_lines())
    if missing is not None:
        return needs("fastgen serve", missing)
    code = child.process.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"{child.name} {how}. Its last log lines:\n{child.last_lines() or '(none)'}"
