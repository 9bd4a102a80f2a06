"""Draws `fastgen top`."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rich.text import Text

from fastgen_cli.explain_words import plural
from fastgen_cli.top_rows import Row

BARS: Final = "▁▂▃▄▅▆▇█"
SPARK_WIDTH: Final = 20
NAME_WIDTH: Final = (12, 40)
GAP: Final = 2
NOTHING: Final = "–"


@dataclass(frozen=True, slots=True)
class Picture:
    """All that one screen shows."""

    rows: Sequence[Row]
    scope: str
    """Such as `namespace models`."""
    now: datetime
    source: str
    """Where the figures come from, or why there are none."""
    is_degraded: bool = False
    """Whether `source` tells of something missing."""
    rates: Mapping[tuple[str, str], Sequence[float]] = field(default_factory=dict)
    """Tokens per second of the last readings, by namespace and name."""
    keys: str = ""
    """What the keyboard does."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, width, what it shows, and in which style."""

    title: str
    width: int
    show: Callable[[Row], str]
    style: Callable[[Row], str] = lambda row: ""


def _percent(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:.{digits}f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}"


def _ready_style(row: Row) -> str:
    if row.ready_replicas == row.wanted_replicas and row.is_ready:
        return "green"
    return "red" if row.ready_replicas == 0 and row.wanted_replicas > 0 else "yellow"


def _good_style(row: Row) -> str:
    if row.good_percent is None or row.target_percent is None:
        return ""
    return "green" if row.good_percent >= row.target_percent else "bold red"


def _full_style(share: float | None) -> str:
    return "yellow" if share is not None and share >= 0.9 else ""


COLUMNS: Final = (
    Column("READY", 5, lambda r: f"{r.ready_replicas}/{r.wanted_replicas}", _ready_style),
    Column("GOOD", 7, lambda r: _percent(r.good_percent, 1), _good_style),
    Column("SLO", 6, lambda r: NOTHING if r.target_percent is None else f"{r.target_percent:g} %"),
    Column("TTFT P50", 8, lambda r: _seconds(r.figures.ttft_p50_seconds)),
    Column("P95", 7, lambda r: _seconds(r.figures.ttft_p95_seconds)),
    Column("TOK/S", 6, lambda r: _count(r.figures.tokens_per_second)),
    Column("RUN", 4, lambda r: _count(r.figures.running)),
    Column("WAIT", 4, lambda r: _count(r.figures.waiting),
           lambda r: "yellow" if r.figures.waiting else ""),
    Column("KV", 5, lambda r: _percent(None if r.figures.kv_usage is None
                                       else 100 * r.figures.kv_usage),
           lambda r: _full_style(r.figures.kv_usage)),
)  # fmt: skip
DISPENSABLE: Final = ("TTFT P50", "SLO", "KV", "RUN", "P95")
"""Columns that a narrow terminal goes without, in this order."""


def draw(picture: Picture, width: int, height: int | None = None) -> Text:
    """The screen for a terminal of that size; without a height all rows."""
    columns, name_width = fit(picture.rows, width)
    lines = [_head(picture, width), *_status(picture, width), Text()]
    if picture.rows:
        lines.append(_titles(columns, name_width, width if any(picture.rates.values()) else 0))
        room = None if height is None else height - len(lines)
        lines += _body(picture, columns, name_width, width, room)
    else:
        lines.append(Text("No FastGenDeployment here.", style="yellow"))
    return Text("\n").join(lines)


def fit(rows: Sequence[Row], width: int) -> tuple[tuple[Column, ...], int]:
    """The columns that a terminal of this width has room for, and the width of the names."""
    names = [len(_name(row, rows)) for row in rows]
    wanted = min(max([*names, NAME_WIDTH[0]]), NAME_WIDTH[1])
    columns = list(COLUMNS)
    for title in ("", *DISPENSABLE):
        columns = [column for column in columns if column.title != title]
        taken = sum(column.width + GAP for column in columns)
        if taken + wanted <= width:
            return tuple(columns), wanted
    return tuple(columns), max(NAME_WIDTH[0], width - taken)


def spark(rates: Sequence[float]) -> str:
    """A line of bars; the highest rate fills one."""
    shown = rates[-SPARK_WIDTH:]
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    return "".join(BARS[round(rate / top * (len(BARS) - 1))] for rate in shown)


def _name(row: Row, rows: Sequence[Row]) -> str:
    several = len({each.namespace for each in rows}) > 1
    return f"{row.namespace}/{row.name}" if several else row.name


def _head(picture: Picture, width: int) -> Text:
    ready = sum(row.ready_replicas for row in picture.rows)
    wanted = sum(row.wanted_replicas for row in picture.rows)
    rates = [row.figures.tokens_per_second for row in picture.rows]
    known = [rate for rate in rates if rate is not None]
    text = Text.assemble(("fastgen top", "bold"), f"  {picture.scope}")
    text.append(f"  {plural(len(picture.rows), 'deployment')}, {ready} of {wanted} replicas ready")
    if known:
        text.append(f", {sum(known):.0f} tokens/s")
    text.append(f"  {picture.now:%H:%M:%S}", style="dim")
    text.append(f"  {picture.keys}", style="dim")
    text.truncate(width, overflow="ellipsis")
    return text


def _status(picture: Picture, width: int) -> list[Text]:
    lines = textwrap.wrap(picture.source, width, max_lines=2, placeholder=" …")
    return [Text(line, style="yellow" if picture.is_degraded else "dim") for line in lines]


def _titles(columns: Sequence[Column], name_width: int, width: int) -> Text:
    cells = "".join(f"{'':{GAP}}{column.title:>{column.width}}" for column in columns)
    titles = f"{'NAME':<{name_width}}{cells}"
    if len(titles) + GAP + SPARK_WIDTH <= width:
        titles += f"{'':{GAP}}{'TOK/S BEFORE':>{SPARK_WIDTH}}"
    return Text(titles, style="bold")


def _body(
    picture: Picture, columns: Sequence[Column], name_width: int, width: int, room: int | None
) -> list[Text]:
    """The rows, each with its note beneath; those that do not fit are counted."""
    blocks = []
    for row in picture.rows:
        block = [_line(picture, row, columns, name_width, width)]
        if row.note:
            note = Text(f"  {row.note}", style="dim" if row.is_ready else "yellow")
            note.truncate(width, overflow="ellipsis")
            block.append(note)
        blocks.append(block)
    if room is None or sum(map(len, blocks)) <= room:
        return [line for block in blocks for line in block]
    lines: list[Text] = []
    for shown, block in enumerate(blocks):
        if len(lines) + len(block) >= room:
            left = len(blocks) - shown
            more = Text(f"… {left} more: enlarge the window, or name a namespace with -n")
            more.truncate(width, overflow="ellipsis")
            return [*lines, more]
        lines += block
    return lines


def _line(
    picture: Picture, row: Row, columns: Sequence[Column], name_width: int, width: int
) -> Text:
    name = Text(_name(row, picture.rows), style="" if row.is_ready else "bold yellow")
    name.truncate(name_width, overflow="ellipsis", pad=True)
    line = Text().append_text(name)
    for column in columns:
        line.append(f"{'':{GAP}}")
        line.append(f"{column.show(row):>{column.width}}", style=column.style(row))
    bars = spark(picture.rates.get((row.namespace, row.name), ()))
    if bars and len(line) + GAP + SPARK_WIDTH <= width:
        line.append(f"{'':{GAP}}{bars:>{SPARK_WIDTH}}", style="cyan")
    return line
