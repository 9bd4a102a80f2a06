"""Tells what is going on and how long it took."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

console = Console(stderr=True, highlight=False)

_lock = threading.Lock()
_live: Progress | None = None
_running = 0

# A faster step is not worth a line of its own when nobody watches.
QUIET_SECONDS = 0.5


def format_seconds(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _acquire() -> Progress:
    global _live, _running
    with _lock:
        if _live is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            _live = Progress(*columns, console=console, transient=True)
            _live.start()
        _running += 1
        return _live


def _release() -> None:
    global _live, _running
    with _lock:
        _running -= 1
        if _running == 0 and _live is not None:
            _live.stop()
            _live = None


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show a step while it runs, several at once if need be, and its time when it is done."""
    started, title = time.monotonic(), escape(title)
    live = _acquire() if console.is_terminal else None
    task = live.add_task(title) if live else None
    mark = "[red]failed[/red]"
    try:
        yield
        mark = "[green]done[/green]"
    finally:
        seconds = time.monotonic() - started
        if live is not None and task is not None:
            live.remove_task(task)
        if seconds >= QUIET_SECONDS or "failed" in mark:
            console.print(
                f"  {mark}  {title}  [dim]{format_seconds(seconds)}[/dim]", soft_wrap=True
            )
        if live is not None:
            _release()
