"""fuse_boundary_exchange on graphs: what is emitted for every rank, what is refused. The exchange itself, on real
ranks, is in tests/dist/test_boundary_exchange.py; here a fake process group plays any rank of any size."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.testing._internal.distributed.fake_pg import FakeStore

import packpass
from packpass.semantics.integers import Comparison
from passes.fuse_boundary_exchange.values import (
    ONE,
    ZERO,
    Constant,
    Int,
    Run,
    Unset,
    always,
    cut,
    normal,
    number,
    only_if_empty,
)
from passes.refused import Refused
from tests.dist import p2p_leave, p2p_lists, p2p_lists_leave, p2p_programs, p2p_wide
from tests.dist.p2p_checks import Recorder
from tests.stock import codes

HALF, WHOLE = Int(half=1), Int(half=2)

ROLL = torch.ops.packpass.cp_packed_roll.default


@pytest.fixture(autouse=True)
def _no_group_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    if dist.is_initialized():
        dist.destroy_process_group()


def join(size: int, rank: int) -> Any:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    return dist.group.WORLD


def rolls(program: Callable[..., Any], *args: Any) -> list[fx.Node]:
    """The exchanges of the one graph that is made, which has no message left."""
    recorder = Recorder()
    options = {"packpass.inner_backend": "eager", "packpass.on_refusal": "raise"}
    torch.compile(program, backend=recorder, fullgraph=True, options=options)(*args)
    (gm,) = recorder.graphs
    assert not any("p2p" in str(node.target) or "loop" in str(node.target) for node in gm.graph.nodes)
    return [node for node in gm.graph.nodes if node.target is ROLL]


def refusal(program: Callable[..., Any], *args: Any) -> str:
    report = packpass.explain(program, options={"packpass.inner_backend": "eager"})(*args)
    assert not report.rewrites
    return report.refusals[0].code


def sample(cp: int, dim: int = -1) -> tuple[Tensor, Tensor]:
    """A shard of 8 slots, and boundaries of two documents."""
    x = torch.arange(16.0)
    return x.view(2, 8) if dim == -1 else x.view(8, 2), torch.tensor([0, 4 * cp, 8 * cp])


# === Rewrites ================================================================================================


@pytest.mark.parametrize("rank", [0, 2, 3])
@pytest.mark.parametrize("name", p2p_programs.ROLLS)
def test_every_rank_makes_the_same_call(name: str, rank: int) -> None:
    program, shift, fill, dim, _ = p2p_programs.ROLLS[name]
    group = join(4, rank)
    (roll,) = rolls(program, *sample(4, dim), group)
    xs, cu, fields, shifts, dims, fills, wraps, *place = roll.args[:10]
    assert [n.name for n in (*xs, cu)] == ["l_x_", "l_cu_"]
    assert (fields, shifts, fills, wraps) == ([0], [shift], [0], [False])
    assert [d % 2 for d in dims] == [dim % 2]
    assert place == [group.group_name, 4, rank]
    # What comes in at the ends of documents is seen by rank 0 alone.
    ends = [[fill or 0], [fill is None]] if rank == 0 else [[0], [False]]
    assert list(roll.args[10:]) == [*ends, True]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("name", [*p2p_wide.WIDE, *p2p_wide.GRADIENTS, *p2p_wide.ZIGZAGS])
def test_messages_of_more_slots_than_one(name: str, rank: int) -> None:
    """Every rank makes the same call, whatever its place, and no message is left."""
    calls = {
        "both_sides": ([0, 1], [-2, 2]), "by_hand": ([0, 1], [1, 2]), "convolution": ([0], [3]), "one_slot": ([0], [1]),
        "two_rows": ([0, 1], [2, 2]), "rolled_by_two": ([0], [-2]), "zigzag_by_two": ([0], [-2]),
        "with_gradient": ([0, 1], [1, 2]), "used_alone_as_well": ([0, 1], [2, 2]),
        "depths": ([0, 0], [-3, -1]), "of_more_than_it_needs": ([0], [1]),
    }  # fmt: skip
    recorder, group = Recorder(), join(3, rank)
    program = (p2p_wide.WIDE | p2p_wide.GRADIENTS | p2p_wide.ZIGZAGS)[name]
    x = torch.randn(12, 3, requires_grad=name in p2p_wide.GRADIENTS)
    with contextlib.suppress(RuntimeError):  # the fake group cannot run a call in which ranks send unlike numbers
        torch.compile(program, backend=recorder, fullgraph=True, options={"packpass.inner_backend": "eager"})(
            x, torch.tensor([0, 12, 36]), group
        )
    (gm,) = recorder.graphs
    assert not any("p2p" in str(node.target) or "loop" in str(node.target) for node in gm.graph.nodes)
    (roll,) = (node for node in gm.graph.nodes if node.target is ROLL)
    fields, shifts = calls.get(name, ([0], [2]))
    assert (sorted(roll.args[2]), sorted(roll.args[3])) == (fields, shifts)
    assert roll.args[9] == rank


@pytest.mark.parametrize("name", p2p_wide.LEFT)
def test_other_slots_than_those_at_the_end(name: str) -> None:
    """A rank that sends and receives."""
    group, (x, cu) = join(3, 1), (torch.randn(12, 3), torch.tensor([0, 12, 36]))
    report = packpass.explain(p2p_wide.LEFT[name], options={"packpass.inner_backend": "eager"})(x, cu, group)
    assert report.refusals
    assert not any(r.rule == "fuse_boundary_exchange" for r in report.rewrites)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("name", p2p_lists.REWRITTEN)
def test_messages_of_all_documents_in_a_list(name: str, rank: int) -> None:
    """Loops that go over the lists, too, are one, whatever a rank sends and receives."""
    recorder, group = Recorder(), join(3, rank)
    with contextlib.suppress(RuntimeError):  # the fake group cannot run a call in which ranks send unlike numbers
        torch.compile(
            p2p_lists.REWRITTEN[name], backend=recorder, fullgraph=True, options={"packpass.inner_backend": "eager"}
        )(torch.randn(12, 3), torch.tensor([0, 12, 36]), group)
    (gm,) = recorder.graphs
    assert not any("p2p" in str(node.target) or "loop" in str(node.target) for node in gm.graph.nodes)
    (roll,) = (node for node in gm.graph.nodes if node.target is ROLL)
    assert roll.args[9] == rank


@pytest.mark.parametrize("name", p2p_lists_leave.LEFT)
def test_lists_of_other_messages(name: str) -> None:
    group, (x, cu) = join(3, 1), (torch.randn(12, 3), torch.tensor([0, 12, 36]))
    report = packpass.explain(p2p_lists_leave.LEFT[name], options={"packpass.inner_backend": "eager"})(x, cu, group)
    assert report.refusals
    assert not any(r.rule == "fuse_boundary_exchange" for r in report.rewrites)


def test_a_group_beside_the_one_that_sends() -> None:
    """Messages in the default group, between the ranks of another one."""
    join(8, 5)
    group = dist.new_group([4, 5, 6, 7])

    def program(x: Tensor, cu: Tensor, cp_group: Any) -> Tensor:
        out = x.clone()
        cp, rank, ranks = cp_group.size(), dist.get_rank(cp_group), dist.get_process_group_ranks(cp_group)
        for i in range(len(cu) - 1):
            s, e = cu[i] // cp, cu[i + 1] // cp
            a, b = x[..., s:e].chunk(2, -1)
            end_a, end_b = torch.empty_like(a[..., 0]), torch.empty_like(a[..., 0])
            works = [dist.isend(a[..., 0].clone(), ranks[rank - 1]), dist.irecv(end_b, ranks[rank - 1])]
            works += [dist.irecv(end_a, ranks[rank + 1]), dist.isend(b[..., 0].clone(), ranks[rank + 1])]
            for work in works:
                work.wait()
            new = [torch.cat([c[..., 1:], end.unsqueeze(-1)], -1) for c, end in ((a, end_a), (b, end_b))]
            out[..., s:e] = torch.cat(new, -1)
        return out

    (roll,) = rolls(program, *sample(4), group)
    assert list(roll.args[7:10]) == [group.group_name, 4, 1]


def test_fields_and_depths_are_one_exchange() -> None:
    group = join(4, 1)
    ids, cu = sample(4)
    (roll,) = rolls(p2p_programs.depths, ids.long(), ids.int(), ids, cu, group)
    xs, _, fields, shifts = roll.args[:4]
    # Two chains start at ids: each has fills of its own, which this rank does not know.
    assert [x.name for x in xs] == ["l_ids_", "l_ids_", "l_labels_", "l_mask_"]
    assert list(zip(fields, shifts, strict=True)) == [
        *((0, -1), (1, -1), (2, -1), (3, -1)),
        *((1, -2), (2, -2), (3, -2), (1, -3), (2, -3), (3, -3), (0, -2)),
    ]


def test_a_field_that_is_made_later_needs_another_exchange() -> None:
    group = join(2, 0)

    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        y = p2p_programs.requests(x, cu, group)
        return p2p_programs.requests(y * 2, cu, group)

    assert len(rolls(program, *sample(2), group)) == 2


def test_boundaries_that_change_between_two_rolls() -> None:
    group = join(2, 0)

    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        y = p2p_programs.requests(x, cu, group)
        cu.copy_(cu * 1)
        return p2p_programs.requests(y, cu, group)

    first, second = rolls(program, *sample(2), group)
    assert first.args[3] == second.args[3] == [-1]


def test_the_report_says_what_ranks_must_agree_on() -> None:
    group = join(4, 3)
    said = []
    for program in (p2p_programs.requests, p2p_programs.batched):
        report = packpass.explain(program, options={"packpass.inner_backend": "eager"})(*sample(4), group)
        (rewrite,) = report.rewrites
        assert rewrite.rule == "fuse_boundary_exchange"
        said.append(rewrite.details["agreement"])
        assert (report.graphs, report.graph_breaks) == (1, 0)
    assert said[0] == said[1] == "cp_packed_roll over 4 ranks, boundaries of the row: shift=-1 dim=-1 float32"


def test_another_group_is_another_graph() -> None:
    join(4, 1)
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    recorder = Recorder()
    compiled = torch.compile(p2p_programs.requests, backend=recorder, options={"packpass.inner_backend": "eager"})
    for group in groups:
        compiled(*sample(2), group)
    places = [node.args[7:10] for gm in recorder.graphs for node in gm.graph.nodes if node.target is ROLL]
    assert places == [(groups[0].group_name, 2, 1), (groups[1].group_name, 2, 0)]


# === Leaves alone ============================================================================================


@pytest.mark.parametrize("rank", [3, 0, 1])
@pytest.mark.parametrize("name", p2p_leave.LEAVE)
def test_refused_on_every_rank(name: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program, code = p2p_leave.LEAVE[name]
    assert refusal(program, *sample(4), join(4, rank)) in codes(code)


def test_gradients_are_left_to_eager() -> None:
    group = join(2, 1)
    x, cu = sample(2)
    assert refusal(p2p_programs.requests, x.requires_grad_(), cu, group) == "message-gradient"
    with torch.no_grad():
        assert rolls(p2p_programs.requests, x, cu, group)


def test_ranks_of_no_known_group() -> None:
    join(4, 1)

    def program(x: Tensor, cu: Tensor) -> Tensor:
        """Two of four ranks, by numbers only."""
        out = x.clone()
        for i in range(len(cu) - 1):
            s, e = cu[i] // 2, cu[i + 1] // 2
            a, b = x[..., s:e].chunk(2, -1)
            end_a, end_b = b[..., :1].clone(), torch.empty_like(b[..., :1])
            for work in [dist.isend(a[..., :1].clone(), 0), dist.irecv(end_b, 0)]:
                work.wait()
            out[..., s:e] = torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1)
        return out

    assert refusal(program, *sample(2)) == "not-a-segment"


@pytest.mark.parametrize("option", ["disable", "symbolic_loops"])
def test_switched_off(option: str) -> None:
    group = join(2, 0)
    value: Any = ["fuse_boundary_exchange"] if option == "disable" else False
    options = {"packpass.inner_backend": "eager", f"packpass.{option}": value}
    report = packpass.explain(p2p_programs.requests, options=options)(*sample(2), group)
    assert not report.rewrites


# === Integers and slots ======================================================================================


def test_order_is_for_every_length() -> None:
    assert WHOLE.at_least(HALF) and HALF.at_least(ONE) and not HALF.at_least(number(2)) and not ONE.at_least(HALF)
    assert not Int(start=1).at_least(ZERO)
    assert Int(start=4, half=8).over(4) == Int(start=1, half=2) and Int(half=3).over(2) is None


def test_slices_that_depend_on_the_length_are_refused() -> None:
    runs = (Run(HALF, Unset()), Run(HALF, Constant(1, "1")))
    assert normal(cut(runs, HALF.plus(ONE, -1), HALF.plus(ONE), None)) == (
        Run(ONE, Unset()),
        Run(ONE, Constant(1, "1")),
    )
    with pytest.raises(Refused):
        cut(runs, number(2), WHOLE, None)


@pytest.mark.parametrize(
    ("asked", "holds", "empty"),
    [
        (Comparison("eq", WHOLE), False, True),
        (Comparison("le", WHOLE), False, True),
        (Comparison("lt", WHOLE.plus(number(2), -1)), False, True),
        (Comparison("lt", WHOLE.plus(number(3), -1)), False, False),
        (Comparison("ge", HALF), True, False),
        (Comparison("gt", HALF), False, False),
        (Comparison("eq", ZERO), True, False),
        (Comparison("eq", Int(start=1)), False, False),
    ],
)
def test_conditions(asked: Comparison, holds: bool, empty: bool) -> None:
    assert always(asked) == holds
    assert only_if_empty(asked, True) == empty
