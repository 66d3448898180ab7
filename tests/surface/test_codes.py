"""Every refusal code in the sources is documented, and every documented one is used."""

from __future__ import annotations

import ast
import json
import pathlib

import pytest

from packpass.cli.main import main
from packpass.decisions.codes import CODES

ROOT = pathlib.Path(__file__).parents[2]
MAKERS = {"Refused", "refuse", "note", "Refusal", "Left", "Doubt", "Finding"}


def codes_in(path: pathlib.Path) -> set[str]:
    """First (for ``Refusal``: second) arguments of the calls that make refusals, where they are constants."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name not in MAKERS:
            continue
        position = 1 if name == "Refusal" else 0
        arguments = [*node.args[position : position + 1], *(k.value for k in node.keywords if k.arg == "code")]
        found |= {a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return found


def test_the_list_is_complete() -> None:
    used: set[str] = set()
    for folder in ("passes", "packpass"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= codes_in(path)
    assert "no-rule" in used  # the search itself works
    assert used - CODES.keys() == set(), "describe these in packpass/decisions/codes.py"
    assert CODES.keys() - used == set(), "no longer used; take them out of packpass/decisions/codes.py"


def test_doctor_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--codes"]) == 0
    out = capsys.readouterr().out
    assert all(code in out and meaning in out for code, meaning in CODES.items())
    assert main(["doctor", "--codes", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == CODES
