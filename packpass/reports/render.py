"""Reports as text and as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

if TYPE_CHECKING:
    from packpass.decisions.records import Rewrite
    from packpass.reports.report import Report

# Whatever is wider than the page (tables, code) scrolls in a box of its own; long words break. Colours are the page's,
# by name, so that plots and bars follow a dark page and paper.
STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --page: #fff; --line: #d8dee6; --head: #f2f5f8; --stripe: #eef2f6;
--accent: #2f6fb3; --quiet: #9aa5b1; --bad: #a11; --good: #17692f; --faint: #667; }
@media (prefers-color-scheme: dark) { :root { --text: #dde3ea; --page: #14181d; --line: #38424e; --head: #222a33;
--stripe: #1e252d; --accent: #5b9fe6; --quiet: #6b7683; --bad: #ff8f8f; --good: #7fd89a; --faint: #98a3af; } }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--text);
background: var(--page); overflow-wrap: anywhere; -webkit-text-size-adjust: 100%; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.scroll { overflow-x: auto; max-width: 100%; overflow-wrap: normal; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { padding: .3rem .7rem; text-align: left;
border-bottom: 1px solid var(--line); vertical-align: top; } th { background: var(--head); } td.num { text-align: right;
font-variant-numeric: tabular-nums; }
code { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; } .bad { color: var(--bad); }
.good { color: var(--good); } a { color: var(--accent); } footer { margin-top: 3rem; color: var(--faint);
font-size: .85rem; } small { color: var(--faint); }
figure { margin: 1rem 0; } img, svg { max-width: 100%; height: auto; } svg text { fill: currentColor; }
@media (max-width: 40rem) { body { margin: 1rem auto; padding: 0 .6rem; } th, td { padding: .25rem .4rem;
font-size: .85rem; } td:first-child { min-width: 7rem; } }
@media print { :root { --text: #000; --page: #fff; --line: #bbb; --head: #eee; --stripe: #f2f2f2; --accent: #2f6fb3;
--quiet: #999; --bad: #a11; --good: #17692f; --faint: #555; } * { print-color-adjust: exact; }
body { font-size: 10pt; margin: 0; max-width: none; } .scroll { overflow: visible; } table { font-size: 8pt; }
th, td { overflow-wrap: anywhere; padding: .15rem .3rem; } tr, figure { break-inside: avoid; }
h2, h3 { break-after: avoid; } nav { display: none; } }
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
