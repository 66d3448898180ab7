"""Reports as text and as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

if TYPE_CHECKING:
    from packpass.decisions.records import Rewrite
    from packpass.reports.report import Report

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { padding: .3rem .7rem; border-bottom: 1px solid #d8dee6;
text-align: left; vertical-align: top; } th { background: #f2f5f8; } td.num { text-align: right;
font-variant-numeric: tabular-nums; }
code { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; } .bad { color: #a11; } .good { color: #17692f; }
img, svg { max-width: 100%; height: auto; } footer { margin-top: 3rem; color: #667; font-size: .85rem; }
@media (prefers-color-scheme: dark) { body { background: #14181d; color: #dde3ea; } th { background: #222a33; }
th, td { border-color: #38424e; } .bad { color: #ff8f8f; } .good { color: #7fd89a; } }
"""


NOTHING = "nothing matched: no loop over documents and no shift was found in what was captured"


def page(title: str, body: str) -> str:
    """A whole HTML page; ``title`` is text, ``body`` is HTML."""
    name = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{name}</h1>\n{body}\n</body></html>\n"
    )


def html_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, code: Sequence[int] = ()) -> str:
    """An HTML table with every cell escaped; columns in ``code`` are set in a fixed-width font."""
    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    lines = []
    for row in rows:
        cells = []
        for column, cell in enumerate(row):
            text = html.escape("" if cell is None else str(cell))
            if column in code:
                text = f"<code>{text}</code>"
            kind = ' class="num"' if isinstance(cell, (int, float)) and not isinstance(cell, bool) else ""
            cells.append(f"<td{kind}>{text}</td>")
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def text_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A plain-text table; None is an empty cell, numbers given as text keep their digits."""
    cells = [["" if cell is None else cell for cell in row] for row in rows]
    return tabulate(cells, headers=headers, tablefmt="simple", disable_numparse=True)


def count(number: int, noun: str) -> str:
    """``1 graph``, ``2 graphs``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _headline(report: Report) -> list[str]:
    lines = [f"{count(report.graphs, 'graph')}, {count(report.graph_breaks, 'graph break')}"]
    if report.collectives_before or report.collectives_after:
        lines.append(f"collectives: {report.collectives_before} -> {report.collectives_after}")
    if report.kernels is not None:
        lines.append(f"generated code: {count(report.kernels, 'kernel')}, {count(report.host_syncs or 0, 'host sync')}")
    if report.compile_seconds is not None:
        lines.append(f"first call: {report.compile_seconds:.2f} s")
    if report.boundary_sources:
        lines.append("boundaries from: " + ", ".join(report.boundary_sources))
    return lines


def _sections(report: Report) -> list[tuple[str, list[str], list[list[Any]]]]:
    """(title, headers, rows) of every table that has rows."""
    sections: list[tuple[str, list[str], list[list[Any]]]] = [
        (
            "Rewrites",
            ["rule", "location", "before", "after", "times", "details"],
            _rewrites(report.rewrites),
        ),
        (
            "Left alone",
            ["rule", "code", "location", "reason"],
            [[r.rule, r.code, r.location, r.reason] for r in report.refusals],
        ),
        (
            "Documents see each other here",
            ["code", "operation", "location", "reason"],
            [[f.code, f.operation, f.location, f.reason] for f in report.findings],
        ),
        ("Graph breaks", ["reason", "times"], _tally(report.graph_break_reasons)),
        (
            "Passes",
            ["graph", "pass", "nodes", "ms", "rewrites", "refusals"],
            [
                [
                    i,
                    run.rule,
                    f"{run.nodes_before} -> {run.nodes_after}",
                    f"{run.seconds * 1e3:.2f}",
                    run.rewrites,
                    run.refusals,
                ]
                for i, graph in enumerate(report.graph_records)
                for run in graph.passes
            ],
        ),
        (
            "Generated code",
            ["stage", "kernels", "host syncs", "seconds"],
            [[g.stage, g.kernels, g.host_syncs, f"{g.seconds:.2f}"] for g in report.generated],
        ),
    ]
    return [section for section in sections if section[2]]


def _tally(lines: Sequence[str]) -> list[list[Any]]:
    return [[line, lines.count(line)] for line in dict.fromkeys(lines)]


def _rewrites(rewrites: Sequence[Rewrite]) -> list[list[Any]]:
    """One row per kind of rewrite and place, with the details of the first and how often it was made."""
    rows: dict[tuple[str, ...], list[Any]] = {}
    for item in rewrites:
        key = (item.rule, item.location, item.before, item.after)
        details = ", ".join(f"{name}={value}" for name, value in item.details.items())
        rows.setdefault(key, [*key, 0, details])[4] += 1
    return list(rows.values())


def _short(cell: Any, width: int = 60) -> Any:
    """Long text cut for a terminal; the JSON and the page have all of it."""
    return cell[: width - 1] + "…" if isinstance(cell, str) and len(cell) > width else cell


def report_text(report: Report) -> str:
    """The report for a terminal."""
    parts = [report.title, *(f"  {line}" for line in _headline(report))]
    if not report.rewrites and not report.refusals and not report.findings:
        parts.append(f"  {NOTHING}")
    for title, headers, rows in _sections(report):
        shown = [
            [_short(cell) if name == "details" else cell for name, cell in zip(headers, row, strict=True)]
            for row in rows
        ]
        parts += ["", title, text_table(headers, shown)]
    return "\n".join(parts)


def report_page(report: Report) -> str:
    """The report as a self-contained HTML page; all text from the user's program is escaped."""
    return page(report.title, report_page_body(report))


def report_page_body(report: Report) -> str:
    """The report as HTML to put on a page."""
    body = "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in _headline(report)) + "</ul>"
    if not report.rewrites and not report.refusals and not report.findings:
        body += f"<p>{NOTHING}</p>"
    for title, headers, rows in _sections(report):
        mono = [i for i, header in enumerate(headers) if header in {"location", "before", "after", "code", "reason"}]
        body += f"<h2>{html.escape(title)}</h2>" + html_table(headers, rows, code=mono)
    return body
