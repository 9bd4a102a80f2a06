"""Puts an explanation on the terminal."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.padding import Padding
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
    head = Text.assemble(
        (f"{mark} {explanation.name}", style), f" in namespace {explanation.namespace}\n"
    )
    console.print(head.append(f"  {explanation.summary}"))
    _section(console, "Why this many replicas", explanation.replicas)
    title = "Worth knowing" if explanation.ready else "Why it is not ready"
    _section(console, title, explanation.problems)
    if explanation.pods:
        _title(console, "Pods")
        _pods(console, explanation.pods)
    if explanation.events:
        _title(console, "Lately")
        for event in explanation.events:
            console.print(Padding(_event(event), (0, 0, 0, 2)))
    if explanation.advice:
        _title(console, "What to do")
        for number, advice in enumerate(explanation.advice, 1):
            console.print(Padding(Text(f"{number}. {advice.text}"), (0, 0, 0, 2)))
            if advice.command:
                # Unbroken, however narrow the terminal is.
                console.print(Text(f"     {advice.command}", style="cyan"), soft_wrap=True)
    if explanation.unread:
        _title(console, "Not seen, for lack of rights")
        for sentence in explanation.unread:
            console.print(Padding(Text(f"• {sentence}", style="yellow"), (0, 0, 0, 2)))


def _title(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))


def _section(console: Console, title: str, points: Iterable[Point]) -> None:
    points = tuple(points)
    if not points:
        return
    _title(console, title)
    for point in points:
        console.print(Padding(Text(f"• {point.text}"), (0, 0, 0, 2)))
        if point.quote:
            console.print(Padding(Text(f"“{point.quote}”", style="italic"), (0, 0, 0, 4)))


def _pods(console: Console, pods: tuple[PodState, ...]) -> None:
    names = max(len(pod.name) for pod in pods)
    states = max(len(pod.state) for pod in pods)
    for pod in pods:
        line = Text(f"  {pod.name:<{names}}  ")
        line.append(f"{pod.state:<{states}}", style=STYLES.get(pod.state, "red"))
        age = "" if pod.age_seconds is None else duration(pod.age_seconds)
        line.append(f"  {age:>6}")
        if pod.restarts:
            line.append(f"  {plural(pod.restarts, 'restart')}", style="yellow")
        console.print(line, soft_wrap=True)
        if pod.words:
            console.print(Padding(Text(f"“{pod.words}”", style="italic"), (0, 0, 0, 4)))


def _event(event: EventLine) -> Text:
    style = "yellow" if event.type == "Warning" else ""
    text = Text(f"{ago(event.age_seconds)}  ", style="dim")
    text.append(event.reason, style=style)
    times = f" ({event.count} times)" if event.count > 1 else ""
    about = f" {event.about}" if event.about else ""
    return text.append(f"{about}{times}: {event.message}")
