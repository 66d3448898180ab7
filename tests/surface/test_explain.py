"""``packpass.explain``: one run, one report."""

from __future__ import annotations

import pytest
import torch

import packpass
from packpass.decisions.records import active
from tests.surface.models import EAGER, CompiledScale, Scale, breaks_once, double, roll_documents


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def test_a_plain_function() -> None:
    report = packpass.explain(double, options=EAGER)(torch.ones(2))
    assert isinstance(report, packpass.Report)
    assert torch.equal(report.result, torch.full((2,), 2.0))
    assert (report.graphs, report.graph_breaks, report.rewrites, report.refusals) == (1, 0, [], [])
    assert report.compile_seconds is not None
    assert report.compile_seconds > 0
    assert "double" in str(report)
    assert active() == []


def test_keyword_arguments_reach_the_model() -> None:
    assert packpass.explain(Scale(), options=EAGER)(x=torch.ones(1)).result == 3


def test_a_loop_over_documents_is_reported_where_it_stands() -> None:
    x, cu = torch.arange(12), torch.tensor([0, 3, 7, 12])
    report = packpass.explain(roll_documents, options=EAGER)(x, cu)
    assert torch.equal(report.result, roll_documents(x, cu))
    assert report.graphs == 1
    assert [rewrite.rule for rewrite in report.rewrites] == ["vectorize_segments"]
    assert "models.py:" in report.rewrites[0].location
    assert "models.py" in report.to_json()


def test_again_and_after_the_user_compiled_it_says_the_same() -> None:
    x, cu = torch.arange(12), torch.tensor([0, 3, 7, 12])
    first = packpass.explain(roll_documents, options=EAGER)(x, cu)
    torch.compile(roll_documents, backend=packpass.backend, options=EAGER)(x, cu)
    torch.compile(roll_documents, backend="eager")(x, cu)
    second = packpass.explain(roll_documents, options=EAGER)(x, cu)
    assert second.rewrites == first.rewrites
    assert (second.graphs, second.graph_breaks) == (first.graphs, first.graph_breaks) == (1, 0)


def test_a_compiled_model_is_explained_from_its_source() -> None:
    compiled = packpass.compile(Scale(), options=EAGER)
    assert packpass.explain(compiled, options=EAGER)(torch.ones(1)).graphs == 1
    assert packpass.explain(CompiledScale(), options=EAGER)(torch.ones(1)).graphs == 1


def test_graph_breaks_are_counted_with_their_reasons() -> None:
    report = packpass.explain(breaks_once, options=EAGER)(torch.ones(1))
    assert report.result == 4
    assert report.graphs == 2
    assert report.graph_breaks == 1
    assert len(report.graph_break_reasons) == 1
    assert "graph_break" in report.graph_break_reasons[0]


def test_exceptions_of_the_model_come_through() -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("the model is broken")

    with pytest.raises(ZeroDivisionError, match="the model is broken"):
        packpass.explain(fail, options=EAGER)(torch.ones(1))
    assert active() == []


def test_the_result_keeps_its_graph() -> None:
    model = Scale()
    packpass.explain(model, options={"packpass.inner_backend": "aot_eager"})(torch.ones(2)).result.sum().backward()
    assert model.factor.grad == 2


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"packpass.explain\(\) always uses packpass.backend"):
        packpass.explain(double, backend="eager")
    with pytest.raises(TypeError, match="packpass.explain takes a callable, got int"):
        packpass.explain(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown option"):
        packpass.explain(double, options={"packpass.x": 1})
