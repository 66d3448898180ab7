"""Code in which ranks do not all do the same, which looks like an exchange, or some to join, on some of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from tests.dist.a2a_gather_programs import own, shards, whole
from tests.dist.a2a_moves import gathered, size_of, unzigzag
from tests.dist.a2a_programs import in_place
from tests.dist.a2a_waited_programs import numbers_of_each_rank
from tests.dist.cp_programs import check, group_of
from tests.dist.p2p_halos import function_of
from tests.dist.p2p_parts import ends
from tests.dist.straight_programs import Exchange


def own_part_first(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Every rank takes what came beginning with its own part: the order of the ranks on the first of them only."""
    cp, rank, out = size_of(group), dist.get_rank(group), []
    for s, e in pairwise(cu.tolist()):
        received = in_place(torch.stack(x[s // cp : e // cp].chunk(cp, -1)), group)
        out.append(unzigzag(torch.cat([received[(rank + i) % cp] for i in range(cp)]), cp))
    return torch.cat(out)


def scaled_on_one(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """One rank computes on what it sends."""
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        send = torch.stack(x[s // cp : e // cp].chunk(cp, -1))
        if dist.get_rank(group) == 0:
            send = send * 2
        out.append(unzigzag(in_place(send, group).flatten(0, 1), cp))
    return torch.cat(out)


def printed_on_one(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """One rank says how far it is: torch runs the whole function eagerly there."""
    cp, out = size_of(group), []
    for i in range(len(cu) - 1):
        if dist.get_rank(group) == 0:
            print(i)
        send = torch.stack(x[cu[i] // cp : cu[i + 1] // cp].chunk(cp, -1))
        out.append(unzigzag(in_place(send, group).flatten(0, 1), cp))
    return torch.cat(out)


def rolled_on_the_second(mine: Tensor, group: Any) -> Tensor:
    """Of two ranks the second one gets the last slot of the first."""
    rank, halo = dist.get_rank(group), torch.zeros_like(mine[:1])
    other = dist.get_global_rank(group, 1 - rank)
    if rank == 1:
        dist.irecv(halo, other, group=group).wait()
    else:
        dist.isend(mine[-1:].contiguous(), other, group=group).wait()
    return torch.cat([halo, mine[:-1]])


def messages_printed_on_one(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The same of what looks like a roll on the other rank."""
    rank, out = dist.get_rank(group), []
    for i in range(len(cu) - 1):
        if rank == 0:
            print(i)
        mine = x[cu[i] // 2 : cu[i + 1] // 2]
        out.append(rolled_on_the_second(mine, group))
    return torch.cat(out)


def messages_carried_on_one(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """One rank computes with what the document before has left, so that no loop is found there."""
    rank, out, state = dist.get_rank(group), [], x.new_zeros(())
    for i in range(len(cu) - 1):
        mine = x[cu[i] // 2 : cu[i + 1] // 2]
        if rank == 1:
            mine = mine + state
            state = mine.mean()
        out.append(rolled_on_the_second(mine, group))
    return torch.cat(out)


def around_ranks(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Not a zigzag, but of two ranks the second one does just what a roll of zigzag shards needs."""
    cp, rank, out = size_of(group), dist.get_rank(group), []
    before, behind = (dist.get_global_rank(group, (rank + step) % cp) for step in (-1, 1))
    for s, e in pairwise(cu.tolist()):
        mine = x[s // cp : e // cp]
        first = mine[:1].contiguous()
        last = torch.empty_like(first)
        ops = [dist.P2POp(dist.isend, first, before, group), dist.P2POp(dist.irecv, last, behind, group)]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        out.append(torch.cat([mine[1:], last]))
    return torch.cat(out)


def received_beside(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What a roll receives is used beside it, by all ranks but the first: without that, a loop that rolls documents and
    one that computes with them."""
    out, sums, x = [], [], x.t()
    for i in range(len(cu) - 1):
        a, b = x[:, cu[i] // 2 : cu[i + 1] // 2].chunk(2, -1)
        end_a, end_b = ends(a[:, :1].contiguous(), b[:, :1].contiguous(), group)
        rolled = torch.cat([a[:, 1:], end_a, b[:, 1:], end_b], -1)
        out.append(rolled * 2)
        sums.append((rolled if dist.get_rank(group) == 0 else end_b).sum())
    return torch.cat(out, -1) + torch.stack(sums).sum()


def one_after_the_other(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Two exchanges in no loop, of which one rank needs the first for the second."""
    first, second = in_place(x, group), x * 2
    if dist.get_rank(group) == 0:
        second = second + first.mean()
    return torch.cat([first, in_place(second, group)])


def summed_on_one(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """One rank computes with what the document before has left, so that it sends one sum per document."""
    out, rank, state = [], dist.get_rank(group), x.new_zeros(())
    for i in range(len(cu) - 1):
        mine = x[cu[i] // 2 : cu[i + 1] // 2]
        if rank == 1:
            mine = mine + state
            state = mine.mean()
        total = mine.sum(0)
        dist.all_reduce(total, group=group)
        out.append(total)
    return torch.stack(out)


def summed_one_by_one_on_one(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """One rank takes its documents for slots, by numbers that are written down: there is no loop over documents."""
    out, rank = [], dist.get_rank(group)
    parts = [slice(i, i + 1) for i in range(len(cu) - 1)]
    if rank == 0:
        for i in range(len(cu) - 1):
            total = x[cu[i] // 2 : cu[i + 1] // 2].sum(0)
            dist.all_reduce(total, group=group)
            out.append(total)
        return torch.stack(out)
    for part in parts:
        total = x[part].sum(0)
        dist.all_reduce(total, group=group)
        out.append(total)
    return torch.stack(out)


def _cut_before(grad: Tensor, group: Any) -> Tensor:
    grad = own(grad, group).contiguous().clone()
    dist.all_reduce(grad, group=group)
    return grad


CutBefore = function_of(whole, _cut_before)


def gradient_cut_before_the_sum(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The parts that the ranks sum are not those of one part of the document."""
    return torch.cat([CutBefore(part, group) for part in shards(x, cu, group)])


PROGRAMS: dict[str, Callable[..., Tensor]] = {
    program.__name__: program
    for program in (
        own_part_first, scaled_on_one, printed_on_one, messages_printed_on_one, messages_carried_on_one, around_ranks,
        received_beside, one_after_the_other, numbers_of_each_rank, summed_on_one, summed_one_by_one_on_one,
        gradient_cut_before_the_sum,
    )
}
TRAINED = ("gradient_cut_before_the_sum",)
"""Those of which the gradients are what differs."""


# === One rank has gradients and the other has none ==============================================================


def of_documents(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Without gradients the function is not captured as one: its exchanges are no loop there."""
    return torch.cat([gathered(x[s // 2 : e // 2], group) for s, e in pairwise(cu.tolist())])


def counted(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """As it is written, every document is a graph of its own."""
    return torch.cat([gathered(x[cu[i] // 2 : cu[i + 1] // 2], group) for i in range(len(cu) - 1)])


def copied(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """On both ranks an exchange for the whole row, which would have a backward on one of them."""
    out = []
    for s, e in pairwise(cu.tolist()):
        received = in_place(torch.stack(x[s // 2 : e // 2].chunk(2, -1)), group)
        out.append(unzigzag(received.flatten(0, 1), 2))
    return torch.cat(out)


def behind_a_break(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The loop is in a piece of its frame from the beginning."""
    doubled = x * 2
    torch._dynamo.graph_break()
    documents = of_documents(x, cu, group)
    torch._dynamo.graph_break()
    return documents + doubled.sum()


def beside_others(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """In one graph with the loop others stand side by side, and are joined where the ranks do alike."""
    return torch.cat([of_documents(x, cu, group), gathered(x, group), gathered(x * 2, group)])


GRADIENTS: dict[str, Callable[..., Tensor]] = {
    program.__name__: program for program in (of_documents, counted, copied, beside_others, behind_a_break)
}


def gradients(name: str, inner: str, mode: bool) -> list[str]:
    """The first rank of the group has no gradients: by the grad mode, or because its input needs none. Eager's results
    for several batches, and the codes of the refusals of this rank."""
    group, program = group_of(2), GRADIENTS[name]
    torch._dynamo.reset()

    def on_ranks(x: Tensor, cu: Tensor) -> Tensor:
        return program(x, cu, group)

    options: Any = {"packpass.inner_backend": inner, "packpass.agreement_timeout": 20.0}
    compiled, report = torch.compile(on_ranks, backend=packpass.backend, options=options), Report()
    trains = dist.get_rank(group) == 1
    with collecting(report):
        for lengths in ([8, 4, 12], [4, 8]):
            cu = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            torch.manual_seed(dist.get_rank())
            x = torch.randn(int(cu[-1]) // 2, 24).requires_grad_(trains or mode)
            with torch.set_grad_enabled(trains or not mode):
                check(torch.equal(compiled(x, cu), on_ranks(x, cu)), name, lengths)
    check(not [r for r in report.rewrites if "all_to_all" in r.rule], name, "is rewritten")
    return [refusal.code for refusal in report.refusals]


# === The same of exchanges that are in no loop ==================================================================


def two_exchanges(x: Tensor, group: Any) -> Tensor:
    """Joined on each rank, with a backward on one of them."""
    return torch.cat([in_place(x, group), in_place(x * 2, group)])


def one_function(x: Tensor, group: Any) -> Tensor:
    """With gradients there are two exchanges in the graph, that of the backward among them."""
    return Exchange.apply(group, x * 2).sin()


def functions(x: Tensor, group: Any) -> Tensor:
    """Without gradients only what they do forward is in the graph."""
    return torch.cat([Exchange.apply(group, part.contiguous()) for part in x.chunk(3, 1)], 1)


def function_beside_exchange(x: Tensor, group: Any) -> Tensor:
    """Joined where there are no gradients only."""
    return Exchange.apply(group, x) + in_place(x.detach() * 2, group)


def in_pieces(x: Tensor, group: Any) -> Tensor:
    """Before and behind a break of the graph."""
    first = two_exchanges(x, group)
    torch._dynamo.graph_break()
    return functions(first * 2, group)


STRAIGHT: dict[str, Callable[..., Tensor]] = {
    program.__name__: program
    for program in (two_exchanges, one_function, functions, function_beside_exchange, in_pieces)
}


def straight(name: str, inner: str, how: str) -> list[str]:
    """Eager's results for four batches of which one rank of each group has no gradients: by the grad mode, because its
    input needs none, or another rank in each batch. The codes of the refusals of this rank."""
    group, program = group_of(2), STRAIGHT[name]
    torch._dynamo.reset()

    options: Any = {"packpass.inner_backend": inner, "packpass.agreement_timeout": 20.0}
    compiled, report = torch.compile(program, backend=packpass.backend, options=options), Report()
    with collecting(report):
        for batch, rows in enumerate((8, 4, 12, 8)):
            trains = dist.get_rank(group) == ((batch + 1) % 2 if how == "in turns" else 1)
            torch.manual_seed(dist.get_rank() + batch)
            x = torch.randn(rows, 24).requires_grad_(trains or how == "by mode")
            with torch.set_grad_enabled(trains or how != "by mode"):
                check(torch.equal(compiled(x, group), program(x, group)), name, batch)
    check(not [r for r in report.rewrites if "all_to_all" in r.rule], name, "is rewritten")
    return [refusal.code for refusal in report.refusals]


def on_a_mesh(trains: int) -> list[str]:
    """Four ranks in rows and columns, of which one has gradients: ranks that are in no group with it leave as well."""
    rank, pairs = dist.get_rank(), ([0, 1], [2, 3], [0, 2], [1, 3])
    row, column = (group for pair in pairs if (group := dist.new_group(pair)) and rank in pair)
    torch._dynamo.reset()

    def on_ranks(x: Tensor) -> Tensor:
        return torch.cat([in_place(x * i, group) for i in (1, 2) for group in (row, column)])

    options: Any = {"packpass.inner_backend": "eager", "packpass.agreement_timeout": 20.0}
    compiled, report = torch.compile(on_ranks, backend=packpass.backend, options=options), Report()
    with collecting(report):
        for rows in (8, 4, 12, 8):
            torch.manual_seed(rank + rows)
            x = torch.randn(rows, 24).requires_grad_(rank == trains)
            check(torch.equal(compiled(x), on_ranks(x)), rows)
    check(not report.rewrites, "is rewritten")
    return [refusal.code for refusal in report.refusals]


def run(name: str) -> list[str]:
    """Same results as eager for several batches; the codes of the refusals of this rank."""
    group, program = group_of(2), PROGRAMS[name]
    torch._dynamo.reset()

    def on_ranks(x: Tensor, cu: Tensor) -> Tensor:
        return program(x, cu, group)

    options: Any = {"packpass.inner_backend": "eager", "packpass.agreement_timeout": 20.0}
    compiled = torch.compile(on_ranks, backend=packpass.backend, options=options)
    for lengths in ([8, 4, 12], [4], [4, 8]):
        cu = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        torch.manual_seed(dist.get_rank())
        x = torch.randn(int(cu[-1]) // 2, 24).requires_grad_(name in TRAINED)
        got, wanted = compiled(x, cu), on_ranks(x, cu)
        check(torch.equal(got, wanted), name, lengths)
        if name in TRAINED:
            weights = torch.randn(got.shape)
            grads = [torch.autograd.grad(y, x, weights)[0] for y in (got, wanted)]
            check(torch.equal(*grads), name, lengths, "gradients")
    return [refusal.code for refusal in packpass.explain(on_ranks, options=options)(x, cu).refusals]
