"""Which loops over documents become one exchange, and which stay as they are and why (a fake process group)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import packpass
from tests.dist import a2a_programs

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


@pytest.mark.parametrize("cp", [2, 8])
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
    for rank in (0, 1, 3):
        report = explain(a2a_programs.REWRITTEN["to_heads"], 4, rank)
        seen.append([r.details["agreement"] for r in report.rewrites if r.rule == "fuse_all_to_all"])
        dist.destroy_process_group()
        torch._dynamo.reset()
    assert seen[0] and seen[0] == seen[1] == seen[2]


FUSE, VECTORIZE = "fuse_all_to_all", "vectorize_segments"
CODES = {
    "contiguous_shards": (FUSE, "not-zigzag"),
    "wrong_order": (VECTORIZE, "no-rule"),  # a known exchange, and then chunks in an order of its own
    "twice": (FUSE, "not-zigzag"),
    "wrong_backward": (FUSE, "aliasing"),
    "scaled_before": (FUSE, "not-zigzag"),
    "changed_in_loop": (FUSE, "aliasing"),
    "received_changed": (FUSE, "aliasing"),
    "one_rank_kept": (FUSE, "not-zigzag"),
}


@pytest.mark.parametrize("name", a2a_programs.LEFT)
def test_leaves_alone(name: str) -> None:
    report = explain(a2a_programs.LEFT[name], 2)
    assert not [r for r in report.rewrites if r.rule in (FUSE, VECTORIZE)]
    assert CODES[name] in [(r.rule, r.code) for r in report.refusals]


def test_switched_off() -> None:
    report = explain(a2a_programs.REWRITTEN["to_heads"], 2, **{"packpass.disable": ["fuse_all_to_all"]})
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
