"""The seam to Dynamo is thin: one file imports its private names, and few of its functions are wrapped."""

from __future__ import annotations

import ast
import pathlib
import re

from packpass import capture
from packpass.engine import backend

FOLDER = pathlib.Path(capture.__file__).parent
PRIVATE = re.compile(r"torch\._(dynamo|guards|subclasses|functorch|inductor|logging)|torch\.fx\.experimental")


def private_names(path: pathlib.Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and PRIVATE.match(node.module):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if PRIVATE.match(alias.name)}
    return names


def test_one_file_imports_private_names() -> None:
    found = {path.name: private_names(path) for path in FOLDER.glob("*.py")}
    assert {name for name, names in found.items() if names} == {"dynamo.py"}
    assert len(found["dynamo.py"]) <= 47


def test_few_functions_are_wrapped() -> None:
    hooks = [hook for group in capture._groups(backend._Client()) for hook in group.hooks]
    assert len(hooks) <= 12
    assert len({(id(hook.owner()), hook.attribute) for hook in hooks}) == len(hooks)


def test_capture_imports_no_pass_and_no_backend() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not module.startswith(("passes", "packpass.engine"))
