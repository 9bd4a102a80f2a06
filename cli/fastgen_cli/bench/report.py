"""What `fastgen bench` says: for people and for programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.table import Table

from fastgen_api.spec import SLO
from fastgen_cli.bench.measures import Distribution, Point
from fastgen_cli.outputs import write_file

SCHEMA: Final = "fastgen.dev/bench/v1"
"""Named in each file; another name when a field changes its meaning."""
SHOWN_RATES: Final = ("2", "4", "6")
"""SLAs of the effective throughput that the screen shows: those of FastGen's paper."""
LATE_SECONDS: Final = 0.05
EXACT_PERCENT: Final = 99.0
LEAST_FOR_P99: Final = 100
"""With fewer values the nearest rank of P99 is the last."""


class LoadFacts(msgspec.Struct, frozen=True):
    """What was sent. lengths: as on the command line; is_exact: whether prompts had the asked
    number of tokens wherever the endpoint's chat template leaves room for it."""

    prompt_tokens: str
    output_tokens: str
    trace: str | None
    seed: int
    ignore_eos: bool
    temperature: float | None
    prompts: str
    is_exact: bool


class Report(msgspec.Struct, frozen=True):
    """The JSON file. began: time of day in ISO 8601. is_complete: whether nobody stopped it."""

    schema: str
    began: str
    endpoint: str
    protocol: str
    model: str
    load: LoadFacts
    slo: SLO | None
    is_complete: bool
    points: list[Point]


def table_of(points: Sequence[Point], slo: SLO | None) -> Table:
    """The points side by side."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for point in points:
        name = point.name if point.is_complete else f"{point.name} (stopped)"
        table.add_column(name, justify="right")
    for title, cells in _rows(points, slo):
        table.add_row(title, *cells)
    return table


def summary_of(point: Point) -> str:
    """A line for people while more is to come."""
    words = (
        f"{point.name}: {point.requests_per_second:.2f} requests/s, "
        f"{point.output_tokens_per_second:.1f} output tokens/s, "
        f"TTFT P50 {_time(point.ttft_seconds, 50)}, TPOT P50 {_time(point.tpot_seconds, 50)}"
    )
    failed = point.requests - point.succeeded
    return f"{words}, {failed} failed" if failed else words


def _rows(points: Sequence[Point], slo: SLO | None) -> list[tuple[str, list[str]]]:
    rows = [
        ("requests answered", [f"{p.succeeded} of {p.requests}" for p in points]),
        ("requests/s", [f"{p.requests_per_second:.2f}" for p in points]),
        ("output tokens/s", [f"{p.output_tokens_per_second:.1f}" for p in points]),
        ("total tokens/s", [f"{p.total_tokens_per_second:.1f}" for p in points]),
    ]
    for title, values in (
        ("latency", [p.latency_seconds for p in points]),
        ("TTFT", [p.ttft_seconds for p in points]),
        ("TPOT", [p.tpot_seconds for p in points]),
        ("longest gap", [p.gap_seconds for p in points]),
        ("token gap", [p.token_gap_seconds for p in points]),
    ):
        rows += _percentiles(title, values)
    if slo is not None:
        rows += [
            (f"good requests (SLO {slo.target_percent} %)", [_good(p) for p in points]),
            ("goodput, requests/s", [f"{p.goodput or 0:.2f}" for p in points]),
        ]
    for rate in SHOWN_RATES:
        title = f"effective throughput at {rate} tokens/s"
        rows.append((title, [f"{p.effective_throughput[rate]:.2f}" for p in points]))
    for kind in sorted({kind for p in points for kind in p.failures}):
        rows.append(
            (kind, [str(p.failures[kind].count) if kind in p.failures else "0" for p in points])
        )
    return rows


def _percentiles(title: str, values: Sequence[Distribution | None]) -> list[tuple[str, list[str]]]:
    return [(f"{title} P{p}", [_time(value, p) for value in values]) for p in (50, 90, 99)]


def _good(point: Point) -> str:
    return "–" if point.good_percent is None else f"{point.good_percent:.1f} %"


def _time(values: Distribution | None, percent: int) -> str:
    if values is None:
        return "–"
    seconds: float = getattr(values, f"p{percent}")
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def remarks(report: Report) -> list[str]:
    """What a reader must know before he believes the figures."""
    out = []
    for point in report.points:
        for kind, failures in point.failures.items():
            words = f": {failures.example}" if failures.example else ""
            out.append(f"{point.name}: {failures.count} × {kind}{words}")
        if point.latest_send_seconds > LATE_SECONDS:
            out.append(
                f"{point.name}: requests left up to {point.latest_send_seconds:.2f} s late: the "
                "load generator had no core to itself, or the rate is too high for it."
            )
        for name, lengths in (("prompts", point.prompt_tokens), ("answers", point.output_tokens)):
            if lengths and lengths.exact_percent < EXACT_PERCENT:
                out.append(
                    f"{point.name}: {name} had {lengths.counted_mean:.1f} tokens on average, asked "
                    f"were {lengths.asked_mean:.1f}; {lengths.exact_percent:.0f} % were exact."
                )
        if not point.is_complete:
            out.append(f"{point.name}: stopped; requests under way then are not in the figures.")
    return [*out, *_scarce(report.points)]


def _scarce(points: Sequence[Point]) -> list[str]:
    few = [point.name for point in points if 0 < point.succeeded < LEAST_FOR_P99]
    if not few:
        return []
    return [
        f"{', '.join(few)}: fewer than {LEAST_FOR_P99} answers, so P99 of a request's times is the "
        f"slowest one's; it takes {LEAST_FOR_P99} of each load (--requests, --seconds)."
    ]


def write_json(report: Report, path: Path) -> None:
    """Raises UserError where the file cannot be written."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    write_file(path, text, "--output")
