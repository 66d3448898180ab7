"""A pass is declared once, in `packpass._passes`; everybody who needs to know about passes reads that."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import packpass
from packpass import _passes
from packpass._options import Options
from packpass._passes import PASSES, Pass
from packpass.cli.doctor import diagnose
from packpass.cli.operations import _rows
from packpass.decisions.records import Refusal, Rewrite
from packpass.engine import passes
from packpass.measuring.compare import _fixes

ROOT = Path(packpass.__file__).parents[1]
EAGER = {"packpass.inner_backend": "eager"}


# === A pass that only this file knows ===============================================================================


def run(gm: fx.GraphModule, context: Any) -> list[Rewrite | Refusal]:
    """Adding becomes subtracting."""
    found = [node for node in gm.graph.nodes if node.target is torch.add]
    for node in found:
        node.target = torch.sub
    gm.recompile()
    return [Rewrite("throw_away", "here:1", "add", "sub") for _ in found]


def prepare(graph: fx.Graph) -> None:
    """Multiplying becomes adding."""
    for node in graph.nodes:
        if node.target is torch.mul:
            node.target = torch.add


def operations() -> frozenset[str]:
    return frozenset({"cumsum"})


THROW_AWAY = Pass("throw_away", f"{__name__}:run", tier="fix", after=("compose_rolls",))


def add(a: Tensor, b: Tensor) -> Tensor:
    return torch.add(a, b)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    return torch.mul(a, b)


def declare(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    torch._dynamo.reset()
    declared = Pass(**{**vars(THROW_AWAY), **more})
    monkeypatch.setattr(_passes, "PASSES", (*PASSES, declared))


def explain(fn: Any = add, **options: Any) -> Any:
    return packpass.explain(fn, options={**EAGER, **options})(torch.tensor([3.0]), torch.tensor([2.0]))


def test_it_runs_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explain().result.item() == 5
    declare(monkeypatch)
    report = explain()
    assert report.result.item() == 1
    assert [r.rule for r in report.rewrites] == ["throw_away"]
    assert [r.rule for r in report.graph_records[0].passes][-1] == "throw_away"
    assert [r.rule for r in _fixes(report)] == ["throw_away"]


def test_it_is_disabled_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no pass is called 'throw_away'"):
        Options(disable=("throw_away",))
    declare(monkeypatch)
    report = explain(**{"packpass.disable": ["throw_away"]})
    assert report.result.item() == 5
    assert not report.rewrites


def test_it_is_opt_in_if_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, option="eliminate_padding")
    assert explain().result.item() == 5
    assert explain(**{"packpass.eliminate_padding": True}).result.item() == 1


def test_it_sees_the_graphs_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, stage="loops")
    assert explain().result.item() == 5  # no loop was captured


def test_what_it_needs_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch)
    assert explain(multiply).result.item() == 6
    declare(monkeypatch, prepare=f"{__name__}:prepare")
    assert explain(multiply).result.item() == 1


def test_the_doctor_and_the_table_of_operations_list_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def states() -> dict[str, str]:
        return {check.name: check.state for check in diagnose(canaries=False) if check.section == "passes"}

    assert "throw_away" not in states()
    declare(monkeypatch, operations=f"{__name__}:operations")
    assert states()["throw_away"] == "on"
    assert "throw_away" in {op.name: found for op, found in _rows(["cumsum"])}["cumsum"]
    monkeypatch.setenv("PACKPASS_DISABLE", "throw_away")
    assert states()["throw_away"] == "off"


# === The declarations of packpass ===================================================================================


def test_the_order_is_the_one_that_passes_ask_for() -> None:
    for i, p in enumerate(PASSES):
        earlier = {other.name for other in PASSES[:i]}
        assert set(p.after) <= earlier, p.name


@pytest.mark.parametrize("p", PASSES, ids=lambda p: p.entry)
def test_a_declaration_fits_its_code(p: Pass) -> None:
    module = passes.module_of(p)
    assert p.name == module.NAME
    assert (module.__doc__ or "").strip()
    assert not p.option or hasattr(Options(), p.option)
    parameters = list(inspect.signature(passes.function(p.entry)).parameters)
    assert parameters[:2] == (["graph", "settings"] if p.stage == "inductor" else ["gm", "context"])


@pytest.mark.parametrize("folder", ["packpass", "passes"])
def test_nobody_else_says_when_a_pass_runs(folder: str) -> None:
    """No module has a word about its own place, and nobody compares names of passes with the options."""
    words = {"TIER", "WHOLE", "ORDER", "OPT_IN", "NEEDS_CAPTURE", "PASS_NAMES"}
    for path in (ROOT / folder).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if path.parent.name != "fuse_boundary_exchange":  # a whole chunk
            assert not named & words, path
        asked = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "disable"]
        allowed = path.name == "_options.py" or path.parent.name == "cli"
        assert allowed or not asked, path


def test_the_list_is_read_without_torch() -> None:
    code = "import sys, packpass._passes, packpass._options; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
