"""What the ranks run for test_fuse_loops.py: a program of `a2a_programs` by hand and compiled, on real groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from tests.dist import a2a_fuzz, a2a_hard_programs, a2a_programs
from tests.dist.a2a_moves import gathered
from tests.dist.a2a_twice_programs import scattered
from tests.dist.cp_programs import check, executed, group_of


def boundaries(cp: int, count: int, seed: int, empty: bool = False, parts: int = 2) -> Tensor:
    """Documents of 1 to 4 slots per chunk, one of them empty if asked for. ``parts``: chunks on one rank."""
    lengths = [parts * cp * ((seed + i * i) % 4 + 1) for i in range(count)]
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
    """Random programs give the bits of eager, forward and backward; how many have one exchange. Broken ones are mostly
    left as they are, which takes long to compile: 2 documents instead of 3 and 1."""
    group, rewritten = group_of(cp), 0
    for seed in seeds:
        case = a2a_fuzz.fuzzed(seed, broken)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

        def program(x: Tensor, cu: Tensor) -> Tensor:
            return case.program(x, cu, group)  # noqa: B023

        compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": inner})
        for count in (2,) if broken else (3, 1):
            cu, total = case.batch(cp, count)
            torch.manual_seed(dist.get_rank() + seed)
            x = case.values(total, cp).requires_grad_(case.differentiable)
            y, exchanges = executed(group, lambda: compiled(x, cu.clone()))  # noqa: B023
            wanted = case.program(x, cu, group)
            check(torch.equal(y, wanted), case, count, "values")
            rewritten += exchanges == 1 and count > 1
            check(broken or exchanges == 1, case, count, "collectives forward", exchanges)
            if case.differentiable:
                weights = torch.randn(y.shape).to(y.dtype)
                (grad,) = torch.autograd.grad(y, x, weights)
                (by_hand,) = torch.autograd.grad(wanted, x, weights)
                check(torch.equal(grad, by_hand), case, count, "gradient")
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        check(broken or graphs <= 2, case, "graphs", graphs)
    return rewritten


def hard(cp: int, name: str, inner: str) -> None:
    """A program of `a2a_hard_programs`: same bits, and the boundaries left as eager leaves them; 3, 1, 2 documents."""
    case = a2a_hard_programs.REWRITTEN[name]
    group = group_of(cp)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def program(x: Tensor, cu: Tensor) -> Tensor:
        return case.program(x, cu, group)

    compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": inner})
    for count in (3, 1, 2):
        cu = boundaries(cp, count, seed=count, parts=case.parts) + (3 * cp if case.tails else 0)
        if name == "boundaries_written_before":
            cu[0] = 0
        total = int(cu[-1]) + (2 * cp if case.tails else 0)
        torch.manual_seed(dist.get_rank() + count)
        width = a2a_hard_programs.WIDTH
        x = torch.randn((total // cp, width * cp) if case.sharded else (total, width), requires_grad=True)
        ours, eager = cu.clone(), cu.clone()
        y, forward = executed(group, lambda: compiled(x, ours))  # noqa: B023
        wanted = case.program(x, eager, group)
        check(torch.equal(y, wanted), name, count, "values")
        check(torch.equal(ours, eager), name, count, "boundaries")
        check(forward == case.exchanges, name, count, "collectives forward", forward)
        if case.differentiable:
            weights = torch.randn(y.shape)
            ours.zero_()  # the next batch's may be written to the same memory
            grad, backward = executed(group, lambda: torch.autograd.grad(y, x, weights))  # noqa: B023
            expected = case.exchanges if case.backwards is None else case.backwards
            check(backward == expected, name, count, "collectives backward", backward)
            (by_hand,) = torch.autograd.grad(wanted, x, weights)
            check(torch.equal(grad[0], by_hand), name, count, "gradient")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    check(graphs <= case.graphs, name, "graphs", graphs)


def as_many_tokens_as_boundaries(cp: int, name: str) -> None:
    """A document of two tokens for each rank, in the first call or a later one: two boundaries, and a shard of two
    slots, that is no batch."""
    group, case = group_of(cp), a2a_hard_programs.REWRITTEN[name]
    for order in ([[1], [3, 1, 2], [2]], [[3, 1, 2], [1], [2, 3]]):
        torch._dynamo.reset()

        def program(x: Tensor, cu: Tensor) -> Tensor:
            return case.program(x, cu, group)

        compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
        for lengths in order:
            cu = torch.tensor([0, *(2 * cp * n for n in lengths)]).cumsum(0)
            x = torch.randn(int(cu[-1]) // cp, a2a_hard_programs.WIDTH * cp)
            y, exchanges = executed(group, lambda: compiled(x, cu.clone()))  # noqa: B023
            check(torch.equal(y, case.program(x, cu, group)), name, lengths, "values")
            check(exchanges == case.exchanges, name, lengths, "collectives", exchanges)


def over_source(program: Any, source: tuple[int, ...], result: tuple[int, ...], fullgraph: bool = True) -> list[str]:
    """``program(x, out, cu)`` with a buffer for the result, then one that overlaps the source, then one in the very
    memory of the source: eager's results and memory. The codes of the refusals.

    Args:
        source: shape of ``x``, 32 values of a shard of 16 slots.
        result: shape of ``out``, as many.
    """
    torch._dynamo.reset()
    options: Any = {"packpass.inner_backend": "eager"}
    compiled = torch.compile(program, backend=packpass.backend, fullgraph=fullgraph, options=options)
    cu, report = torch.tensor([0, 4, 16], dtype=torch.int32), Report()
    for shift in (None, 4, 0):
        ours, eager = (torch.arange(36.0) + 100 * dist.get_rank() for _ in range(2))
        targets = [torch.zeros(32) if shift is None else memory[shift : shift + 32] for memory in (ours, eager)]
        inputs = [(m[:32].view(source), t.view(result), cu) for m, t in zip((ours, eager), targets, strict=True)]
        with collecting(report):
            got = compiled(*inputs[0])
        check(torch.equal(got, program(*inputs[1])), shift, "values")
        check(torch.equal(targets[0], targets[1]) and torch.equal(ours, eager), shift, "memory")
    return [refusal.code for refusal in report.refusals]


def result_over_source() -> None:
    group = group_of(2)

    def program(x: Tensor, out: Tensor, cu: Tensor) -> Tensor:
        for i in range(len(cu) - 1):
            part = x[cu[i] // 2 : cu[i + 1] // 2]
            send = part.unflatten(1, (2, -1)).transpose(0, 1).contiguous()
            received = a2a_programs.functional(send, group)
            out[cu[i] : cu[i + 1]] = a2a_programs.undo_by_chunks(received.flatten(0, 1), 2)
        return out * 2

    over_source(program, (8, 4), (16, 2))


def split_over_source(back: bool) -> None:
    """The same for loops that become several: what is sent is computed, or has come back."""
    group = group_of(2)

    def program(x: Tensor, out: Tensor, cu: Tensor) -> Tensor:
        for i in range(len(cu) - 1):
            document = x[cu[i] // 2 : cu[i + 1] // 2]
            if back:
                out[cu[i] // 2 : cu[i + 1] // 2] = scattered(torch.relu(gathered(document, group)), group)
            else:
                out[cu[i] : cu[i + 1]] = gathered(torch.relu(document), group)
        return out * 2

    over_source(program, (8, 4), (8, 4) if back else (16, 2))


def verified(name: str) -> list[str]:
    """With ``packpass.verify``: what is raised for good documents, and for some that do not divide."""
    group, case = group_of(2), a2a_programs.REWRITTEN[name]
    torch._dynamo.reset()

    def program(x: Tensor, cu: Tensor) -> Tensor:
        return case.program(x, cu, group)

    options: Any = {"packpass.inner_backend": "eager", "packpass.verify": True}
    compiled = torch.compile(program, backend=packpass.backend, options=options)
    messages = []
    for lengths in ([4, 8], [4, 2, 6]):
        cu = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        x = torch.randn(6, a2a_programs.WIDTH * 2)
        try:
            check(torch.equal(compiled(x, cu), case.program(x, cu.tolist(), group)), name)
            messages.append("")
        except Exception as error:
            messages.append(str(error))
    return messages
