"""Comparisons as text, HTML and a bar chart."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any

from packpass._passes import names_of_tiers
from packpass.reports.render import html_table, page, report_page_body, text_table

if TYPE_CHECKING:
    from packpass.measuring.compare import Comparison
    from packpass.measuring.variants import Row

HEADERS = ["", "result", "largest diff", "time", "of eager", "speed-up", "first call", "graphs", "breaks", "kernels"]
HEADERS += ["host syncs", "collectives", "peak memory"]


def seconds_text(seconds: float | None) -> str:
    """Seconds with a unit and three digits: ``1.23 ms``."""
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def bytes_text(count: int | None) -> str:
    """Bytes with a binary unit: ``1.5 MiB``."""
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def kernels_text(row: Row) -> str:
    """Generated kernels and calls of ready-made ops: ``1 + 2 extern``."""
    if row.code is None:
        return ""
    return f"{row.code.kernels}" + (f" + {len(row.code.externs)} extern" if row.code.externs else "")


def _result(row: Row) -> str:
    if row.error is not None:
        return "failed"
    if row.difference is None:
        return "not run"
    if row.difference.equal:
        return "equal"
    return "close" if row.difference.close else "WRONG"


def _cells(comparison: Comparison, row: Row) -> list[Any]:
    timing, profile = row.timing, row.profile
    eager = row is comparison.rows[0]
    gain = comparison.speedup(row.name)
    breaks = row.graph_break_reasons
    return [
        row.name,
        "reference" if eager and row.ok else _result(row),
        "" if eager or row.difference is None else f"{row.difference.largest:.3g}",
        f"{seconds_text(timing.seconds)} ±{timing.spread:.0%}" if timing else "",
        f"{timing.ratio:.3f}" if timing else "",
        f"{gain:.2f}x" if gain and not eager else "",
        "" if eager else seconds_text(row.first_call),
        "" if row.graphs is None else str(row.graphs),
        "" if breaks is None else str(len(breaks)),
        kernels_text(row),
        str(profile.host_syncs) if profile else "",
        str(profile.collectives) if profile else "",
        bytes_text(profile.peak_bytes) if profile else "",
    ]


def _remarks(comparison: Comparison) -> list[str]:
    """Lines under the table: errors, wrong results, silent fallbacks, how memory was measured."""
    lines = []
    for row in comparison.rows:
        if row.error is not None:
            lines.append(f"{row.name} failed: {row.error}")
        elif row.difference is not None and not row.difference.close:
            lines.append(f"{row.name} gives other results than eager: {row.difference.why}; no speed-up is shown")
        if row.graphs == 0 and row.error is None:
            lines.append(f"{row.name} compiled nothing: the model ran eagerly (0 graphs)")
    fixes = [rewrite for rewrite in comparison.report.rewrites if rewrite.rule in names_of_tiers("fix")]
    if fixes:
        lines.append(
            f"{len(fixes)} rewrites change results on purpose (see below); "
            'compare with options={"packpass.fix_shifts": "off"} to measure the others alone'
        )
    source = next((row.profile.memory_source for row in comparison.rows if row.profile), None)
    if source:
        lines.append(f"peak memory: allocated above the start of the run, by the {source}")
    return lines + comparison.notes


def comparison_text(comparison: Comparison) -> str:
    """The comparison for a terminal; columns with nothing in them are left out."""
    rows = [_cells(comparison, row) for row in comparison.rows]
    used = [
        i
        for i, _ in enumerate(HEADERS)
        if i in (0, HEADERS.index("graphs")) or any(row[i] not in ("", "0") for row in rows)
    ]
    table = text_table([HEADERS[i] for i in used], [[row[i] for i in used] for row in rows])
    parts = [f"{comparison.title}: {comparison.work}", "", table, "", *_remarks(comparison)]
    if comparison.report.rewrites or comparison.report.refusals:
        parts += ["", str(comparison.report)]
    return "\n".join(parts)


def comparison_page(comparison: Comparison) -> str:
    """The comparison as a self-contained HTML page."""
    body = f"<p>{html.escape(comparison.work)}</p>"
    body += html_table(HEADERS, [_cells(comparison, row) for row in comparison.rows])
    body += "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in _remarks(comparison)) + "</ul>"
    try:
        body += figure_html(comparison_figure(comparison), "time per call and time of the first call")
    except ImportError:
        body += "<p>(no plot: matplotlib is not installed)</p>"
    return page(f"packpass.compare: {comparison.title}", body + report_page_body(comparison.report))


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure that needs no display. Raises ImportError that says what to install."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "packpass[perf]" or pip install matplotlib') from error
    return Figure(figsize=(width, height), layout="constrained")


def figure_html(figure: Any, description: str) -> str:
    """A figure as SVG inside the page: black becomes the page's own colour, so that it can be read on a dark one."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawing = text.getvalue()
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing[drawing.index("<svg ") :], flags=re.DOTALL)
    drawing = re.sub(r' id="[\w.]+_\d+"', "", drawing)  # names of parts, the same in every figure of a page
    drawing = re.sub(r' (xmlns(:\w+)?|version)="[^"]*"', "", drawing)  # which HTML does not need
    drawing = drawing.replace("#000000", "currentColor").replace("xlink:href", "href")
    named = f'<svg role="img" aria-label="{html.escape(description, quote=True)}" '
    return f"<figure>{drawing.replace('<svg ', named, 1)}</figure>"


def comparison_figure(comparison: Comparison) -> Any:
    """Two bar charts: time relative to eager (logarithmic), and the first call of the compiled variants."""
    figure = new_figure(9, 2.2)
    left, right = figure.subplots(1, 2)
    timed = [(row.name, row.timing.ratio) for row in comparison.rows if row.timing]
    bars = left.barh([name for name, _ in timed], [ratio for _, ratio in timed], color="#3b6ea8")
    left.bar_label(bars, fmt="%.3g", padding=3)
    left.set(title="time per call, eager = 1 (lower is better)", xscale="log" if timed else "linear")
    left.margins(x=0.25)
    first = [(row.name, row.first_call) for row in comparison.rows[1:] if row.first_call is not None]
    bars = right.barh([name for name, _ in first], [seconds for _, seconds in first], color="#8a8f98")
    right.bar_label(bars, fmt="%.2f", padding=3)
    right.set(title="first call in seconds (compiling included)")
    right.margins(x=0.2)
    for axes in (left, right):
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    return figure
