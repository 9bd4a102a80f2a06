"""The command `top`: a table that moves, or one look."""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fastgen_cli.cluster_reads import Reader, with_reader
from fastgen_cli.errors import UserError
from fastgen_cli.kubeconfig import Target
from fastgen_cli.top_read import Watcher
from fastgen_cli.top_table import Picture, draw

REFRESH_SECONDS: Final = 2.0
ONCE_SECONDS: Final = 2.0
"""Between the two readings of one look."""
QUIT: Final = frozenset("qQ\x04\x1b")
"""q, Ctrl-D and Escape."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
KEYS: Final = "q quits"


def top(target: Target, everywhere: bool, once: bool, url: str | None, console: Console) -> None:
    """Shows the table until a key ends it; once where nobody watches. Raises UserError."""

    async def ask(reader: Reader) -> None:
        watcher = Watcher(reader, None if everywhere else reader.namespace, url)
        if once or not (console.is_terminal and sys.stdin.isatty()):
            await _look_once(watcher, console)
        else:
            await _watch(watcher, console)

    with_reader(target, ask)


async def _look_once(watcher: Watcher, console: Console) -> None:
    watcher.lifetime = True
    picture = await watcher.look()
    if not watcher.prometheus_url and any(row.figures.running is not None for row in picture.rows):
        await asyncio.sleep(ONCE_SECONDS)
        picture = await watcher.look()
    # Whoever reads a file is not bound by the width of a window.
    width = console.width if console.is_terminal else max(console.width, 120)
    console.print(draw(replace(picture, rates={}), width), soft_wrap=True)


async def _watch(watcher: Watcher, console: Console) -> None:
    ended = asyncio.Event()
    picture = await watcher.look(KEYS)
    with _keyboard(ended), Live(console=console, screen=True, auto_refresh=False) as live:
        while not ended.is_set():
            live.update(_fit(picture, console), refresh=True)
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await ended.wait()
            except TimeoutError:
                picture = await _next(watcher, picture)


async def _next(watcher: Watcher, picture: Picture) -> Picture:
    """The next screen; while the cluster does not answer, the last one, and why."""
    try:
        return await watcher.look(KEYS)
    except UserError as error:
        return replace(picture, source=f"As of {picture.now:%H:%M:%S}. {error}", is_degraded=True)


def _fit(picture: Picture, console: Console) -> Text:
    return draw(picture, console.width, console.height)


@contextmanager
def _keyboard(ended: asyncio.Event) -> Iterator[None]:
    """Single keys without Enter; the terminal is left as it was found."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    loop = asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(stdin, 64).decode(errors="ignore")
        # An end of input: nobody is there any more.
        if not pressed or QUIT & set(pressed[:1]):
            ended.set()

    tty.setcbreak(stdin, termios.TCSANOW)
    loop.add_reader(stdin, read)
    for number in SIGNALS:
        loop.add_signal_handler(number, ended.set)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSANOW, before)
