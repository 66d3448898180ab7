"""Straight-line groups of all-to-alls: what shares an exchange, what is left alone and why. Structure only, on a fake
process group; values and gradients are compared on real ranks, in tests/dist/test_straight.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.testing._internal.distributed.fake_pg import FakeStore

import packpass
import packpass.ops
from packpass._compat import is_collective
from packpass._options import Options
from packpass.decisions.records import Refusal, Rewrite
from passes.context import PassContext
from passes.fuse_all_to_all import straight
from tests.dist import straight_programs as programs

GROUP = torch.ops.packpass.all_to_all_group.default
SIZE = 4


@pytest.fixture(autouse=True)
def _fake_group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=SIZE)
    yield
    torch._dynamo.reset()
    dist.destroy_process_group()


def captured(program: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> fx.GraphModule:
    """The graph that Dynamo makes."""
    found: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example: Any) -> Any:
        found.append(gm)
        return gm.forward

    torch.compile(program, backend=keep, fullgraph=True, dynamic=dynamic)(*inputs)
    (gm,) = found
    return gm


def fused(
    program: Callable[..., Any], *inputs: Any, dynamic: bool = False, **options: Any
) -> tuple[fx.GraphModule, list[Rewrite], list[Refusal]]:
    gm = captured(program, *inputs, dynamic=dynamic)
    results = straight.run(gm, PassContext(options=Options(**options)))
    gm.graph.lint()
    return (
        gm,
        [r for r in results if isinstance(r, Rewrite)],
        [r for r in results if isinstance(r, Refusal)],
    )


def groups_of(gm: fx.GraphModule) -> list[int]:
    """Members of every group, in order, in the outer graph and its subgraphs."""
    graphs = [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]
    return [len(n.args[0]) for g in graphs for n in g.nodes if n.target is GROUP]


def collectives(gm: fx.GraphModule) -> int:
    graphs = [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]
    return sum(is_collective(n.target) for g in graphs for n in g.nodes if n.op == "call_function")


def inputs_of(program: Callable[..., Any]) -> list[Any]:
    leaf = program not in programs.WITHOUT_GRADIENTS
    return [torch.randn(8, 24, requires_grad=leaf), dist.group.WORLD]


# === Rewrites ===================================================================================================


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", programs.REWRITTEN, ids=lambda p: p.__name__)
def test_rewrites(program: Callable[..., Any], dynamic: bool) -> None:
    gm, rewrites, refusals = fused(program, *inputs_of(program), dynamic=dynamic)
    expected = programs.REWRITTEN[program]
    assert groups_of(gm) == expected
    assert collectives(gm) == len(expected)
    assert len(rewrites) == len(expected)
    assert refusals == []
    for rewrite, count in zip(rewrites, expected, strict=True):
        assert rewrite.before == f"{count} all_to_all_single"
        assert rewrite.after == "all_to_all_group"
        assert "straight_programs.py:" in rewrite.location
        assert rewrite.details["count"] == count
        assert rewrite.details["group_size"] == SIZE
        assert rewrite.details["estimated_us_before"] > rewrite.details["estimated_us_after"]


def test_bodies_of_functions_are_gone() -> None:
    gm, _, _ = fused(programs.functions, *inputs_of(programs.functions))
    assert [m for m in gm.modules() if isinstance(m, fx.GraphModule)] == [gm]


def test_buffers_are_gone() -> None:
    """The result is the output that the user allocated; nothing is copied there."""
    gm, _, _ = fused(programs.five_sections, *inputs_of(programs.five_sections))
    names = Counter(str(n.target) for n in gm.graph.nodes)
    assert names["copy_"] == 0
    assert not any("empty_like" in name for name in names)


def test_explain_counts_and_names_every_member() -> None:
    options = {"packpass.inner_backend": "eager"}
    report = packpass.explain(programs.functions, fullgraph=True, options=options)(*inputs_of(programs.functions))
    assert (report.collectives_before, report.collectives_after) == (3, 1)
    (rewrite,) = report.rewrites
    assert rewrite.rule == "fuse_all_to_all"
    assert rewrite.details["bytes"] == 3 * 8 * 8 * 4
    assert "float32" in rewrite.details["agreement"]


def test_disable() -> None:
    options = {"packpass.inner_backend": "eager", "packpass.disable": ["fuse_all_to_all"]}
    report = packpass.explain(programs.functions, fullgraph=True, options=options)(*inputs_of(programs.functions))
    assert (report.collectives_before, report.collectives_after) == (3, 3)
    assert report.rewrites == []


@pytest.mark.parametrize("to_heads", [True, False])
def test_changes_of_layout(to_heads: bool) -> None:
    """One call per section becomes one of all sections."""
    op = packpass.ops.cp_to_hp if to_heads else packpass.ops.hp_to_cp

    def program(x: Tensor, cu: Tensor) -> list[Tensor]:
        return [op(part * 2, cu, None).sin() for part in x.split([8, 4, 12], 1)]

    gm, (rewrite,), refusals = fused(program, torch.randn(16, 24, requires_grad=True), torch.tensor([0, 16]))
    assert refusals == []
    assert rewrite.before == f"3 {'cp_to_hp' if to_heads else 'hp_to_cp'}"
    (node,) = [n for n in gm.graph.nodes if is_collective(n.target)]
    factor = 1 if to_heads else SIZE
    assert node.args[2] == [8 * factor, 4 * factor, 12 * factor]


def test_op() -> None:
    """Schema, shapes, autograd; the fake group leaves values as they are."""
    name = dist.group.WORLD.group_name
    inputs = [torch.randn(8, 3, requires_grad=True), torch.randn(4, 2, 2).transpose(1, 2), torch.zeros(4, 0)]
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(GROUP, (inputs, name, SIZE), test_utils=utilities)
    outs = GROUP(inputs, name, SIZE)
    assert all(o.is_contiguous() for o in outs)
    assert len({o.untyped_storage().data_ptr() for o in outs[:2]}) == 2
    assert GROUP([], name, SIZE) == []
    alone = GROUP(inputs, name, 1)
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(alone[:2], inputs))


@pytest.mark.parametrize("wrong", [torch.ones(6, 4), torch.ones(())])
def test_op_needs_equal_parts(wrong: Tensor) -> None:
    """Also where only the elements divide."""
    with pytest.raises(ValueError, match="an all-to-all"):
        GROUP([torch.ones(4), wrong], dist.group.WORLD.group_name, SIZE)


# === Leaves alone ===============================================================================================


@pytest.mark.parametrize("program", programs.LEFT_ALONE, ids=lambda p: p.__name__)
def test_leaves_alone(program: Callable[..., Any]) -> None:
    inputs = inputs_of(program)
    before = collectives(captured(program, *inputs))
    torch._dynamo.reset()
    gm, rewrites, refusals = fused(program, *inputs)
    code = programs.LEFT_ALONE[program]
    assert rewrites == []
    assert groups_of(gm) == []
    assert collectives(gm) == before
    assert {r.code for r in refusals} == ({code} if code else set())


def test_other_groups() -> None:
    first, second = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])

    def program(x: Tensor) -> list[Tensor]:
        return [programs.in_place(part.contiguous(), g) for part, g in zip(x.split(12, 1), (first, second))]

    gm, rewrites, refusals = fused(program, torch.randn(8, 24))
    assert (collectives(gm), rewrites, refusals) == (2, [], [])


def test_interleaved_groups() -> None:
    """Another group's collective keeps its place between those of this one."""
    first, second = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])

    def program(x: Tensor) -> list[Tensor]:
        parts = [part.contiguous() for part in x.split(6, 1)]
        return [programs.in_place(part, g) for part, g in zip(parts, (first, second, first, second))]

    gm, rewrites, refusals = fused(program, torch.randn(8, 24))
    assert (collectives(gm), rewrites) == (4, [])
    assert [r.code for r in refusals] == ["collective-order"] * 2


def test_layouts_of_other_boundaries() -> None:
    def program(x: Tensor, cu: Tensor, cv: Tensor) -> list[Tensor]:
        return [packpass.ops.cp_to_hp(x, cu, None), packpass.ops.cp_to_hp(x, cv, None)]

    gm, rewrites, refusals = fused(program, torch.randn(4, 8), torch.tensor([0, 16]), torch.tensor([0, 8, 16]))
    assert (collectives(gm), rewrites, refusals) == (2, [], [])


def test_boundaries_changed_between_layouts() -> None:
    def program(x: Tensor, cu: Tensor) -> list[Tensor]:
        first = packpass.ops.cp_to_hp(x, cu, None)
        cu[1] = 8
        return [first, packpass.ops.cp_to_hp(x, cu, None)]

    gm, rewrites, refusals = fused(program, torch.randn(4, 8), torch.tensor([0, 0, 16]))
    assert (collectives(gm), rewrites) == (2, [])
    assert [r.code for r in refusals] == ["collective-order"]


def test_data_dependent_sizes() -> None:
    def program(x: Tensor, mask: Tensor) -> list[Tensor]:
        kept = x[mask.nonzero().squeeze(1)]
        return [programs.functional(kept, dist.group.WORLD), programs.functional(kept * 2, dist.group.WORLD)]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        gm, rewrites, refusals = fused(program, torch.randn(8, 4), torch.ones(8))
    assert (collectives(gm), rewrites) == (2, [])
    assert {r.code for r in refusals} == {"uneven-splits"}


def test_large_ones() -> None:
    """Inputs and results that are in memory of their own anyway: two copies each, for one latency less."""

    def program(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        return [programs.functional(t, dist.group.WORLD) for t in (x, y, z)]

    big, small = torch.empty(2**20), torch.empty(4)
    gm, rewrites, refusals = fused(program, big, big.clone(), small)
    assert (collectives(gm), rewrites) == (3, [])
    assert {r.code for r in refusals} == {"not-worthwhile"}
    gm, (rewrite,), _ = fused(program, big, big.clone(), small, collective_latency_us=1e6)
    assert (collectives(gm), rewrite.details["latency_us"]) == (1, 1e6)


def test_limit() -> None:
    options = {"bucket_bytes": 3 * 8 * 8 * 4 - 1}
    gm, _, _ = fused(programs.functions, *inputs_of(programs.functions), **options)
    assert (groups_of(gm), collectives(gm)) == ([2], 3)  # and one function with two bodies
    torch._dynamo.reset()
    gm, rewrites, _ = fused(programs.functions, *inputs_of(programs.functions), bucket_bytes=0)
    assert (rewrites, collectives(gm)) == ([], 6)
