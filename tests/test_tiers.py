"""The table of the fast tier names tests that there are."""

from __future__ import annotations

import ast
import pathlib

import pytest

from tests.tiers import ONE_OF


@pytest.mark.parametrize("name", ONE_OF)
def test_names_a_test_with_parameters(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((pathlib.Path(__file__).parent / file).read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    assert any("parametrize" in ast.unparse(decorator) for decorator in found.decorator_list)
    assert ONE_OF[name] > 1
