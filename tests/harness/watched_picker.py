"""The picker's program, which tells on SIGUSR1 what it holds: `watched_picker.py ARGUMENTS`.

Nothing of it is changed; a handler writes tasks and objects to the file named by TELL_TO.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from balancer_process import eventually

TELL_TO = "FASTGEN_TEST_TELL_TO"
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Held:
    """What a picker holds; tasks: by the function that each runs."""

    tasks: dict[str, int]
    objects: int
    resident_bytes: int
    descriptors: int


def tell(number: int, frame: FrameType | None) -> None:
    """Writes it whole or not at all."""
    gc.collect()
    running = asyncio.all_tasks()
    told = {
        "tasks": Counter(getattr(task.get_coro(), "__qualname__", "?") for task in running),
        "objects": len(gc.get_objects()),
        "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    path = Path(os.environ[TELL_TO])
    new = path.with_suffix(".new")
    new.write_text(json.dumps(told))
    new.rename(path)


def take(path: Path) -> Held | None:
    """What was told, once; None: nothing yet."""
    try:
        told = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    path.unlink()
    return Held(**told)


async def held_by(process: asyncio.subprocess.Process, path: Path) -> Held:
    """Asks a watched picker whose TELL_TO is this path, thrice: the least is what it keeps.

    Calls come and go, its questions for load among them.
    """
    answers: list[Held] = []

    def has_told() -> bool:
        held = take(path)
        answers.extend([held] if held else [])
        return held is not None

    for _ in range(3):
        process.send_signal(signal.SIGUSR1)
        await eventually(has_told)
    return min(answers, key=lambda held: sum(held.tasks.values()))


if __name__ == "__main__":
    from fastgen_balancer.main import app

    signal.signal(signal.SIGUSR1, tell)
    app(sys.argv[1:])
