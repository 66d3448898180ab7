"""Results as text for the terminal and as one HTML page with the plots inside: first what is gained, then the targets
and the cases."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from packpass.measuring.compare_render import figure_html, new_figure
from packpass.reports.render import html_table, page, text_table
from perf.headline import gains_html, gains_of, headline_text
from perf.results import HIT, MISSED, NOISE, UNMEASURED, CaseResult, Lines, Target

TARGET_HEADERS = ["target", "figure", "limit", ""]
MISSED_HEADERS = ["case", "target", "figure", "limit", "", "why"]
SIGNS = {"at most": "<=", "at least": ">=", "exactly": "="}
CPU = "cpu"


def _figure(target: Target) -> str:
    if target.figure is None:
        return ""
    return f"{target.figure:.4g}" + (f" ±{target.spread:.0%}" if target.spread else "")


def _limit(target: Target) -> str:
    return f"{SIGNS[target.kind]} {target.limit:.4g}"


def _target_rows(result: CaseResult) -> list[list[str]]:
    return [
        [target.name, _figure(target), _limit(target), target.verdict + (f" ({target.note})" if target.note else "")]
        for target in result.targets
    ]


def _not_hit(results: Sequence[CaseResult]) -> list[list[str]]:
    """Every target that is not hit, those that noise does not explain first, each with its reason."""
    rows = []
    for verdict in (MISSED, NOISE, UNMEASURED):
        for result in results:
            for target in result.targets:
                if target.verdict == verdict:
                    rows.append([label(result), target.name, _figure(target), _limit(target), verdict, _why(target)])
    return rows


def _why(target: Target) -> str:
    said = "; ".join(text for text in (target.note, target.reason) if text)
    if target.verdict == NOISE:
        return "its spread is wider than its distance from the limit" + (f"; {said}" if said else "")
    return said or "no reason is known"


def label(result: CaseResult) -> str:
    """The name of a case, with its device where that is not the CPU."""
    device = result.data.get("device", CPU)
    return result.name if device == CPU else f"{result.name} on {device}"


def summary(results: Sequence[CaseResult]) -> str:
    """One line: how many targets were hit, how many results were wrong."""
    verdicts = [target.verdict for result in results for target in result.targets]
    wrong = sum(len(result.wrong) for result in results)
    failed = [label(result) for result in results if result.error]
    line = f"{verdicts.count(HIT)} targets hit, {verdicts.count(MISSED)} missed"
    for verdict in (NOISE, UNMEASURED):
        if verdicts.count(verdict):
            line += f", {verdicts.count(verdict)} {verdict}"
    line += f"; {wrong} wrong results" if wrong else "; every result checked was right"
    return line + (f"; failed: {', '.join(failed)}" if failed else "")


def case_text(result: CaseResult) -> str:
    """One case for the terminal."""
    parts = [f"== {label(result)}: {result.title} ({result.seconds:.0f} s)"]
    for table in result.tables:
        parts += ["", table.title, text_table(table.headers, table.rows)]
    if result.targets:
        parts += ["", text_table(TARGET_HEADERS, _target_rows(result))]
    parts += [f"WRONG: {line}" for line in result.wrong]
    parts += [f"note: {line}" for line in dict.fromkeys(result.notes)]
    if result.error:
        parts.append(f"FAILED: {result.error}")
    return "\n".join([*parts, ""])


def results_text(results: Sequence[CaseResult]) -> str:
    """All cases for the terminal."""
    parts = [headline_text(gains_of(results)), summary(results), ""]
    if rows := _not_hit(results):
        parts += ["== Appendix: targets that were not hit", text_table(MISSED_HEADERS, rows), ""]
    return "\n".join([*parts, *map(case_text, results)])


def results_page(results: Sequence[CaseResult], environments: Sequence[dict[str, Any]]) -> str:
    """All cases on one self-contained page."""
    body = _faults(results) + gains_html(gains_of(results))
    for environment in environments:
        body += "<p>" + html.escape(", ".join(f"{key} {value}" for key, value in environment.items())) + "</p>"
    body += f"<h2>Appendix: targets</h2><p>{html.escape(summary(results))}</p>"
    if rows := _not_hit(results):
        body += "<h3>Targets that were not hit</h3>" + html_table(MISSED_HEADERS, rows)
    body += "<h2>Appendix: cases</h2><nav>" + " · ".join(
        f'<a href="#case-{i}">{html.escape(label(result))}</a>' for i, result in enumerate(results)
    )
    body += "</nav>"
    for i, result in enumerate(results):
        body += f'<h2 id="case-{i}">{html.escape(label(result))}: {html.escape(result.title)}</h2>' + _case_html(result)
    return page("packpass: measurements", body)


def _faults(results: Sequence[CaseResult]) -> str:
    """What nobody may miss stands above everything else."""
    lines = [f"{label(r)}: {line}" for r in results for line in [*r.wrong, *([r.error] if r.error else [])]]
    return "".join(f'<p class="bad">{html.escape(line)}</p>' for line in lines)


def _case_html(result: CaseResult) -> str:
    body = "".join(
        f'<p class="bad">{html.escape(line)}</p>' for line in [*result.wrong, *([result.error] if result.error else [])]
    )
    if result.targets:
        body += html_table(TARGET_HEADERS, _target_rows(result))
    for table in result.tables:
        body += f"<h3>{html.escape(table.title)}</h3>" + html_table(table.headers, table.rows)
    for plot in result.plots:
        try:
            body += figure_html(line_figure(plot), f"{label(result)}: {plot.title}")
        except ImportError as error:
            body += f"<p>({html.escape(str(error))})</p>"
    return body + "".join(f"<p>{html.escape(line)}</p>" for line in dict.fromkeys(result.notes))


def line_figure(plot: Lines) -> Any:
    """A line plot as a matplotlib figure, small enough for a phone; raises ImportError where matplotlib is missing."""
    figure = new_figure(5.6, 3.6)
    axes = figure.subplots()
    for name, points in plot.series.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_title(plot.title, fontsize="medium", wrap=True)
    axes.set_xscale("log" if plot.log_x else "linear")
    axes.set_yscale("log" if plot.log_y else "linear")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return figure
