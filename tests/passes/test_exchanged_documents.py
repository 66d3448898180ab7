"""What is cut out of an exchanged row is cut by the exchange: when it is, and when it is not. Structure only, on a fake
process group; values and gradients are compared on real ranks, in tests/dist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch._dynamo.exc import BackendCompilerFailed
from torch.testing._internal.distributed.fake_pg import FakeStore

from passes.fuse_all_to_all import tails

OPS = torch.ops.packpass
HEADS, TOKENS = OPS.cp_to_hp.default, OPS.hp_to_cp.default
CUT, CHECK, COPY = OPS.documents_only.default, OPS.check_cu_seqlens.default, OPS.snapshot.default
SIZE = 4
PLACE = ([SIZE, 2 * SIZE], 1, "0", SIZE, True)


@pytest.fixture(autouse=True)
def _fake_group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=SIZE)
    yield
    torch._dynamo.reset()
    dist.destroy_process_group()


class Captured(Exception):
    """What is captured is not run."""


def after(program: Callable[..., Any]) -> Counter[Any]:
    """Calls by target that are left of a program of a tensor ``[8, 12]`` and boundaries."""
    found: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example: Any) -> Any:
        found.append(gm)
        raise Captured

    with pytest.raises(BackendCompilerFailed, match="Captured"):
        torch.compile(program, backend=keep, fullgraph=True)(torch.randn(8, 12), torch.tensor([0, 8, 32]))
    (gm,) = found
    tails.run(gm.graph)
    gm.graph.lint()
    return Counter(node.target for node in gm.graph.nodes)


# === Rewrites ===================================================================================================


def test_heads() -> None:
    def program(x: Tensor, cu: Tensor) -> Tensor:
        cu = COPY(cu)
        row = HEADS(x, cu, *PLACE)
        CHECK(cu, 32)
        return CUT(row, cu, 0)

    left = after(program)
    assert (left[HEADS], left[CUT], left[CHECK]) == (1, 0, 0)


def test_tokens() -> None:
    """Shards are cut by the boundaries of shards."""

    def program(x: Tensor, cu: Tensor) -> Tensor:
        row = TOKENS(x, COPY(cu), *PLACE)
        shards = COPY(torch.div(cu, SIZE, rounding_mode="floor"))
        CHECK(shards, 2)
        return CUT(row, shards, 0)

    left = after(program)
    assert (left[TOKENS], left[CUT], left[CHECK], left[COPY]) == (1, 0, 0, 1)


# === Leaves alone ===============================================================================================


def read_by_others(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    row = HEADS(x, cu, *PLACE)
    return CUT(row, cu, 0), row.sum()


def other_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    return CUT(HEADS(x, cu, *PLACE), cu + 1, 0)


def boundaries_of_shards(x: Tensor, cu: Tensor) -> Tensor:
    return CUT(HEADS(x, cu, *PLACE), torch.div(cu, SIZE, rounding_mode="floor"), 0)


def boundaries_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    return CUT(TOKENS(x, cu, *PLACE), cu, 0)


def parts_of_another_group(x: Tensor, cu: Tensor) -> Tensor:
    return CUT(TOKENS(x, cu, *PLACE), torch.div(cu, 2, rounding_mode="floor"), 0)


def written_between(x: Tensor, cu: Tensor) -> Tensor:
    cu = cu.clone()
    row = HEADS(x, cu, *PLACE)
    cu[0] = 4
    return CUT(row, cu, 0)


def along_the_heads(x: Tensor, cu: Tensor) -> Tensor:
    return CUT(HEADS(x, cu, *PLACE), cu, 1)


LEFT = (
    read_by_others, other_boundaries, boundaries_of_shards, boundaries_of_the_row, parts_of_another_group,
    written_between, along_the_heads,
)  # fmt: skip


@pytest.mark.parametrize("program", LEFT, ids=lambda p: p.__name__)
def test_leaves_alone(program: Callable[..., Any]) -> None:
    assert after(program)[CUT] == 1


def test_other_checks_stay() -> None:
    """A check of fewer slots, and one of other boundaries."""

    def program(x: Tensor, cu: Tensor) -> Tensor:
        CHECK(cu, 16)
        CHECK(cu + 1, 32)
        return HEADS(x, cu, *PLACE)

    assert after(program)[CHECK] == 2
