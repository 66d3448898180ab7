"""Which loops over documents become one exchange, and which stay as they are and why (a fake process group)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import packpass
from tests.dist import a2a_fuzz, a2a_hard_programs, a2a_programs
from tests.stock import is_one_node

EAGER: dict[str, Any] = {"packpass.inner_backend": "eager"}


@pytest.fixture(autouse=True)
def no_group_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    if dist.is_initialized():
        dist.destroy_process_group()


def explain(case: a2a_programs.Case, cp: int, rank: int = 1, **options: Any) -> packpass.Report:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=cp)
    cu = torch.tensor([0, 2 * cp, 6 * cp, 16 * cp], dtype=torch.int32)
    shape = (16, a2a_programs.WIDTH * cp) if case.sharded else (16 * cp, a2a_programs.WIDTH)
    x = torch.randn(shape, requires_grad=True)
    return packpass.explain(lambda x, cu: case.program(x, cu, dist.group.WORLD), options=EAGER | options)(x, cu)


# Real ranks run groups of two.
@pytest.mark.parametrize("cp", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", a2a_programs.REWRITTEN)
def test_rewrites(name: str, cp: int) -> None:
    case = a2a_programs.REWRITTEN[name]
    report = explain(case, cp)
    found = [r for r in report.rewrites if r.rule == "fuse_all_to_all"]
    assert found and all("a2a_programs.py" in r.location for r in found)
    assert (report.graphs, report.graph_breaks, report.collectives_after) == (1, 0, case.exchanges)
    assert report.collectives_before > case.exchanges


def test_every_rank_decides_alike() -> None:
    """What the ranks compare before they exchange anything does not depend on the rank."""
    seen = []
    for rank in (0, 3):
        report = explain(a2a_programs.REWRITTEN["to_heads"], 4, rank)
        seen.append([r.details["agreement"] for r in report.rewrites if r.rule == "fuse_all_to_all"])
        dist.destroy_process_group()
        torch._dynamo.reset()
    assert seen[0] and seen[0] == seen[1]


FUSE, VECTORIZE = "fuse_all_to_all", "vectorize_segments"
FUNCTION = "not-zigzag or aliasing"
"""Of a function whose backward is not its gradient: Dynamo may give it more operands, and it counts as writing them."""
CODES = {
    "wrong_order": (VECTORIZE, "no-rule"),  # a known exchange, and then chunks in an order of its own
    "twice": (FUSE, "not-zigzag"),
    "wrong_backward": (FUSE, FUNCTION),
    "changed_in_loop": (FUSE, "aliasing"),
    "received_changed": (FUSE, "aliasing"),
    "one_rank_kept": (FUSE, "not-zigzag"),
}


@pytest.mark.parametrize("name", a2a_programs.LEFT)
def test_leaves_alone(name: str) -> None:
    report = explain(a2a_programs.LEFT[name], 2)
    assert not [r for r in report.rewrites if r.rule in (FUSE, VECTORIZE)]
    rule, code = CODES[name]
    assert [r for r in report.refusals if r.rule == rule and r.code in code.split(" or ")]


def explain_hard(case: a2a_hard_programs.Hard, cp: int) -> packpass.Report:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=cp)
    cu = torch.tensor([0, 2 * cp, 6 * cp, 16 * cp], dtype=torch.int32)
    x = torch.randn((16, 12 * cp) if case.sharded else (16 * cp, 12), requires_grad=True)
    return packpass.explain(lambda x, cu: case.program(x, cu, dist.group.WORLD), options=EAGER)(x, cu)


@pytest.mark.parametrize("name", a2a_hard_programs.REWRITTEN)
def test_rewrites_hard(name: str) -> None:
    if "with_einops" in name and is_one_node(rearrange, torch.zeros(2, 2), "a b -> b a"):
        pytest.skip("einops calls are closed to Dynamo here")
    case = a2a_hard_programs.REWRITTEN[name]
    report = explain_hard(case, 4)
    assert (report.graphs, report.graph_breaks, report.collectives_after) == (1, 0, case.exchanges)
    assert [r for r in report.rewrites if r.rule == FUSE]


@pytest.mark.parametrize("name", a2a_hard_programs.LEFT)
def test_leaves_alone_hard(name: str) -> None:
    case = a2a_hard_programs.LEFT[name]
    report = explain_hard(case, 2)
    assert not [r for r in report.rewrites if r.after in ("cp_to_hp", "hp_to_cp")]
    of_passes = [r for r in report.refusals if r.rule in (FUSE, VECTORIZE, "capture")]
    assert [r for r in of_passes if r.code in case.code.split(" or ")]


@pytest.mark.slow
@pytest.mark.parametrize("cp", [2, 4])
def test_rewrites_random_programs(cp: int) -> None:
    """However a program is spelled, sections, dtypes and dimensions: one exchange."""
    dist.init_process_group("fake", store=FakeStore(), rank=cp - 1, world_size=cp)
    for seed in range(10 * cp, 10 * cp + 6):
        torch._dynamo.reset()
        case = a2a_fuzz.fuzzed(seed)
        cu, total = case.batch(cp, 3)
        x = case.values(total, cp)
        report = packpass.explain(lambda x, cu: case.program(x, cu, dist.group.WORLD), options=EAGER)(x, cu)  # noqa: B023
        assert (report.graphs, report.graph_breaks, report.collectives_after) == (1, 0, 1), (case, report.refusals)
        assert report.result.shape[0] == (cu[-1] - cu[0] if case.joined == "cat" else total) // (
            1 if case.to_heads else cp
        )


def test_what_ranks_agree_on_is_the_exchange() -> None:
    """Weights of a rank's own heads are constants in the loop, and no reason for ranks to differ."""
    seen = []
    for rank in (0, 1):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        cu = torch.tensor([0, 4, 12], dtype=torch.int32)
        program = a2a_hard_programs.own_weights
        report = packpass.explain(lambda x, cu: program(x, cu, dist.group.WORLD), options=EAGER)(  # noqa: B023
            torch.randn(6, 24), cu
        )
        seen.append([r.details["agreement"] for r in report.rewrites if r.rule == FUSE])
        dist.destroy_process_group()
        torch._dynamo.reset()
    assert seen[0] == seen[1] != []


def test_result_in_the_memory_of_the_source() -> None:
    """A buffer that shares no memory with the source in the first call may do so in the next."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)

    def program(x: Tensor, out: Tensor, cu: Tensor) -> Tensor:
        for i in range(len(cu) - 1):
            part = x[cu[i] // 2 : cu[i + 1] // 2]
            send = part.unflatten(1, (2, -1)).transpose(0, 1).contiguous()
            received = a2a_programs.functional(send, dist.group.WORLD)
            out[cu[i] : cu[i + 1]] = a2a_programs.undo_by_chunks(received.flatten(0, 1), 2)
        return out

    report = packpass.explain(program, options=EAGER)(
        torch.randn(8, 4), torch.zeros(16, 2), torch.tensor([0, 4, 16], dtype=torch.int32)
    )
    (rewrite,) = [r for r in report.rewrites if r.rule == FUSE]
    assert sorted(rewrite.details["separate_inputs"]) == ["l_out_", "l_x_"]


def test_loop_that_remains_is_replayed() -> None:
    """An op without a rule after the exchange: the exchange is one, the loop runs document by document."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)

    def program(x: Tensor, cu: Tensor) -> Tensor:
        out = []
        for i in range(len(cu) - 1):
            part = x[cu[i] // 2 : cu[i + 1] // 2]
            received = a2a_programs.functional(torch.stack(part.split(4, -1)), dist.group.WORLD)
            h = part.shape[0] // 2
            y = torch.cat([received[0, :h], received[1, :h], received[1, h:], received[0, h:]])
            out.append(torch.fft.fft(y, dim=0).real)
        return torch.cat(out)

    x, cu = torch.randn(8, 8), torch.tensor([0, 4, 16], dtype=torch.int32)
    report = packpass.explain(program, options=EAGER)(x, cu)
    assert (report.graphs, report.graph_breaks, report.collectives_after) == (1, 0, 1)
    assert [r.rule for r in report.rewrites] == [FUSE]
    assert report.result.shape == (16, 4)


def test_switched_off() -> None:
    off: dict[str, Any] = {"packpass.disable": ["fuse_all_to_all"]}
    report = explain(a2a_programs.REWRITTEN["to_heads"], 2, **off)
    assert not report.rewrites


def test_sections_that_do_not_divide() -> None:
    """The program itself cannot run: packpass does not make it worse."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)

    def program(x: Tensor, cu: Tensor) -> Tensor:
        out = []
        for i in range(len(cu) - 1):
            part = x[cu[i] // 4 : cu[i + 1] // 4]
            send = part.reshape(part.shape[0], 4, part.shape[1] // 4).transpose(0, 1).contiguous()
            out.append(a2a_programs.undo_by_chunks(a2a_programs.functional(send, dist.group.WORLD).flatten(0, 1), 4))
        return torch.cat(out)

    with pytest.raises(RuntimeError, match="invalid for input"):
        torch.compile(program, backend=packpass.backend, options=EAGER)(torch.randn(4, 10), torch.tensor([0, 8, 16]))
