"""Audits as text and as one self-contained HTML page."""

from __future__ import annotations

import html
import linecache
from typing import TYPE_CHECKING, Any

from packpass.reports.render import html_table, page, text_table

if TYPE_CHECKING:
    from packpass.leaks.records import Audit, Leak

_HEADERS = ["operation", "location", "from", "seen by", "where", "in", "calls", "largest"]


def _row(leak: Leak) -> list[Any]:
    shown = ", ".join(map(str, leak.seen_by[:6])) + (" ..." if len(leak.seen_by) > 6 else "")
    source = leak.source_document if isinstance(leak.source_document, str) else f"document {leak.source_document}"
    size = f"{leak.size:.3g}"
    return [leak.operation, leak.location, source, shown, leak.distance, leak.direction, leak.calls, size]


def _headline(audit: Audit) -> list[str]:
    word = "clean: no document sees another" if audit.clean else f"NOT clean: {_count(len(audit.leaks), 'leak')}"
    probed = ", ".join(map(str, audit.probed))
    return [
        word,
        f"{_count(audit.documents, 'document')}, boundaries from: {audit.source}",
        f"changed: {', '.join(audit.changed)} in documents {probed}",
        f"compared: {', '.join(audit.compared)}",
        f"{_count(audit.runs, 'run')} of the model, {audit.seconds:.1f} s",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _lists(audit: Audit) -> list[tuple[str, list[str]]]:
    found = [
        ("Mixed on purpose, and no leak", audit.on_purpose),
        ("Not changed", [f"{name}: {reason}" for name, reason in audit.held]),
        ("Not covered", audit.not_covered),
    ]
    return [entry for entry in found if entry[1]]


def audit_text(audit: Audit) -> str:
    """The audit for a terminal."""
    parts = [audit.title, *(f"  {line}" for line in _headline(audit))]
    if audit.leaks:
        parts += ["", "Leaks", text_table(_HEADERS, [_row(leak) for leak in audit.leaks]), ""]
        for words in dict.fromkeys(leak.advice for leak in audit.leaks):
            names = ", ".join(dict.fromkeys(leak.operation for leak in audit.leaks if leak.advice == words))
            parts.append(f"  {names}: {words}")
    for title, lines in _lists(audit):
        parts += ["", title, *(f"  {line}" for line in lines)]
    return "\n".join(parts)


def _code(location: str, around: int = 2) -> str:
    """The lines around a leak, the leaking one marked; "" where the file cannot be read."""
    file, _, number = location.rpartition(":")
    if not number.isdigit():
        return ""
    line = int(number)
    shown = []
    for at in range(max(1, line - around), line + around + 1):
        text = linecache.getline(file, at).rstrip("\n")
        if text or at == line:
            mark = ' class="bad"' if at == line else ""
            shown.append(f"<span{mark}>{at:5d} {'&gt;' if at == line else ' '} {html.escape(text)}</span>")
    return "<pre><code>" + "\n".join(shown) + "</code></pre>" if any(linecache.getlines(file)) else ""


def audit_page(audit: Audit) -> str:
    """The audit as a self-contained HTML page; all text from the user's program is escaped."""
    kind = "good" if audit.clean else "bad"
    first, *rest = _headline(audit)
    body = f'<p class="{kind}"><b>{html.escape(first)}</b></p>'
    body += "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in rest) + "</ul>"
    if audit.leaks:
        body += "<h2>Leaks</h2>" + html_table(_HEADERS, [_row(leak) for leak in audit.leaks], code=[0, 1])
        for leak in audit.leaks:
            body += f"<h3><code>{html.escape(leak.operation)}</code> at <code>{html.escape(leak.location)}</code></h3>"
            body += _code(leak.location) + f"<p>{html.escape(leak.advice)}</p>"
    for title, lines in _lists(audit):
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        body += f"<h2>{html.escape(title)}</h2><ul>{items}</ul>"
    return page(audit.title, body)
