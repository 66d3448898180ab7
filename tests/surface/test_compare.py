"""``packpass.compare``: three ways side by side, and how a wrong or failing one is shown."""

from __future__ import annotations

import builtins
import json
import pathlib
from typing import Any

import pytest
import torch
from torch import nn

import packpass
from packpass.measuring import compare
from packpass.measuring.compare import EAGER as EAGER_ROW
from packpass.measuring.compare import PACKPASS, STOCK, Comparison, stock_keywords
from packpass.measuring.measure import Timing
from packpass.measuring.trees import Difference
from packpass.measuring.variants import Row
from packpass.reports.report import Report
from tests.surface.models import EAGER, Scale, breaks_once, double, roll_documents


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def rolled() -> Comparison:
    x, cu = torch.arange(2048), torch.tensor([0, *range(64, 2049, 64)])
    return packpass.compare(roll_documents, budget=0.5)(x, cu)


def test_three_rows_eager_first(rolled: Comparison) -> None:
    assert [row.name for row in rolled.rows] == [EAGER_ROW, STOCK, PACKPASS]
    assert all(row.ok for row in rolled.rows)
    assert rolled.ok
    with pytest.raises(KeyError, match="no variant 'jax'"):
        rolled["jax"]


def test_the_loop_s_figures(rolled: Comparison) -> None:
    eager, stock, ours = rolled.rows
    assert eager.profile is not None
    assert eager.profile.host_syncs == 4 * 32  # start and end, for the read and for the write
    assert stock.graphs == 0
    assert stock.profile is not None
    assert stock.profile.host_syncs == 4 * 32
    assert (ours.graphs, ours.graph_break_reasons) == (1, [])
    assert ours.code is not None
    assert ours.code.host_syncs == 0
    assert ours.code.kernels >= 1
    assert rolled.speedup() is not None
    assert rolled.speedup() > 0  # no figure of a clock: the machine may be busy
    assert [rewrite.rule for rewrite in rolled.report.rewrites] == ["vectorize_segments"]


def test_text_and_json(rolled: Comparison) -> None:
    text = str(rolled)
    for words in (
        "roll_documents: forward on cpu",
        "reference",
        "equal",
        "speed-up",
        "compiled nothing",
        "vectorize_segments",
    ):
        assert words in text, words
    data = json.loads(rolled.to_json())
    assert [row["name"] for row in data["rows"]] == [EAGER_ROW, STOCK, PACKPASS]
    assert data["rows"][2]["speedup"] == rolled.speedup()
    assert data["rows"][2]["ok"] is True
    assert data["environment"]["torch"] == torch.__version__
    assert data["report"]["rewrites"][0]["rule"] == "vectorize_segments"


def test_html_and_plot(rolled: Comparison, tmp_path: pathlib.Path) -> None:
    rolled.to_html(tmp_path / "c.html")
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<svg " in page
    assert "roll_documents" in page
    rolled.plot(tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    rolled.plot(tmp_path / "c.svg")
    assert "<svg" in (tmp_path / "c.svg").read_text(encoding="utf-8")


def test_plots_without_matplotlib_say_what_to_install(
    rolled: Comparison, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"plots need matplotlib: pip install"):
        rolled.plot(tmp_path / "c.png")
    rolled.to_html(tmp_path / "c.html")
    assert "matplotlib is not installed" in (tmp_path / "c.html").read_text(encoding="utf-8")


def compare_quickly(model: Any, **kwargs: Any) -> Any:
    """Without Inductor on our side; stock torch.compile is stubbed by its eager backend to save compiling."""
    return packpass.compare(model, budget=0.05, options={**EAGER, **kwargs.pop("options", {})}, **kwargs)


@pytest.fixture
def cheap_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compare.compile_afresh

    def cheap(model: Any, backend: Any, kwargs: Any) -> Any:
        return real(model, "eager" if backend == "inductor" else backend, kwargs)

    monkeypatch.setattr(compare, "compile_afresh", cheap)


@pytest.mark.usefixtures("cheap_stock")
class TestWithoutInductor:
    def test_gradients_of_inputs_and_parameters_are_compared(self) -> None:
        found = compare_quickly(Scale())(torch.ones(3, requires_grad=True))
        assert found.ok
        assert "forward + backward" in str(found)
        assert "forward on cpu" in str(compare_quickly(Scale(), backward=False)(torch.ones(3)))

    def test_nothing_of_the_user_s_is_changed(self) -> None:
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
        state = {name: t.clone() for name, t in model.state_dict().items()}
        x = torch.rand(4, 3, requires_grad=True)
        generator = torch.get_rng_state()
        assert compare_quickly(model)(x).ok
        assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
        assert x.grad is None
        assert all(p.grad is None for p in model.parameters())
        assert torch.equal(torch.get_rng_state(), generator)

    def test_changed_arguments_are_compared_and_every_run_gets_fresh_ones(self) -> None:
        def accumulate(x: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
            state["sum"] += x
            return state["sum"] * 2

        given = {"sum": torch.zeros(3)}
        assert compare_quickly(accumulate)(torch.ones(3), given).ok
        assert torch.equal(given["sum"], torch.zeros(3))

    def test_a_wrong_result_gets_no_speed_up(self) -> None:
        def differs(x: torch.Tensor) -> torch.Tensor:
            return x + (1 if torch.compiler.is_compiling() else 0)

        found = compare_quickly(differs)(torch.zeros(3))
        assert not found.ok
        assert found.speedup() is None
        assert found[PACKPASS].timing is None
        assert "WRONG" in str(found)
        assert "no speed-up is shown" in str(found)
        assert "result differs by up to 1" in str(found)

    def test_a_wrong_gradient_is_found(self) -> None:
        def differs(x: torch.Tensor) -> torch.Tensor:
            return x * 2 - (x.detach() if torch.compiler.is_compiling() else x)

        found = compare_quickly(differs)(torch.ones(3, requires_grad=True))
        assert not found.ok
        assert "gradients" in str(found)

    def test_a_wrong_mutation_is_found(self) -> None:
        def differs(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            x += 1 if torch.compiler.is_compiling() else 0
            return y

        found = compare_quickly(differs)(torch.ones(3))
        assert not found.ok
        assert "arguments" in str(found)

    def test_a_failing_variant_is_a_row(self) -> None:
        found = compare_quickly(breaks_once, fullgraph=True)(torch.ones(1))
        assert found[EAGER_ROW].ok
        for name in (STOCK, PACKPASS):
            assert found[name].error is not None
            assert found[name].error.startswith("Unsupported")
        assert "torch.compile failed: Unsupported" in str(found)
        assert not found.ok

    def test_a_failing_model_is_three_rows(self) -> None:
        def fail(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("the model is broken")

        found = compare_quickly(fail)(torch.ones(1))
        assert found[EAGER_ROW].error == "RuntimeError: the model is broken"
        assert found[PACKPASS].error == "not run: eager raises"
        assert "the model raises without any compiler" in str(found)

    def test_graph_breaks_are_shown(self) -> None:
        found = compare_quickly(breaks_once)(torch.ones(1))
        assert found[PACKPASS].graphs == 2
        assert len(found[PACKPASS].graph_break_reasons or []) == 1
        assert found.report.graph_breaks == 1

    def test_random_models_are_compared_on_equal_numbers(self) -> None:
        found = compare_quickly(nn.Dropout(0.5))(torch.ones(100))
        assert found.ok
        assert any("random numbers" in note for note in found.notes)
        assert not compare_quickly(double)(torch.ones(2)).notes

    def test_keyword_arguments_reach_the_model(self) -> None:
        assert compare_quickly(Scale())(x=torch.ones(2)).ok

    def test_a_compiled_model_is_run_eagerly_for_the_reference(self) -> None:
        def which(x: torch.Tensor) -> torch.Tensor:
            return x + (1 if torch.compiler.is_compiling() else 0)

        class Inner(nn.Module):
            @packpass.compile(options=EAGER)
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return which(x)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Inner()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x)

        # compiled and eager results differ by construction, so only an eager reference can tell
        assert not compare_quickly(Outer())(torch.zeros(1)).ok
        assert not compare_quickly(Inner())(torch.zeros(1)).ok
        assert not compare_quickly(packpass.compile(which, options=EAGER))(torch.zeros(1)).ok


def test_packpass_options_do_not_reach_stock() -> None:
    given = {"options": {"packpass.verify": True, "max_autotune": False}, "fullgraph": True}
    assert stock_keywords(given) == {"options": {"max_autotune": False}, "fullgraph": True}
    assert stock_keywords({"options": {"packpass.verify": True}}) == {"options": None}
    assert given["options"] == {"packpass.verify": True, "max_autotune": False}


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"packpass.compare\(\) always uses packpass.backend"):
        packpass.compare(double, backend="eager")
    with pytest.raises(TypeError, match="packpass.compare takes a callable, got str"):
        packpass.compare("model")  # type: ignore[arg-type]


def timed(name: str, ratio: float) -> Row:
    return Row(name, difference=Difference(), timing=Timing(ratio * 1e-3, 0.01, ratio, 9))


def test_speed_ups_are_ratios_of_medians() -> None:
    found = Comparison(
        "m", "forward on cpu", [timed(EAGER_ROW, 1.0), timed(STOCK, 0.5), timed(PACKPASS, 0.25)], Report(), []
    )
    assert found.speedup() == 4.0
    assert found.speedup(over=STOCK) == 2.0
    assert "4.00x" in str(found)
    assert "4.00x" in repr(found)


def test_a_fix_that_changes_results_is_pointed_out() -> None:
    report = Report()
    report.add(packpass.Rewrite("pack_shifts", "m.py:3", "roll", "packed_roll", {"tier": "fix"}))
    wrong = Row(PACKPASS, difference=Difference(1.0, False, False, "result", "result differs by up to 1"))
    found = Comparison("m", "forward on cpu", [timed(EAGER_ROW, 1.0), timed(STOCK, 1.0), wrong], report, [])
    assert "change results on purpose" in str(found)
    assert "packpass.fix_shifts" in str(found)
