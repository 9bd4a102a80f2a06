"""What is seen while a run is under way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import isinf

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fastgen_cli.bench.run import Run

PERIOD_SECONDS = 0.2


class Screen:
    """A bar per run on a console, gone when the run ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False)

    @asynccontextmanager
    async def following(
        self, name: str, run: Run, requests: float, seconds: float
    ) -> AsyncIterator[None]:
        """Shows a run of at most so many requests and seconds until the block ends."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        shown = self._console.is_terminal
        with Progress(
            *columns, console=self._console, transient=True, disable=not shown
        ) as progress:
            task = progress.add_task(name, total=1.0, figures="")

            async def follow() -> None:
                while True:
                    share = share_of(run, requests, seconds)
                    progress.update(task, completed=share, figures=figures_of(run))
                    await asyncio.sleep(PERIOD_SECONDS)

            follower = asyncio.create_task(follow())
            try:
                yield
            finally:
                follower.cancel()


def share_of(run: Run, requests: float, seconds: float) -> float:
    """How much of a run is done, 0 to 1: of its requests or of its time, whichever is more."""
    done = len(run.records) / requests if requests and not isinf(requests) else 0.0
    return min(1.0, max(done, run.now() / seconds if seconds else 0.0))


def figures_of(run: Run) -> str:
    """Answered and failed requests, those in flight, and tokens a second since the start."""
    failed = sum(record.failure is not None for record in run.records)
    words = f"{len(run.records) - failed} answered, {run.in_flight} in flight"
    if failed:
        words += f", {failed} failed"
    return f"{words}, {run.tokens / max(run.now(), 1e-3):.0f} tokens/s"
