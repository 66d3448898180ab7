"""The CP ops in one process: groups of one, and what graphs hold for large groups (a fake process group)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from packpass.ops import cp_packed_roll, cp_to_hp, hp_to_cp
from packpass.ops._cp_packed_roll import _rolled
from tests.ops import reference
from tests.ops.fake_cuda import kernels, to_ptx, triton_source

OPS = torch.ops.packpass
EXCHANGE = torch.ops._c10d_functional.all_to_all_single.default


@pytest.fixture(autouse=True)
def no_group_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    if dist.is_initialized():
        dist.destroy_process_group()


def one_rank(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)


def fake_group(size: int, rank: int = 1) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)


def test_no_group() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        cp_to_hp(torch.ones(4, 4), torch.tensor([0, 4]), None)


@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
def test_group_of_one(tmp_path: Path, backend: str | None) -> None:
    """Nothing is exchanged, and any lengths are allowed."""
    one_rank(tmp_path)
    cu = torch.tensor([1, 4, 4, 5, 9])

    def program(x: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        y = cp_to_hp(x, cu, None, [1, 5])
        z = hp_to_cp(y, cu, dist.group.WORLD, [1, 5])
        return y, z, cp_packed_roll(z, cu, None, 2, 0), *cp_packed_roll(ids, cu, None, [-1, -2], fill=None)

    call = program if backend is None else torch.compile(program, backend=backend, fullgraph=True)
    x, ids = torch.randn(12, 6, requires_grad=True), torch.arange(24).view(2, 12)
    y, z, rolled, *moved = call(x, ids)
    assert torch.equal(y, x)
    assert torch.equal(z, x)
    assert y.data_ptr() != x.data_ptr()
    assert torch.equal(rolled, reference.roll(x, cu, 2, 0))
    assert torch.equal(moved[0], reference.roll(ids, cu, -1, 1, None))
    assert torch.equal(moved[1], reference.roll(ids, cu, -2, 1, None))
    weights = torch.randn(12, 6)
    (grad,) = torch.autograd.grad((rolled * weights).sum() + z.sum(), x)
    torch.testing.assert_close(grad, reference.roll(weights, cu, -2, 0) + 1)


def graphs_of(program: Callable[..., Any], *arguments: Tensor, train: bool) -> list[Counter[Any]]:
    """Calls by target in the forward (and backward) graph that Inductor would get, for a training step or not."""
    found: list[Counter[Any]] = []

    def count(gm: torch.fx.GraphModule, example: Any) -> Any:
        found.append(Counter(node.target for node in gm.graph.nodes if node.op == "call_function"))
        return make_boxed_func(gm.forward)

    backend = aot_autograd(
        fw_compiler=count,
        bw_compiler=count,
        inference_compiler=count,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=True)
    leaves = [a.clone().requires_grad_(train and a.is_floating_point()) for a in arguments]
    outs = compiled(*leaves)
    if train:
        sum(o.sum() for o in outs if o.requires_grad).backward()
    return found


@pytest.mark.parametrize("cp", [8, 64])
def test_layers_share_the_order(cp: int) -> None:
    """However many layers: one collective per change of layout, each with its order in it."""
    fake_group(cp)
    sections = [cp, 2 * cp, cp]

    def model(x: Tensor, cu: Tensor) -> tuple[Tensor]:
        for _ in range(3):
            y = cp_to_hp(x, cu, None, sections)
            x = x + hp_to_cp(torch.sin(y), cu, None, sections)
        return (x,)

    cu = torch.tensor([0, *[2 * cp * (i % 3 + 1) for i in range(20)]]).cumsum(0)
    graphs = graphs_of(model, torch.randn(int(cu[-1]) // cp, 4 * cp), cu, train=True)
    for graph in graphs:  # ops that exchange, with nothing in front of them or behind them
        assert (graph[OPS.host_cp_to_hp.default], graph[OPS.host_hp_to_cp.default], graph[EXCHANGE]) == (3, 3, 0)
        assert graph[OPS.host_shard_rows.default] == 0


@pytest.mark.parametrize(("cp", "train"), [(8, False), (64, True)])
def test_one_exchange_for_a_whole_multi_token_head(cp: int, train: bool) -> None:
    fake_group(cp)

    def shift(ids: Tensor, labels: Tensor, hidden: Tensor, cu: Tensor) -> list[Tensor]:
        by_field = cp_packed_roll([ids, labels, hidden], cu, None, [-1, -2, -3], [-1, -1, 0], [0, -100, 0.0])
        return [out for by_shift in by_field for out in by_shift]

    cu = torch.tensor([0, *[2 * cp * (i % 3 + 1) for i in range(20)]]).cumsum(0)
    local = int(cu[-1]) // cp
    fields = [torch.arange(local), torch.arange(local).view(1, -1), torch.randn(local, 5)]
    graphs = graphs_of(shift, *fields, cu, train=train)
    assert [(graph[OPS.host_cp_packed_roll.default], graph[EXCHANGE]) for graph in graphs] == [(1, 0)] * (1 + train)


def test_ranks_send_equal_parts() -> None:
    """On a GPU the collective is the same on every rank: only what is read from its result depends on the rank."""
    sent = []
    cu, x = torch.tensor([0, 16, 48]), torch.arange(6)
    for rank in (0, 3, 7):
        fake_group(8, rank)
        place = (dist.group.WORLD.group_name, 8, rank, None, None, True)

        def program(x: Tensor, cu: Tensor) -> list[Tensor]:
            return _rolled([x], cu, [0, 0], [-1, -2], [0], [0, 0], [False, False], *place)  # noqa: B023

        exchanges = make_fx(program)(x, cu).graph.find_nodes(op="call_function", target=EXCHANGE)
        values = [node.args[0].meta["val"] for node in exchanges]
        sent.append([(tuple(v.shape), v.dtype, *n.args[1:]) for v, n in zip(values, exchanges, strict=True)])
        dist.destroy_process_group()
    assert len(sent[0]) == 1
    assert sent[0] == sent[1] == sent[2]


def test_opcheck() -> None:
    """Through the fake group, whose all-to-all leaves values as they are: shapes, schemas and autograd."""
    fake_group(2)
    cu = torch.tensor([0, 8, 16], dtype=torch.int32)
    name = dist.group.WORLD.group_name
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    x = torch.randn(8, 3, 4, requires_grad=True)
    for op, scale, width in ((OPS.cp_to_hp.default, 1, 2), (OPS.hp_to_cp.default, 2, 4)):
        torch.library.opcheck(op, (x, cu // scale, [width, width], 2, name, 2), test_utils=utilities)
    arguments = ([x, torch.arange(8)], cu, [0, 1, 1], [-1, 2, 1], [0, 0], [0.0, 1, 2], [False, False, True], name, 2, 1)
    for ends in ((None, None), ([3.0, 1, 2], [False, False, True])):
        torch.library.opcheck(OPS.cp_packed_roll.default, (*arguments, *ends, True), test_utils=utilities)


def test_triton() -> None:
    """On a GPU: the order is a search per slot, both copies are kernels that compile for sm_90."""
    fake_group(4)
    name = dist.group.WORLD.group_name
    shapes = (((64, 3, 32), torch.bfloat16), ((9,), torch.int32))
    for op, width in ((OPS.cp_to_hp.default, 16), (OPS.hp_to_cp.default, 64)):
        source = triton_source(lambda x, cu, op=op, w=width: op(x * 2, cu, [w, w], 2, name, 4) + 1, *shapes)
        assert source.count("torch.ops._c10d_functional.all_to_all_single.default(") == 1
        assert "host_shard_rows" not in source
        found = kernels(source)
        assert found
        for kernel in found:
            assert ".entry" in to_ptx(kernel)
