"""``python -m packpass ops``: the known operations, and what each pass does with them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from packpass.engine import passes
from packpass.reports.render import text_table
from packpass.semantics.overview import Operation, operations


def _rows(words: Sequence[str]) -> list[tuple[Operation, list[str]]]:
    rules = passes.operations()
    found = []
    for op in operations():
        if not words or any(word in op.name or word == op.family for word in words):
            found.append((op, [name for name, known in rules.items() if op.name in known]))
    return found


def table(words: Sequence[str] = ()) -> str:
    """The operations with one of these words in their name (all, if there are no words), as text."""
    rows = [
        [op.name, op.family, op.axes, ", ".join(op.traits), ", ".join(passes) or "-"] for op, passes in _rows(words)
    ]
    if not rows:
        return f"no operation of that name has a meaning: {', '.join(words)}"
    return text_table(["operation", "family", "axes", "traits", "passes with a rule"], rows)


def table_json(words: Sequence[str] = ()) -> str:
    """The same as a JSON list."""
    return json.dumps([{**dataclasses.asdict(op), "passes": passes} for op, passes in _rows(words)], indent=2)
