"""Results as text for the terminal and as one HTML page with the plots inside."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from packpass.measuring.compare_render import figure_html, new_figure
from packpass.reports.render import html_table, page, text_table
from perf.results import CaseResult, Lines

TARGET_HEADERS = ["target", "figure", "limit", ""]
SIGNS = {"at most": "<=", "at least": ">=", "exactly": "="}


def _target_rows(result: CaseResult) -> list[list[str]]:
    return [
        [
            target.name,
            "" if target.figure is None else f"{target.figure:.4g}",
            f"{SIGNS[target.kind]} {target.limit:.4g}",
            target.verdict + (f" ({target.note})" if target.note else ""),
        ]
        for target in result.targets
    ]


def summary(results: Sequence[CaseResult]) -> str:
    """One line: how many targets were hit, how many results were wrong."""
    verdicts = [target.verdict for result in results for target in result.targets]
    wrong = sum(len(result.wrong) for result in results)
    failed = [result.name for result in results if result.error]
    line = f"{verdicts.count('hit')} targets hit, {verdicts.count('MISSED')} missed"
    if verdicts.count("not measured"):
        line += f", {verdicts.count('not measured')} not measured"
    line += f"; {wrong} wrong results" if wrong else "; every result checked was right"
    return line + (f"; failed: {', '.join(failed)}" if failed else "")


def case_text(result: CaseResult) -> str:
    """One case for the terminal."""
    parts = [f"== {result.name}: {result.title} ({result.seconds:.0f} s)"]
    for table in result.tables:
        parts += ["", table.title, text_table(table.headers, table.rows)]
    if result.targets:
        parts += ["", text_table(TARGET_HEADERS, _target_rows(result))]
    parts += [f"WRONG: {line}" for line in result.wrong]
    parts += [f"note: {line}" for line in dict.fromkeys(result.notes)]
    if result.error:
        parts.append(f"FAILED: {result.error}")
    return "\n".join([*parts, ""])


def results_page(results: Sequence[CaseResult], environment: dict[str, Any]) -> str:
    """All cases on one self-contained page."""
    body = f"<p><strong>{html.escape(summary(results))}</strong></p>"
    body += "<p>" + html.escape(", ".join(f"{key} {value}" for key, value in environment.items())) + "</p>"
    for result in results:
        body += f"<h2>{html.escape(result.name)}: {html.escape(result.title)}</h2>"
        for line in [*result.wrong, *([result.error] if result.error else [])]:
            body += f'<p class="bad">{html.escape(line)}</p>'
        if result.targets:
            body += html_table(TARGET_HEADERS, _target_rows(result))
        for table in result.tables:
            body += f"<h3>{html.escape(table.title)}</h3>" + html_table(table.headers, table.rows)
        for plot in result.plots:
            try:
                body += figure_html(line_figure(plot), plot.title)
            except ImportError as error:
                body += f"<p>({html.escape(str(error))})</p>"
        body += "".join(f"<p>{html.escape(line)}</p>" for line in dict.fromkeys(result.notes))
    return page("packpass: measurements", body)


def line_figure(plot: Lines) -> Any:
    """A line plot as a matplotlib figure; raises ImportError where matplotlib is missing."""
    figure = new_figure(7.5, 4)
    axes = figure.subplots()
    for name, points in plot.series.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_xscale("log" if plot.log_x else "linear")
    axes.set_yscale("log" if plot.log_y else "linear")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return figure
