"""What is cut out of an exchanged row is cut by the exchange: when it is, and when it is not. Structure only, on a fake
process group; values and gradients are compared on real ranks, in tests/dist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from passes.fuse_all_to_all import tails

OPS = torch.ops.packpass
SIZE = 4
PLACE = ([SIZE, 2 * SIZE], 1, "0", SIZE, True)


@pytest.fixture(autouse=True)
def _fake_group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=SIZE)
    yield
    torch._dynamo.reset()
    dist.destroy_process_group()


def after(program: Callable[..., Any]) -> list[fx.Node]:
    """The calls that are left of a program of a row ``[8, 12]`` and boundaries."""
    found: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example: Any) -> Any:
        found.append(gm)
        return gm.forward

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        torch.compile(program, backend=keep, fullgraph=True)(torch.randn(8, 12), torch.tensor([0, 8, 32]))
    (gm,) = found
    tails.run(gm.graph)
    gm.graph.lint()
    return [node for node in gm.graph.nodes if node.op == "call_function"]


def count(nodes: list[fx.Node], name: str) -> int:
    return sum(node.target is getattr(OPS, name).default for node in nodes)


# === Rewrites ===================================================================================================


def test_heads() -> None:
    def program(x: Tensor, cu: Tensor) -> Tensor:
        cu = OPS.snapshot(cu)
        row = OPS.cp_to_hp(x, cu, *PLACE)
        OPS.check_cu_seqlens(cu, 32)
        return OPS.documents_only(row, cu, 0)

    nodes = after(program)
    assert (count(nodes, "documents_only"), count(nodes, "check_cu_seqlens")) == (0, 0)
    (exchange,) = [node for node in nodes if node.target is OPS.cp_to_hp.default]
    assert exchange.args[-2:] == (True, True)


def test_tokens() -> None:
    """Shards are cut by the boundaries of shards."""

    def program(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
        row = OPS.hp_to_cp(x, OPS.snapshot(cu), *PLACE)
        shards = OPS.snapshot(torch.div(cu, SIZE, rounding_mode="floor"))
        OPS.check_cu_seqlens(shards, 2)
        return OPS.documents_only(row, shards, 0)

    nodes = after(program)
    assert (count(nodes, "documents_only"), count(nodes, "check_cu_seqlens")) == (0, 0)
    assert count(nodes, "hp_to_cp") == 1


# === Leaves alone ===============================================================================================


def read_by_others(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    row = OPS.cp_to_hp(x, cu, *PLACE)
    return OPS.documents_only(row, cu, 0), row.sum()


def other_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    return OPS.documents_only(OPS.cp_to_hp(x, cu, *PLACE), cu + 1, 0)


def boundaries_of_shards(x: Tensor, cu: Tensor) -> Tensor:
    return OPS.documents_only(OPS.cp_to_hp(x, cu, *PLACE), torch.div(cu, SIZE, rounding_mode="floor"), 0)


def boundaries_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    return OPS.documents_only(OPS.hp_to_cp(x, cu, *PLACE), cu, 0)


def parts_of_another_group(x: Tensor, cu: Tensor) -> Tensor:
    return OPS.documents_only(OPS.hp_to_cp(x, cu, *PLACE), torch.div(cu, 2, rounding_mode="floor"), 0)


def written_between(x: Tensor, cu: Tensor) -> Tensor:
    cu = cu.clone()
    row = OPS.cp_to_hp(x, cu, *PLACE)
    cu[0] = 4
    return OPS.documents_only(row, cu, 0)


def along_the_heads(x: Tensor, cu: Tensor) -> Tensor:
    return OPS.documents_only(OPS.cp_to_hp(x, cu, *PLACE), cu, 1)


LEFT = (
    read_by_others, other_boundaries, boundaries_of_shards, boundaries_of_the_row, parts_of_another_group,
    written_between, along_the_heads,
)  # fmt: skip


@pytest.mark.parametrize("program", LEFT, ids=lambda p: p.__name__)
def test_leaves_alone(program: Callable[..., Any]) -> None:
    assert count(after(program), "documents_only") == 1


def test_other_checks_stay() -> None:
    """A check of fewer slots, and one of other boundaries."""

    def program(x: Tensor, cu: Tensor) -> Tensor:
        OPS.check_cu_seqlens(cu, 16)
        OPS.check_cu_seqlens(cu + 1, 32)
        return OPS.cp_to_hp(x, cu, *PLACE)

    assert count(after(program), "check_cu_seqlens") == 2
