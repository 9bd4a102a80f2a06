"""Says on the screen what the demo does and how long it took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console

from fastgen_devcluster.progress import format_seconds


class DemoError(Exception):
    """Something that the demo promises did not happen; the text says what."""


@dataclass(slots=True)
class Narrator:
    """Numbers the stages of the demo and times them."""

    console: Console
    stages: int
    number: int = 0
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def stage(self, title: str, why: str = "") -> Iterator[None]:
        """A part of the demo: its title before, its time after."""
        self.number += 1
        self.console.print(f"\n[bold cyan]{self.number}/{self.stages}  {title}[/bold cyan]")
        if why:
            self.say(f"[dim]{why}[/dim]")
        started = time.monotonic()
        yield
        self.say(f"[green]done[/green] [dim]in {format_seconds(time.monotonic() - started)}[/dim]")

    def say(self, text: str) -> None:
        """A line of the running stage; rich markup is understood."""
        self.console.print(f"     {text}", highlight=False, soft_wrap=True)

    def elapsed(self) -> str:
        """Time since the demo began."""
        return format_seconds(time.monotonic() - self.started)
