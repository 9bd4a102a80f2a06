"""Traces: when requests come, and how long they and their answers are."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import floor, isfinite
from pathlib import Path
from random import Random
from typing import Final

from fastgen_cli.errors import UserError

COLUMNS: Final = {
    "at": ("timestamp", "arrived_at", "time", "seconds"),
    "prompt_tokens": ("prompt_tokens", "contexttokens", "input_tokens"),
    "output_tokens": ("output_tokens", "generatedtokens", "completion_tokens"),
}
"""Names of columns that are understood, in any case; the second ones are those of the Azure traces
(Patel et al., "Splitwise", ISCA 2024)."""
MOST_TOKENS: Final = 10_000_000
JITTER_SECONDS: Final = 5.0
"""Copies of a request come within so many seconds after it, so that bursts stay bursts."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace; at: seconds since the trace's begin. output_tokens: what it will make,
    which neither balancer nor engine knows before."""

    at: float
    prompt_tokens: int
    output_tokens: int


Trace = tuple[Arrival, ...]


def read_trace(path: Path) -> Trace:
    """Reads a CSV file with a header.

    Raises UserError that names the line and the column which cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return parse_trace(file, str(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text file in UTF-8: it must be CSV") from error


def parse_trace(lines: Iterable[str], name: str) -> Trace:
    """The requests in the order of their arrival, the first one at 0 seconds."""
    rows = csv.reader(lines)
    try:
        header = next(rows, None)
        if not header:
            raise UserError(f"{name} is empty: its first line must name the columns")
        places = _places(header, name)
        found = [
            _arrival(row, places, header, f"{name}, line {rows.line_num}") for row in rows if row
        ]
    except csv.Error as error:
        raise UserError(f"{name}, line {rows.line_num}: {error}") from error
    if not found:
        raise UserError(f"{name} has a header and no request")
    found.sort(key=lambda arrival: arrival.at)
    first = found[0].at
    return tuple(Arrival(a.at - first, a.prompt_tokens, a.output_tokens) for a in found)


def _places(header: Sequence[str], name: str) -> dict[str, int]:
    names = [column.strip().lower() for column in header]
    places = {
        field: names.index(column)
        for field, known in COLUMNS.items()
        for column in reversed(known)  # the first of them has the last word
        if column in names
    }
    missing = [known for field, known in COLUMNS.items() if field not in places]
    if missing:
        wanted = "; ".join(f"{known[0]} (or {', '.join(known[1:])})" for known in missing)
        raise UserError(
            f"{name}, line 1: no column called {wanted}, in any case. "
            f"The columns are {', '.join(header)}"
        )
    return places


def _arrival(row: Sequence[str], places: dict[str, int], header: Sequence[str], at: str) -> Arrival:
    def cell(field: str) -> tuple[str, str]:
        place = places[field]
        where = f"{at}, column {header[place].strip()}"
        if place >= len(row):
            raise UserError(f"{where}: missing, the line has {len(row)} of {len(header)} columns")
        return row[place].strip(), where

    return Arrival(
        _seconds(*cell("at")), _tokens(*cell("prompt_tokens")), _tokens(*cell("output_tokens"))
    )


def _tokens(text: str, where: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_TOKENS:
        raise UserError(f"{where}: {text!r} is no whole number from 1 to {MOST_TOKENS}")
    return int(text)


def _seconds(text: str, where: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = datetime.fromisoformat(text).timestamp()
        except ValueError:
            example = "2023-11-16 18:17:03.97"
            raise UserError(
                f"{where}: {text!r} is neither a number of seconds nor a time such as {example}"
            ) from None
    if not isfinite(seconds):
        raise UserError(f"{where}: {text!r} is no time")
    return seconds


def duration_of(trace: Trace) -> float:
    """Seconds from the begin to the last arrival."""
    return trace[-1].at if trace else 0.0


def scaled(trace: Trace, factor: float, seed: int) -> Trace:
    """`factor` times as many requests: some left out, or copies shortly after the original."""
    rng = Random(seed)
    out: list[Arrival] = []
    for arrival in trace:
        copies = floor(factor + rng.random())
        for copy in range(copies):
            late = rng.uniform(0.0, JITTER_SECONDS) if copy else 0.0
            out.append(Arrival(arrival.at + late, arrival.prompt_tokens, arrival.output_tokens))
    return tuple(sorted(out, key=lambda arrival: arrival.at))


def between(trace: Trace, begin: float, end: float) -> Trace:
    """The requests from `begin` to `end` seconds, `begin` becoming 0."""
    return tuple(
        Arrival(a.at - begin, a.prompt_tokens, a.output_tokens)
        for a in trace
        if begin <= a.at < end
    )


def clipped(trace: Trace, most_tokens: int) -> tuple[Trace, int]:
    """The trace without what no replica takes, and how many prompts or answers were shortened."""
    out: list[Arrival] = []
    count = 0
    for arrival in trace:
        prompt = min(arrival.prompt_tokens, most_tokens - 1)
        output = min(arrival.output_tokens, most_tokens - prompt)
        count += (prompt, output) != (arrival.prompt_tokens, arrival.output_tokens)
        out.append(Arrival(arrival.at, prompt, output))
    return tuple(out), count
