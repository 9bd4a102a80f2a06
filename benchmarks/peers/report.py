"""Findings as tables: markdown for people, JSON for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from peers.figures import MEBIBYTE, Spread, spreads
from peers.session import Findings
from peers.verdicts import Row, Verdict
from peers.workloads import Name

_COLUMNS: Final = {
    Name.DECODE: ("output_tokens_per_second", "total_tokens_per_second", "ttft_p50_seconds",
                  "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds"),
    Name.MIXTURE: ("total_tokens_per_second", "output_tokens_per_second", "ttft_p50_seconds",
                   "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds"),
    Name.STALL: ("longest_gap_seconds", "long_ttft_seconds", "usual_gap_seconds",
                 "tpot_p50_seconds", "output_tokens_per_second"),
    Name.SINGLE: ("ttft_p50_seconds", "tpot_p50_seconds", "output_tokens_per_second",
                  "total_tokens_per_second"),
}  # fmt: skip
"""What is shown of each workload; rows are sorted by the first one."""
_TITLES: Final = {
    Name.DECODE: "16 requests at once, 128 tokens in, 128 out",
    Name.MIXTURE: "16 requests at once, prompts of N(650, 30 %), answers of N(32, 30 %) tokens",
    Name.STALL: "8 streams of 64 + 600 tokens; a prompt of 4,000 tokens arrives after 2 s",
    Name.SINGLE: "one stream, 512 in, 64 out, four times",
}


def rows(findings: Iterable[Findings]) -> list[Row]:
    """One row for each configuration and workload that was timed."""
    return [
        Row(each.configuration, name, spreads(measures), each.peaks.get(name))
        for each in findings
        for name, measures in each.measures.items()
    ]


def number(value: float, measure: str) -> str:
    """Times as milliseconds below a second; rates without decimals."""
    if not measure.endswith("seconds") or measure.endswith("per_second"):
        return f"{value:,.0f}"
    return f"{1e3 * value:.1f} ms" if value < 1 else f"{value:.2f} s"


def cell(spread: Spread, measure: str) -> str:
    """The median, and the extremes where there are several rounds."""
    median = number(spread.median, measure)
    if spread.rounds == 1:
        return median
    return f"{median} ({number(spread.least, measure)} – {number(spread.most, measure)})"


def title(measure: str) -> str:
    """A column's heading."""
    words = measure.removesuffix("_seconds").replace("_tokens_per_second", " tokens/s")
    return words.replace("_", " ").replace("ttft", "TTFT").replace("tpot", "TPOT")


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return [f"| {' | '.join(line)} |" for line in lines]


def workload_table(name: Name, all_rows: Sequence[Row], findings: Sequence[Findings]) -> list[str]:
    """The configurations on one workload, the best first."""
    columns = _COLUMNS[name]
    by_name = {each.configuration.name: each for each in findings}
    chosen = [row for row in all_rows if row.workload is name]
    is_rate = columns[0].endswith("per_second")
    chosen.sort(key=lambda row: row.median(columns[0]), reverse=is_rate)
    body = []
    for row in chosen:
        each = by_name[row.configuration.name]
        disturbed = each.disturbed.get(name, 0)
        spread = row.spreads[columns[0]]
        rounds = f"{spread.rounds}" + (f", {disturbed} disturbed" if disturbed else "")
        peak = f"{row.peak_bytes / MEBIBYTE:,.0f}" if row.peak_bytes else "–"
        cells = [cell(row.spreads[column], column) for column in columns]
        body.append([f"{'**' * row.is_ours}{row.configuration.name}{'**' * row.is_ours}",
                     rounds, *cells, peak])  # fmt: skip
    head = ["engine", "rounds", *map(title, columns), "peak PSS, MiB"]
    return [f"### {name}: {_TITLES[name]}", "", *table(head, body), ""]


def tokens_table(findings: Iterable[Findings]) -> list[str]:
    """Greedy tokens against transformers', and what could not run."""
    body = []
    for each in findings:
        said = "no tokens told" if each.equal is None else f"{each.equal[0]} of {each.equal[1]}"
        facts = [str(each.facts.get(key, "–")) for key in ("version", "cache")]
        error = (each.error or "").replace("|", "\\|").replace("\n", " ")
        body.append([each.configuration.name, each.configuration.dtype, *facts,
                     "–" if error and each.equal is None else said, error])  # fmt: skip
    head = ["engine", "dtype", "version", "KV cache", "answers as transformers'", "error"]
    return ["### Tokens, and what could not run", "", *table(head, body), ""]


def verdict_table(found: Iterable[Verdict]) -> list[str]:
    """Bars and aims."""
    body = [
        [each.workload, each.measure, each.bar, each.aim,
         "–" if each.measured is None else f"{each.measured:.3g}", str(each.outcome), each.against]
        for each in found
    ]  # fmt: skip
    head = ["", "measure", "bar", "aim", "measured", "outcome", "against"]
    return ["### Bars", "", *table(head, body), ""]


def markdown(findings: Sequence[Findings], found: Iterable[Verdict], about: str) -> str:
    """The whole report."""
    all_rows = rows(findings)
    lines = ["# This engine beside its peers", "", about, "", *verdict_table(found)]
    for name in Name:
        if any(row.workload is name for row in all_rows):
            lines += workload_table(name, all_rows, findings)
    return "\n".join([*lines, *tokens_table(findings)])


def as_json(
    findings: Iterable[Findings], found: Iterable[Verdict], about: dict[str, Any]
) -> dict[str, Any]:
    """All rounds, so that other medians can be taken."""
    return {
        "about": about,
        "verdicts": [asdict(each) for each in found],
        "findings": [
            {**asdict(each), "name": each.configuration.name} for each in findings
        ],
    }  # fmt: skip
