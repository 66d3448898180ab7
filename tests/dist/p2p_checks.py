"""What the ranks run for test_boundary_exchange.py: each function raises, or returns figures, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx

import packpass
from packpass.engine.backend import Backend
from tests.dist import (
    loop_ranks,
    naive,
    p2p_functions,
    p2p_halves,
    p2p_leave,
    p2p_parts,
    p2p_pieces,
    p2p_programs,
    p2p_wide,
)
from tests.dist.cp_programs import check, executed, group_of, whole_row
from tests.ops import reference

OPTIONS = {"packpass.inner_backend": "eager"}


class Recorder(Backend):
    """A packpass backend that keeps the graphs it hands on."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Callable[..., Any]:
        compiled = super().__call__(gm, example_inputs, **kwargs)
        self.graphs.append(gm)
        return compiled

    def count(self, text: str) -> int:
        return sum(text in str(node.target) for gm in self.graphs for node in gm.graph.nodes)


def lengths(cp: int, count: int, seed: int, least: int) -> list[int]:
    numbers = torch.randint(least, 5, (count,), generator=torch.Generator().manual_seed(seed))
    return [2 * cp * int(n) for n in numbers]


def boundaries(cp: int, count: int, seed: int, *, least: int = 1, head: int = 0, tail: int = 0) -> tuple[Tensor, int]:
    """Documents of ``least`` to 4 slots per chunk between tails of ``head`` and ``tail`` slots per rank."""
    cu = torch.tensor([head * cp, *lengths(cp, count, seed, least)]).cumsum(0)
    return cu, int(cu[-1]) + tail * cp


def rolls(cp: int, name: str, dtype: torch.dtype, backend: str) -> tuple[int, int, int]:
    """Bit for bit what eager gives; graphs, exchanges per call, messages left in the graphs."""
    torch._dynamo.reset()
    group = group_of(cp)
    program, shift, fill, dim, outside = p2p_programs.ROLLS[name]
    recorder = Recorder()
    compiled = torch.compile(program, backend=recorder, fullgraph=True, options={"packpass.inner_backend": backend})
    exchanges = set()
    for seed, count in enumerate((3, 5, 1, 8)):
        least = 0 if name == "around" else 1
        space = 0 if outside == "none" else seed
        cu, size = boundaries(cp, count, seed, least=least, head=space % 2, tail=space)
        shape = (3, size) if dim == -1 else (size, 5)
        whole = whole_row(shape, dtype, seed)
        x = naive.shard(whole, cu.tolist(), cp, dist.get_rank(group), dim)
        want = program(x.clone(), cu, group)
        got, executions = executed(group, lambda: compiled(x.clone(), cu, group))  # noqa: B023
        check(reference.same(got, want), name, seed)
        rolled = reference.roll(whole, cu, shift, dim, fill)
        expected = naive.shard(rolled, cu.tolist(), cp, dist.get_rank(group), dim)
        inside = slice(int(cu[0]) // cp, int(cu[-1]) // cp)
        at = (slice(None), inside) if dim == -1 else inside
        check(reference.same(want[at] if outside != "none" else want, expected[at]), "eager", name, seed)
        exchanges.add(executions)
    check(len(exchanges) == 1, "exchanges", exchanges)
    return len(recorder.graphs), exchanges.pop(), recorder.count("p2p_")


def many(cp: int, backend: str) -> list[tuple[int, int]]:
    """Fields and depths: graphs and exchanges of `p2p_programs.depths`, `together` and `depths_into_zeros`."""
    group = group_of(cp)
    figures = []
    for program, dtypes in (
        (p2p_programs.depths, [torch.int64, torch.int32, torch.float32]),
        (p2p_programs.together, [torch.int64, torch.bfloat16]),
        (p2p_programs.depths_into_zeros, [torch.int64, torch.int64]),
    ):
        torch._dynamo.reset()
        recorder = Recorder()
        compiled = torch.compile(program, backend=recorder, fullgraph=True, options={"packpass.inner_backend": backend})
        for seed, count in enumerate((3, 6)):
            # Some chunks of one slot: depths reach two ranks further.
            cu, size = boundaries(cp, count, seed, head=seed, tail=seed)
            wholes = [whole_row((2, size), dtype, seed + i) for i, dtype in enumerate(dtypes)]
            wholes = [whole.round() if whole.is_floating_point() else whole for whole in wholes]  # sums are exact
            fields = [naive.shard(whole, cu.tolist(), cp, dist.get_rank(group), -1) for whole in wholes]
            want = program(*(x.clone() for x in fields), cu, group)  # type: ignore[operator]
            got, exchanges = executed(group, lambda: compiled(*(x.clone() for x in fields), cu, group))  # noqa: B023
            for i, (a, b) in enumerate(zip(got, want, strict=True)):
                check(torch.equal(a, b), program.__name__, seed, i)
        figures.append((len(recorder.graphs), exchanges))
    return figures


def _figures(
    cp: int, name: str, program: Any, fields_of: Callable[[Tensor], list[Tensor]], rolls: bool = False
) -> list[tuple[int, int, int]]:
    """Graphs, exchanges per call, messages left, for 3, 1 and 5 documents; ``rolls``: what comes is the rolled row."""
    torch._dynamo.reset()
    group, recorder = group_of(cp), Recorder()
    compiled = torch.compile(program, backend=recorder, fullgraph=True, options=OPTIONS)
    figures = []
    for seed, count in enumerate((3, 1, 5)):
        cu, size = boundaries(cp, count, seed)
        row = whole_row((2, size), torch.int64, seed)
        fields = [naive.shard(r, cu.tolist(), cp, dist.get_rank(group), -1) for r in fields_of(row)]
        want = _listed(program(*fields, cu, group))
        got, exchanges = executed(group, lambda: compiled(*fields, cu, group))  # noqa: B023
        for i, (a, b) in enumerate(zip(_listed(got), want, strict=True)):
            check(a.dtype == b.dtype and torch.equal(a, b), name, count, i)
        if rolls:
            rolled = naive.shard(reference.roll(row, cu, -1, -1, 0), cu.tolist(), cp, dist.get_rank(group), -1)
            check(torch.equal(got, rolled), name, count)
        figures.append((len(recorder.graphs), exchanges, recorder.count("p2p_")))
    return figures


def _listed(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)


def parts(cp: int, name: str) -> list[tuple[int, int, int]]:
    """`_figures` of a program of `p2p_parts`."""
    return _figures(cp, name, p2p_parts.PARTS[name], lambda row: [row, row % 3 - 1])


def halves(cp: int, name: str) -> list[tuple[int, int, int]]:
    """`_figures` of a program of `p2p_halves`."""
    return _figures(cp, name, p2p_halves.HALVES[name], lambda row: [row], rolls=True)


def gradients(cp: int, name: str) -> tuple[bool, list[str]]:
    """A program of `p2p_parts.GRADIENTS`: is it one exchange, results and gradients as eager's; codes of refusals."""
    torch._dynamo.reset()
    group, (program, _) = group_of(cp), p2p_parts.GRADIENTS[name]
    compiled = torch.compile(program, backend=Recorder(), options=OPTIONS)

    def run(f: Callable[..., Tensor], rows: list[Tensor], cu: Tensor) -> list[Tensor]:
        rows = [row.clone().requires_grad_() for row in rows]
        out = f(*rows, cu, group)
        return [out.detach(), *torch.autograd.grad((out * torch.arange(out.numel()).view_as(out)).sum(), rows)]

    counts = set()
    for seed, count in enumerate((3, 1, 5)):
        cu, size = boundaries(cp, count, seed, least=2)
        whole = [whole_row((2, size), torch.float32, seed + i) for i in range(2)]
        rows = [naive.shard(row, cu.tolist(), cp, dist.get_rank(group), -1) for row in whole]
        want = run(program, rows, cu)
        got, exchanges = executed(group, lambda: run(compiled, rows, cu))  # noqa: B023
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            check(reference.same(a, b), name, count, i)
        counts.add(exchanges)
    torch._dynamo.reset()
    report = packpass.explain(program, options=OPTIONS)(*(row.requires_grad_() for row in rows), cu, group)
    return counts == {1}, [refusal.code for refusal in report.refusals]


def other_documents(cp: int) -> int:
    """Exchanges of `p2p_programs.other_documents`."""
    torch._dynamo.reset()
    group = group_of(cp)
    compiled = torch.compile(p2p_programs.other_documents, backend=packpass.backend, fullgraph=True, options=OPTIONS)
    cu, size = boundaries(cp, 4, 3)
    x = naive.shard(whole_row((2, size), torch.int64, 3), cu.tolist(), cp, dist.get_rank(group), -1)
    want = p2p_programs.other_documents(x, cu, group)
    got, exchanges = executed(group, lambda: compiled(x, cu, group))
    for a, b in zip(got, want, strict=True):
        check(torch.equal(a, b), "other documents")
    return exchanges


def megatron(cp: int, backend: str) -> tuple[int, int]:
    """``roll_tensor`` of megatron-core, unmodified, for two depths of three fields: graphs and exchanges."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    torch._dynamo.reset()
    group = group_of(cp)

    def shift(ids: Tensor, labels: Tensor, mask: Tensor, cu: Tensor) -> list[Tensor]:
        packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu)
        outs = []
        for _ in range(2):
            ids, _ = roll_tensor(ids, shifts=-1, dims=-1, cp_group=group, packed_seq_params=packed)
            labels, _ = roll_tensor(labels, shifts=-1, dims=-1, cp_group=group, packed_seq_params=packed)
            mask, count = roll_tensor(mask, shifts=-1, dims=-1, cp_group=group, packed_seq_params=packed)
            outs += [ids, labels, mask, count]
        return outs

    recorder = Recorder()
    compiled = torch.compile(shift, backend=recorder, fullgraph=True, options={"packpass.inner_backend": backend})
    for seed, count in enumerate((4, 1, 7)):
        cu, size = boundaries(cp, count, seed, tail=seed)
        cu = cu.int()
        row = whole_row((1, size), torch.int64, seed)
        fields = [naive.shard(r, cu.tolist(), cp, dist.get_rank(group), -1) for r in (row, row + 1, row.float())]
        want = shift(*fields, cu)
        got, exchanges = executed(group, lambda: compiled(*fields, cu))  # noqa: B023
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            check(torch.equal(a, b), "megatron", seed, i)
    return len(recorder.graphs), exchanges


def leave(cp: int, names: list[str]) -> dict[str, list[str]]:
    """Programs that stay as they are: their results, and the codes of the refusals."""
    group = group_of(cp)
    codes = {}
    for name in names:
        torch._dynamo.reset()
        program, _ = (p2p_leave.LEAVE | p2p_halves.LEFT)[name]
        cu, size = boundaries(cp, 3, 7, least=2)
        x = naive.shard(whole_row((2, size), torch.int64, 1), cu.tolist(), cp, dist.get_rank(group), -1)
        want = program(x, cu, group)
        report = packpass.explain(program, options={"packpass.inner_backend": "eager"})(x, cu, group)
        check(torch.equal(report.result, want), name)
        check(not report.rewrites, name, report.rewrites)
        codes[name] = [refusal.code for refusal in report.refusals]
    return codes


def behind_a_break(cp: int, name: str) -> int:
    """A loop that is rewritten and something that is not: exchanges of the whole."""
    torch._dynamo.reset()
    group, program = group_of(cp), p2p_leave.BEHIND_A_BREAK[name]
    cu, size = boundaries(cp, 3, 7)
    x = naive.shard(whole_row((2, size), torch.int64, 1), cu.tolist(), cp, dist.get_rank(group), -1)
    want = program(x, cu, group)
    report = packpass.explain(program, options={"packpass.inner_backend": "eager"})(x, cu, group)
    check(torch.equal(report.result, want), name)
    return len(report.rewrites)


def over_source(name: str) -> list[str]:
    """A program of `p2p_parts.KEPT` whose result lies over what it rolls, in some of its calls."""
    group = group_of(2)

    def program(x: Tensor, out: Tensor, cu: Tensor) -> Tensor:
        return p2p_parts.KEPT[name](x, out, cu, group)

    return loop_ranks.over_source(program, (4, 8), (4, 8), fullgraph=False)


def pieces(cp: int, name: str) -> list[tuple[int, int, int]]:
    """A program of `p2p_pieces.PIECES`: graphs, exchanges per call, messages left, for 3, 1, 5 and 2 documents."""
    torch._dynamo.reset()
    group, program, recorder = group_of(cp), p2p_pieces.PIECES[name], Recorder()
    compiled = torch.compile(program, backend=recorder, fullgraph=True, options=OPTIONS)
    figures = []
    for seed, lengths in enumerate(([1, 3, 2], [4], [1, 1, 5, 1, 2], [2, 1])):
        cu = torch.tensor([0, *(cp * n for n in lengths)]).cumsum(0)
        whole = whole_row((int(cu[-1]),), torch.int64, seed)
        x = naive.shard(whole, cu.tolist(), cp, dist.get_rank(group), zigzag=False)
        want = program(x, cu, group)
        got, exchanges = executed(group, lambda: compiled(x, cu, group))  # noqa: B023
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            check(a.dtype == b.dtype and torch.equal(a, b), name, lengths, i)
        if name == "leftwards":
            rolled = naive.shard(
                reference.roll(whole, cu, -1, 0, -100), cu.tolist(), cp, dist.get_rank(group), 0, False
            )
            check(torch.equal(got[0], rolled), "by the definition", lengths)
        figures.append((len(recorder.graphs), exchanges, recorder.count("p2p_")))
    return figures


def pieces_left(cp: int, names: list[str]) -> None:
    """Programs of `p2p_pieces.LEFT` give what eager gives, and nothing is rewritten."""
    group = group_of(cp)
    for name in names:
        torch._dynamo.reset()
        program = p2p_pieces.LEFT[name]
        cu = torch.tensor([0, 2 * cp, 6 * cp, 9 * cp])
        x = naive.shard(whole_row((9 * cp,), torch.int64, 3), cu.tolist(), cp, dist.get_rank(group), zigzag=False)
        report = packpass.explain(program, options=OPTIONS)(x, cu, group)
        check(torch.equal(report.result[0], program(x, cu, group)[0]), name)
        check(not report.rewrites, name, report.rewrites)


def other_orders(cp: int, name: str) -> None:
    """A program of `p2p_pieces.ORDERS` gives what eager gives, rewritten or not."""
    torch._dynamo.reset()
    group, program = group_of(cp), p2p_pieces.ORDERS[name]
    compiled = torch.compile(program, backend=packpass.backend, options=OPTIONS)
    for seed, lengths in enumerate(([1, 3, 2], [4], [1, 1, 5, 1, 2])):
        cu = torch.tensor([0, *(cp * n for n in lengths)]).cumsum(0)
        whole = whole_row((int(cu[-1]),), torch.int64, seed)
        x = naive.shard(whole, cu.tolist(), cp, dist.get_rank(group), zigzag=False)
        for a, b in zip(compiled(x, cu, group), program(x, cu, group), strict=True):
            check(torch.equal(a, b), name, lengths)


def through_functions(cp: int, name: str, left: bool, inner: str) -> list[tuple[int, int]]:
    """A program of `p2p_functions`: exchanges forward and backward for 3, 1 and 4 documents, values and gradients as
    eager's."""
    torch._dynamo.reset()
    known = p2p_functions.FUNCTIONS | p2p_functions.AS_WRITTEN
    program, zigzag = (p2p_functions.LEFT[name], False) if left else known[name]
    group = group_of(cp)
    compiled = torch.compile(program, backend=Recorder(), options={"packpass.inner_backend": inner})
    figures = []
    for seed, lengths in enumerate(([2, 1, 3], [3], [1, 2, 2, 4])):
        cu = torch.tensor([0, *((1 + zigzag) * cp * n for n in lengths)]).cumsum(0)
        whole = whole_row((int(cu[-1]), 3), torch.float32, seed)
        x = naive.shard(whole, cu.tolist(), cp, dist.get_rank(group), zigzag=zigzag).requires_grad_()
        want = program(x, cu, group)
        weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(seed))
        (wanted,) = torch.autograd.grad((want * weights).sum(), x)
        got, forward = executed(group, lambda: compiled(x, cu, group))  # noqa: B023
        (grad,), backward = executed(group, lambda: torch.autograd.grad((got * weights).sum(), x))  # noqa: B023
        check(torch.equal(got, want) and torch.equal(grad, wanted), name, lengths)
        figures.append((forward, backward))
    return figures


def wide(cp: int, name: str, inner: str) -> list[tuple[int, int]]:
    """A program of `p2p_wide`: exchanges per call and messages left for 2, 1, 5 and 2 documents, or 4, of which none is
    shorter than what is sent of it, values and gradients as eager's; and an error for a shorter one."""
    torch._dynamo.reset()
    group, recorder = group_of(cp), Recorder()
    zigzag, grad = name in p2p_wide.ZIGZAGS, name in p2p_wide.GRADIENTS
    program = (p2p_wide.WIDE | p2p_wide.GRADIENTS | p2p_wide.ZIGZAGS)[name]
    compiled = torch.compile(program, backend=recorder, options={"packpass.inner_backend": inner})
    figures = []
    empty = [5, 0, 4, 0] if name in p2p_wide.WITH_EMPTY else [5, 4]
    for seed, lengths in enumerate(([3, 5], [4], [3, 6, 3, 4, 7], empty)):
        cu = torch.tensor([0, *((1 + zigzag) * cp * n for n in lengths)]).cumsum(0)
        whole = whole_row((int(cu[-1]), 3), torch.float64, seed)
        x = naive.shard(whole, cu.tolist(), cp, dist.get_rank(group), zigzag=zigzag).requires_grad_(grad)
        want = program(x, cu, group)
        got, exchanges = executed(group, lambda: compiled(x, cu, group))  # noqa: B023
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        if grad:
            weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(seed), dtype=want.dtype)
            grads = [torch.autograd.grad((out * weights).sum(), x) for out in (got, want)]
            torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
        figures.append((exchanges, recorder.count("p2p_")))
    if name != "one_slot":  # there is none without it
        cu = torch.tensor([0, 4, 5]) * (cp * (1 + zigzag))
        try:
            compiled(torch.ones(int(cu[-1]) // cp, 3, dtype=torch.float64), cu, group)
        except RuntimeError as error:
            check("go to a neighbouring rank" in str(error), name, error)
        else:
            raise AssertionError(f"{name}: no error for a document that is shorter than what is sent of it")
    return figures


def wide_left(cp: int, name: str) -> None:
    """A program of `p2p_wide.LEFT` gives what eager gives, and its messages stay on every rank."""
    stays(cp, (p2p_wide.LEFT | p2p_wide.DIFFER)[name])


def stays(cp: int, program: Callable[..., Tensor]) -> None:
    """A program of shards of one piece gives what eager gives, and its messages stay on every rank."""
    torch._dynamo.reset()
    group, name = group_of(cp), program.__name__
    for seed, lengths in enumerate(([3, 5], [4, 3, 6])):
        cu = torch.tensor([0, *(cp * n for n in lengths)]).cumsum(0)
        whole = whole_row((int(cu[-1]), 3), torch.float64, seed)
        x = naive.shard(whole, cu.tolist(), cp, dist.get_rank(group), zigzag=False)
        report = packpass.explain(program, options=OPTIONS)(x, cu, group)
        check(torch.equal(report.result, program(x, cu, group)), name)
        check(not any(r.rule == "fuse_boundary_exchange" for r in report.rewrites), name, report.rewrites)
