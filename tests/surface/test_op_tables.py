"""What an operation is called is known in one place: outside `packpass/semantics` are no tables of torch's names.

A table is a literal with the names of three or more operations, in whatever form: a set, tuple, list or dict, words to
be split, or the arguments of a call (a rule that is registered under many names). A test of one or two names is none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torch

from packpass.semantics.names import all_names

ROOT = Path(__file__).parents[2]
LEAST = 3


def names_of_operations() -> frozenset[str]:
    methods = (n for n in dir(torch.Tensor) if not n.startswith("__") and callable(getattr(torch.Tensor, n)))
    return frozenset({name for name in all_names() if "." not in name} | set(methods))


def words_of(node: ast.AST) -> list[str]:
    """The strings that a literal or a call lists."""
    parts: list[ast.expr | None] = []
    if isinstance(node, (ast.Set, ast.Tuple, ast.List)):
        parts = list(node.elts)
    elif isinstance(node, ast.Dict):
        parts = list(node.keys)
    elif isinstance(node, ast.Call):
        parts = list(node.args)
        split = isinstance(node.func, ast.Attribute) and node.func.attr == "split" and not node.args
        if split and isinstance(node.func.value, ast.Constant) and isinstance(node.func.value.value, str):  # type: ignore[attr-defined]
            return node.func.value.value.split()  # type: ignore[attr-defined]
    return [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]


def tables(source: str, names: frozenset[str]) -> Iterator[int]:
    """The lines of the tables in a source."""
    for node in ast.walk(ast.parse(source)):
        if len({word.removesuffix("_") for word in words_of(node)} & names) >= LEAST:
            yield node.lineno  # type: ignore[attr-defined]


def found() -> dict[str, list[str]]:
    """The tables of the package, by folder."""
    names = names_of_operations()
    out: dict[str, list[str]] = {}
    for file in sorted([*(ROOT / "passes").rglob("*.py"), *(ROOT / "packpass").rglob("*.py")]):
        path = file.relative_to(ROOT)
        if path.parts[:2] != ("packpass", "semantics"):
            places = [f"{path}:{line}" for line in tables(file.read_text(), names)]
            out.setdefault("/".join(path.parts[:2]), []).extend(places)
    return {folder: places for folder, places in out.items() if places}


def test_no_tables_outside_of_semantics() -> None:
    assert not found(), "say what an operation means in packpass/semantics, and ask there"


def test_finds_tables_in_every_form() -> None:
    names = names_of_operations()
    for source in (
        'X = frozenset({"add", "mul", "sub"})',
        'X = ("add_", "mul", "sub")',
        'X = {"add": 1, "mul": 2, "sub": 3}',
        'X = "add mul sub".split()',
        '@rule("add", "mul", "sub")\ndef f(): ...',
    ):
        assert len(list(tables(source, names))) == 1, source


def test_leaves_alone_other_words() -> None:
    names = names_of_operations()
    for source in ('X = ("cu_seqlens", "fill_value", "ids")', 'X = op in ("add", "sub")', 'X = "add mul sub"'):
        assert not list(tables(source, names)), source
