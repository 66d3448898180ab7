"""What the ranks run for test_fuse_loops.py: a program of `a2a_programs` by hand and compiled, on real groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import packpass
from tests.dist import a2a_fuzz, a2a_programs
from tests.dist.cp_programs import check, executed, group_of


def boundaries(cp: int, count: int, seed: int, empty: bool = False) -> Tensor:
    """Documents of 1 to 4 slots per chunk, one of them empty if asked for."""
    lengths = [2 * cp * ((seed + i * i) % 4 + 1) for i in range(count)]
    if count > 2 and empty:
        lengths[1] = 0
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def compare(cp: int, name: str, dtype: torch.dtype, inner: str, counts: list[int]) -> None:
    """Same bits, forward and backward, and as many collectives as the program has directions."""
    case = a2a_programs.REWRITTEN[name]
    group = group_of(cp)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def program(x: Tensor, cu: Tensor) -> Tensor:
        return case.program(x, cu, group)

    compiled = torch.compile(
        program, backend=packpass.backend, fullgraph=True, options={"packpass.inner_backend": inner}
    )
    for count in counts:
        cu = boundaries(cp, count, seed=count, empty=case.empty)
        torch.manual_seed(dist.get_rank() + count)
        total = int(cu[-1])
        shape = (total // cp, a2a_programs.WIDTH * cp) if case.sharded else (total, a2a_programs.WIDTH)
        x = torch.randn(shape).to(dtype).requires_grad_()
        y, forward = executed(group, lambda: compiled(x, cu))  # noqa: B023
        wanted = case.program(x, cu.tolist() if name not in ("to_heads_zip", "to_heads_listed") else cu, group)
        check(torch.equal(y, wanted), name, cp, count, "values")
        check(forward == case.exchanges, name, cp, count, "collectives forward", forward)
        weights = torch.randn(y.shape).to(dtype)
        grad, backward = executed(group, lambda: torch.autograd.grad(y, x, weights))  # noqa: B023
        check(backward == case.exchanges, name, cp, count, "collectives backward", backward)
        if case.differentiable:
            (by_hand,) = torch.autograd.grad(wanted, x, weights)
            check(torch.equal(grad[0], by_hand), name, cp, count, "gradient")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    check(graphs <= 2, name, "graphs", graphs)


def indivisible(cp: int, name: str, inner: str) -> list[str]:
    """What this rank raises for documents that do not divide, in a call after a good one."""
    group = group_of(cp)
    case = a2a_programs.REWRITTEN[name]
    torch._dynamo.reset()

    def program(x: Tensor, cu: Tensor) -> Tensor:
        return case.program(x, cu, group)

    compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": inner})
    messages = []
    for lengths in ([2 * cp, 4 * cp], [2 * cp, cp, 3 * cp], [2 * cp, 2 * cp + 1, 2 * cp - 1]):
        cu = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        x = torch.randn(6, a2a_programs.WIDTH * cp)
        try:
            compiled(x, cu)
            messages.append("")
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def left_alone(cp: int, name: str) -> None:
    """A program that is not rewritten gives what it gives by hand."""
    case = a2a_programs.LEFT[name]
    group = group_of(cp)
    torch._dynamo.reset()
    cu = boundaries(cp, 4, seed=1)
    torch.manual_seed(dist.get_rank())
    x = torch.randn(int(cu[-1]) // cp, a2a_programs.WIDTH * cp)

    def program(x: Tensor, cu: Tensor) -> Tensor:
        return case.program(x, cu, group)

    options: Any = {"packpass.inner_backend": "eager"}
    compiled = torch.compile(program, backend=packpass.backend, options=options)
    wanted = case.program(x, cu.tolist(), group)
    check(torch.equal(compiled(x, cu), wanted), name, "values")


def fuzz(cp: int, seeds: list[int], broken: bool, inner: str) -> int:
    """Random programs give the bits of eager, forward and backward, for 3 documents and for 1; how many were
    rewritten."""
    group, rewritten = group_of(cp), 0
    for seed in seeds:
        case = a2a_fuzz.fuzzed(seed, broken)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

        def program(x: Tensor, cu: Tensor) -> Tensor:
            return case.program(x, cu, group)  # noqa: B023

        compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": inner})
        for count in (3, 1):
            cu, total = case.batch(cp, count)
            torch.manual_seed(dist.get_rank() + seed)
            x = case.values(total, cp).requires_grad_(case.differentiable)
            y, exchanges = executed(group, lambda: compiled(x, cu.clone()))  # noqa: B023
            wanted = case.program(x, cu, group)
            check(torch.equal(y, wanted), case, count, "values")
            if count == 3:
                rewritten += exchanges == 1
            check(broken or exchanges == 1, case, count, "collectives forward", exchanges)
            if case.differentiable:
                weights = torch.randn(y.shape).to(y.dtype)
                (grad,) = torch.autograd.grad(y, x, weights)
                (by_hand,) = torch.autograd.grad(wanted, x, weights)
                check(torch.equal(grad, by_hand), case, count, "gradient")
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        check(broken or graphs <= 2, case, "graphs", graphs)
    return rewritten
