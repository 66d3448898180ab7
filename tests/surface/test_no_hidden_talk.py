"""Nothing is decided by the text of a report, and no part talks to another through the meta of a node or a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import packpass

ROOT = Path(packpass.__file__).parents[1]
FILES = sorted(path for folder in ("packpass", "passes", "perf") for path in (ROOT / folder).rglob("*.py"))

FOR_PEOPLE = ("packpass/reports/",)
"""Who writes down what a rewrite says about itself."""

WITHIN_ONE_FOLDER = {
    "packpass/engine/ddp.py": "what DDP put on the graph for us, taken by the same file",
    "passes/document_loops/rewrite.py": "which rows its own emitter made",
    "passes/document_loops/lists.py": "the same",
    "passes/remap_boundaries/uses.py": "which boundaries its own rewrite made",
}
NOT_YET = {
    "packpass/layout/sources.py": "boundaries that remap_boundaries finds doubtful",
    "passes/remap_boundaries/evidence.py": "the same",
}
"""Reads of a key of ours in a meta. No file may be added to the second list."""


def details_read(tree: ast.AST) -> Iterator[int]:
    """Lines that read an attribute ``details`` (methods of that name do not count)."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "details" and isinstance(node.ctx, ast.Load):
            if id(node) not in called:
                yield node.lineno


def _of_meta(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "meta"


def _ours(key: ast.AST) -> bool:
    """A key of packpass, written out or as a constant of ours."""
    if isinstance(key, ast.Constant):
        return isinstance(key.value, str) and "packpass" in key.value
    name = key.id if isinstance(key, ast.Name) else key.attr if isinstance(key, ast.Attribute) else ""
    return name.isupper()


def meta_read(tree: ast.AST) -> Iterator[int]:
    """Lines that read a key of ours in the meta of something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _of_meta(node.value):
            if _ours(node.slice):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _of_meta(node.func.value):
            if node.func.attr in ("get", "pop", "setdefault") and _ours(node.args[0]):
                yield node.lineno
        elif isinstance(node, ast.Compare) and any(map(_of_meta, node.comparators)) and _ours(node.left):
            yield node.lineno


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_decision_by_text_and_no_talk_through_meta(path: Path) -> None:
    tree, name = ast.parse(path.read_text(encoding="utf-8")), name_of(path)
    if not name.startswith(FOR_PEOPLE):
        assert not list(details_read(tree)), "Claims in packpass/decisions/records.py has typed fields"
    found, known = list(meta_read(tree)), name in WITHIN_ONE_FOLDER or name in NOT_YET
    assert known or not found, "PassContext in passes/context.py has a place for what passes make"
    assert found or not known, f"{name} does not do that any more: take it off the list"


@pytest.mark.parametrize(
    ("code", "details", "meta"),
    [
        ('x.details["a"]', 1, 0),
        ('x.details.get("a")', 1, 0),
        ("cost.details()", 0, 0),
        ("Rewrite(details=d)", 0, 0),
        ('n.meta["packpass_x"]', 0, 1),
        ('n.meta.pop("packpass_x", None)', 0, 1),
        ("gm.meta.get(module.META)", 0, 1),
        ("DOUBTFUL in n.meta", 0, 1),
        ('n.meta["packpass"] = "pass"', 0, 0),
        ('n.meta["val"] = n.meta.get("example_value")', 0, 0),
    ],
)
def test_what_counts(code: str, details: int, meta: int) -> None:
    tree = ast.parse(code)
    assert (len(list(details_read(tree))), len(list(meta_read(tree)))) == (details, meta)
