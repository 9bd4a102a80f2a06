"""The report as one HTML page that needs nothing else."""

from html import escape
from typing import Final

import msgspec
from rich.table import Table

from fastgen_cli.bench.plots import as_svg, draw
from fastgen_cli.bench.report import Report, remarks, table_of

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right}"
    "td:first-child{text-align:left}tr:nth-child(even){background:#f4f4f4}svg{max-width:100%}"
    "pre{white-space:pre-wrap}"
)


def page_of(report: Report) -> str:
    """Table, curves, remarks, and the JSON report as a whole; needs matplotlib."""
    load = report.load
    facts = (
        f"{report.protocol}, {report.began}. Prompts {load.prompt_tokens}, answers "
        f"{load.output_tokens} tokens, seed {load.seed}."
    )
    data = msgspec.json.format(msgspec.json.encode(report), indent=1).decode()
    picture = as_svg(draw([(report.model, report.points)])) if report.points else ""
    notes = "".join(f"<li>{escape(remark)}</li>" for remark in remarks(report))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>fastgen bench: {escape(report.model)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(report.model)} at {escape(report.endpoint)}</h1><p>{escape(facts)}</p>"
        f"{_html(table_of(report.points, report.slo))}<ul>{notes}</ul>{picture}"
        f"<details><summary>JSON</summary><pre>{escape(data)}</pre></details></html>\n"
    )


def _html(table: Table) -> str:
    """The screen's table: one source of what is shown."""
    heads = "".join(f"<th>{escape(str(column.header))}</th>" for column in table.columns)
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in zip(*columns, strict=True)
    )
    return f"<table><tr>{heads}</tr>{rows}</table>"
