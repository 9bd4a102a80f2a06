"""Puts an explanation on the terminal."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.text import Text

from fastgen_cli.explain import EventLine, Explanation
from fastgen_cli.explain_pods import PodState
from fastgen_cli.explain_replicas import Point
from fastgen_cli.explain_words import ago, duration, plural

STYLES: Final = {
    "Ready": "green",
    "Done": "green",
    "Terminating": "dim",
    "Starting": "yellow",
    "Pending": "yellow",
    "ContainerCreating": "yellow",
    "PodInitializing": "yellow",
}
"""Of a pod's state; every other one is trouble."""


def show(explanation: Explanation, console: Console) -> None:
    """Prints it; commands are never broken, so that they can be pasted."""
    mark, style = ("✓", "bold green") if explanation.ready else ("✗", "bold red")
    console.print(
        Text.assemble(
            (f"{mark} {explanation.name}", style), f" in namespace {explanation.namespace}"
        ),
        soft_wrap=True,
    )
    _hang(console, "  ", Text(explanation.summary))
    _section(console, "Why this many replicas", explanation.replicas)
    title = "Worth knowing" if explanation.ready else "Why it is not ready"
    _section(console, title, explanation.problems)
    if explanation.pods:
        _title(console, "Pods")
        _pods(console, explanation.pods)
    if explanation.events:
        _title(console, "Lately")
        for event in explanation.events:
            _event(console, event)
    if explanation.advice:
        _title(console, "What to do")
        for number, advice in enumerate(explanation.advice, 1):
            _hang(console, f"  {number}. ", Text(advice.text))
            if advice.command:
                console.print(Text(f"     {advice.command}", style="cyan"), soft_wrap=True)
    if explanation.unread:
        _title(console, "Not seen")
        for sentence in explanation.unread:
            _hang(console, "  • ", Text(sentence, style="yellow"))


def _hang(console: Console, prefix: str, text: Text) -> None:
    """A paragraph whose lines all begin where the first one's text begins."""
    lines = text.wrap(console, max(20, console.width - len(prefix)))
    for number, line in enumerate(lines):
        line.rstrip()
        start = prefix if number == 0 else " " * len(prefix)
        console.print(Text(start).append_text(line), soft_wrap=True)


def _quote(console: Console, words: str) -> None:
    _hang(console, "    ", Text(f"“{words}”", style="italic"))


def _title(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))


def _section(console: Console, title: str, points: Iterable[Point]) -> None:
    points = tuple(points)
    if not points:
        return
    _title(console, title)
    for point in points:
        _hang(console, "  • ", Text(point.text))
        if point.quote:
            _quote(console, point.quote)


def _pods(console: Console, pods: tuple[PodState, ...]) -> None:
    names = max(len(pod.name) for pod in pods)
    states = max(len(pod.state) for pod in pods)
    for pod, after in zip(pods, (*pods[1:], None), strict=True):
        line = Text(f"  {pod.name:<{names}}  ")
        line.append(f"{pod.state:<{states}}", style=STYLES.get(pod.state, "red"))
        age = "" if pod.age_seconds is None else duration(pod.age_seconds)
        line.append(f"  {age:>6}")
        if pod.restarts:
            line.append(f"  {plural(pod.restarts, 'restart')}", style="yellow")
        console.print(line, soft_wrap=True)
        # What several say alike is told once, beneath them.
        if pod.words and (after is None or after.words != pod.words):
            _quote(console, pod.words)


def _event(console: Console, event: EventLine) -> None:
    text = Text(event.reason, style="yellow" if event.type == "Warning" else "")
    times = f" ({event.count} times)" if event.count > 1 else ""
    about = f" {event.about}" if event.about else ""
    words = Text(f"{about}{times}: {event.message}")
    _hang(console, f"  {ago(event.age_seconds):>10}  ", Text.assemble(text, words))
