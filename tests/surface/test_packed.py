"""``packpass.packed``: an identity that declares a layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from tests.surface.models import EAGER

CU = torch.tensor([0, 5, 6, 6, 12], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def shift(x: Tensor, cu: Tensor, **keywords: Any) -> Tensor:
    x = packpass.packed(x, cu, **keywords)
    y = torch.roll(x, -1, -1)
    y[..., -1] = -100
    return y


def expected(x: Tensor, cu: Tensor, padded: Tensor | None = None) -> Tensor:
    out: Tensor = packpass.ops.packed_roll(x, cu, -1, -1, -100, cu_seqlens_padded=padded)
    return out


def test_eager_returns_its_argument() -> None:
    x = torch.arange(12)
    assert packpass.packed(x, CU) is x


def test_another_backend_compiles_it_to_nothing() -> None:
    x = torch.arange(12.0, requires_grad=True)
    out = torch.compile(lambda x, cu: packpass.packed(x, cu) * 2, backend="aot_eager")(x, CU)
    out.sum().backward()
    assert torch.equal(out, x * 2)
    assert torch.equal(x.grad, torch.full((12,), 2.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("shape", [(12,), (1, 12), (3, 12)])
def test_declares_the_last_dimension_of_any_rank(shape: tuple[int, ...], fullgraph: bool) -> None:
    x = torch.randint(0, 9, shape)
    out = torch.compile(shift, backend=packpass.backend, options=EAGER, fullgraph=fullgraph)(x, CU)
    assert torch.equal(out, expected(x, CU))


def test_padded_boundaries() -> None:
    x, padded = torch.arange(16), torch.tensor([0, 6, 8, 8, 15], dtype=torch.int32)
    out = torch.compile(shift, backend=packpass.backend, options=EAGER)(x, CU, cu_seqlens_padded=padded)
    assert torch.equal(out, expected(x, CU, padded))


@pytest.mark.parametrize("fix_shifts", ["auto", "declared"])
def test_the_report_names_the_declaration(fix_shifts: str) -> None:
    options = {**EAGER, "packpass.fix_shifts": fix_shifts}
    (rewrite,) = packpass.explain(shift, options=options)(torch.arange(12), CU).rewrites
    assert rewrite.details["source"] == "packpass.packed"
    assert "test_packed.py:" in rewrite.details["declared_at"]
    assert "test_packed.py:" in rewrite.location


def test_switched_off_nothing_happens() -> None:
    x = torch.arange(12)
    for options in ({"packpass.fix_shifts": "off"}, {"packpass.disable": ["pack_shifts"]}):
        torch._dynamo.reset()
        report = packpass.explain(shift, options={**EAGER, **options})(x, CU)
        assert report.rewrites == []
        assert torch.equal(report.result, shift(x, CU))


def test_a_declaration_wins_over_a_name() -> None:
    def fn(input_ids: Tensor, cu_seqlens: Tensor, mine: Tensor) -> Tensor:
        return shift(input_ids, mine) + 0 * cu_seqlens.sum()

    x, mine = torch.arange(12)[None], torch.tensor([0, 4, 12], dtype=torch.int32)
    out = torch.compile(fn, backend=packpass.backend, options=EAGER)(x, CU, mine)
    assert torch.equal(out, expected(x, mine))


# === Errors ==================================================================================================


def contradictory(x: Tensor, cu: Tensor, other: Tensor) -> Tensor:
    x = packpass.packed(x, cu)
    h = x * 2
    return shift(h, other)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_contradictions_name_both_places(fullgraph: bool) -> None:
    fn = torch.compile(contradictory, backend=packpass.backend, options=EAGER, fullgraph=fullgraph)
    with pytest.raises(ValueError, match="contradicts") as error:
        fn(torch.arange(12), CU, torch.tensor([0, 4, 12], dtype=torch.int32))
    assert str(error.value).count("test_packed.py:") == 2


def test_the_same_boundaries_twice_are_no_contradiction() -> None:
    x = torch.arange(12)
    out = torch.compile(contradictory, backend=packpass.backend, options=EAGER)(x, CU, CU)
    assert torch.equal(out, expected(x * 2, CU))


def test_a_cast_of_the_boundaries_is_no_contradiction() -> None:
    def fn(x: Tensor, cu: Tensor) -> Tensor:
        return shift(packpass.packed(x, cu) * 2, cu.long())

    x = torch.arange(12)
    assert torch.equal(torch.compile(fn, backend=packpass.backend, options=EAGER)(x, CU), expected(x * 2, CU))


BAD = [
    ({"dim": 1}, ValueError, "dim must lie in"),
    ({"cu": CU.float()}, TypeError, "int32 or int64"),
    ({"cu": CU.view(1, -1)}, ValueError, "must have 1 dimension"),
    ({"cu": CU.to("meta")}, ValueError, "device"),
    ({"cu_seqlens_padded": CU[:-1]}, ValueError, "cu_seqlens_padded"),
    ({"cp_group": 3}, TypeError, "cp_group"),
]


@pytest.mark.parametrize(("change", "kind", "match"), BAD)
@pytest.mark.parametrize("compiled", [False, True])
def test_bad_arguments(change: dict[str, Any], kind: type[Exception], match: str, compiled: bool) -> None:
    arguments: dict[str, Any] = {"cu": CU, **change}
    fn = torch.compile(shift, backend=packpass.backend, options=EAGER) if compiled else shift
    with pytest.raises(kind, match=match):
        fn(torch.arange(12), **arguments)


def test_fullgraph_shows_the_reason() -> None:
    fn = torch.compile(shift, backend=packpass.backend, options=EAGER, fullgraph=True)
    with pytest.raises(Exception, match="dim must lie in"):
        fn(torch.arange(12), CU, dim=4)


def test_values_that_cannot_cut_the_row_raise() -> None:
    fn = torch.compile(shift, backend=packpass.backend, options=EAGER)
    with pytest.raises((ValueError, RuntimeError), match="cu_seqlens"):
        fn(torch.arange(12), CU + 1)
