"""A program on a terminal of its own."""

import contextlib
import os
import pty
import select
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass
class Terminal:
    """seen: all that the program has printed so far."""

    process: subprocess.Popen[bytes]
    controller: int
    other_end: int
    seen: str = ""

    def frames(self) -> int:
        """How often the table was drawn."""
        self.sees("")
        return self.seen.count("fastgen top")

    def sees(self, words: str) -> bool:
        """Whether it has printed this so far."""
        while select.select([self.controller], [], [], 0)[0]:
            self.seen += os.read(self.controller, 65536).decode(errors="replace")
        return words in self.seen


@contextlib.contextmanager
def on_terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """The program in a window of 40 lines and 120 columns; killed if it has not ended."""
    controller, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (40, 120))
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        start_new_session=True,
    )
    try:
        yield Terminal(process, controller, other_end)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(controller)
        os.close(other_end)
