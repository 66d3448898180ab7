"""What the ranks run for test_bucketing.py: programs with several all-to-all, and how they are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import packpass
from packpass._links import TYPICAL, Link, link_of
from packpass._options import Options
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from tests.dist.cp_programs import check, executed, group_of
from tests.dist.naive import AllToAll
from tests.ops import reference

Program = Callable[..., Any]

ALONE: dict[str, Any] = {"packpass.disable": ["fuse_all_to_all"]}


class HeadsToRows(torch.autograd.Function):
    """Ulysses-like, ``[T, heads, width] -> [T * cp, heads / cp, width]`` and back, with the permutes inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.cp = group, dist.get_world_size(group)
        tokens, heads, width = x.shape
        send = x.reshape(tokens, ctx.cp, heads // ctx.cp, width).transpose(0, 1).contiguous()
        out = torch.empty_like(send)
        dist.all_to_all_single(out, send, group=group)
        return out.reshape(tokens * ctx.cp, heads // ctx.cp, width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows, heads, width = grad.shape
        out = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, grad.contiguous(), group=ctx.group)
        out = out.reshape(ctx.cp, rows // ctx.cp, heads, width).transpose(0, 1)
        return out.reshape(rows // ctx.cp, ctx.cp * heads, width), None


def heads(x: Tensor, group: Any) -> Tensor:
    """q, k and v of one tensor ``[T, 7 * cp, 4]``."""
    cp = dist.get_world_size(group)
    q, k, v = (HeadsToRows.apply(part, group) for part in x.split([4 * cp, cp, 2 * cp], 1))
    return torch.cat([q * 2, k + 1, v], 1)


def projected(x: Tensor, group: Any) -> Tensor:
    """Six tensors made, exchanged and used one after the other."""
    cp = dist.get_world_size(group)
    rows = x.flatten(1)
    outs = []
    for i in range(6):
        send = (rows * (i + 1)).reshape(rows.shape[0], cp, -1).transpose(0, 1).contiguous()
        outs.append(AllToAll.apply(send, group).flatten(0, 1) + i)
    return torch.cat(outs, -1)


def many_dtypes(x: Tensor, group: Any) -> Tensor:
    """Interleaved: one collective per dtype is left. The gradients of two are f32 and bf16."""
    parts = [x, x.bfloat16(), x.sign().long(), x * 3, x.bfloat16() * 2, x > 0, x < 0.5, (x * 4).long()]
    got = [AllToAll.apply(part.repeat(dist.get_world_size(group), 1, 1), group) for part in parts]
    return torch.cat([part.float() for part in got], -1)


def nothing(x: Tensor, group: Any) -> Tensor:
    """Some tensors are empty."""
    parts = [x[:, :0], x[:, :, :0], x[:0], x]
    got = [AllToAll.apply(part.repeat(dist.get_world_size(group), 1, 1), group) for part in parts]
    return torch.cat([part.flatten() for part in got])


def not_contiguous(x: Tensor, group: Any) -> Tensor:
    wide = x.repeat(dist.get_world_size(group), 1, 1)
    parts = [wide, wide[:, ::2], wide.transpose(1, 2), wide[:, 1:, :1]]
    return torch.cat([funcol.all_to_all_single(part, None, None, group).flatten() * 2 for part in parts])


def results_that_live_on(x: Tensor, group: Any) -> tuple[Tensor, ...]:
    """Handed out and written by the caller (see `compare`): each must have memory of its own."""
    wide = x.repeat(dist.get_world_size(group), 1, 1)
    return tuple(AllToAll.apply(wide * i, group) for i in (1, 2, 3))


def written_between(x: Tensor, group: Any) -> Tensor:
    """The second all-to-all reads what was written after the first one."""
    buffer = x.detach().repeat(dist.get_world_size(group), 1, 1)
    out = torch.empty_like(buffer)
    dist.all_to_all_single(out, buffer, group=group)
    first = out + x.repeat(dist.get_world_size(group), 1, 1)
    buffer.add_(1)
    dist.all_to_all_single(out, buffer, group=group)
    buffer.mul_(0)
    return first + out + buffer


def chain(x: Tensor, group: Any) -> Tensor:
    """Each needs the one before it."""
    for _ in range(3):
        x = AllToAll.apply((x * 2).repeat(dist.get_world_size(group), 1, 1), group)[: x.shape[0]] + 1
    return x


def chains(x: Tensor, group: Any) -> Tensor:
    """Two chains whose steps are independent of each other, crosswise in order: a1 b1 b2 a2."""
    cp = dist.get_world_size(group)
    a, b = (x * 2).repeat(cp, 1, 1), (x + 1).repeat(cp, 1, 1).double()
    a1 = AllToAll.apply(a, group)
    b1 = AllToAll.apply(b, group)
    b2 = AllToAll.apply((a1 * 2).double(), group)
    a2 = AllToAll.apply(b1.float() * 3, group)
    return a1 + b1 + a2 + b2


def uneven(x: Tensor, group: Any) -> Tensor:
    """Rank r gets r + 1 rows of each."""
    cp, rank = dist.get_world_size(group), dist.get_rank(group)
    send = list(range(1, cp + 1))
    rows = x.flatten()[: sum(send)]
    return torch.cat([funcol.all_to_all_single(rows * i, [rank + 1] * cp, send, group) for i in (1, 2)])


def overlapped(x: Tensor, group: Any) -> Tensor:
    """Work goes on while a collective is on its way."""
    ops, cp = torch.ops._c10d_functional, dist.get_world_size(group)
    out = x.flatten(1)
    for i in (1, 2, 3):
        send = (x * i).repeat(cp, 1, 1)
        pending = ops.all_to_all_single.default(send, [x.shape[0]] * cp, [x.shape[0]] * cp, group.group_name)
        out = out @ out.T @ out
        out = out + ops.wait_tensor.default(pending)[: x.shape[0]].flatten(1)
    return out


PAIR: list[Any] = []


def two_groups(x: Tensor, group: Any) -> Tensor:
    """Groups take turns: their order must stay."""
    outs, pair = [], PAIR[0]
    for i in (1, 2):
        for one in (group, pair):
            outs.append(AllToAll.apply((x * i).repeat(dist.get_world_size(one), 1, 1), one))
    return torch.cat(outs)


PROGRAMS: dict[str, Program] = {
    f.__name__: f
    for f in (
        *(heads, projected, many_dtypes, nothing, not_contiguous, results_that_live_on, written_between),
        *(chain, chains, uneven, overlapped, two_groups),
    )
}


def step(call: Program, x: Tensor, group: Any) -> tuple[list[Tensor], list[int]]:
    """Outputs and the gradient for x; collectives that ran forward and backward."""
    leaf = x.clone().requires_grad_()
    out, forward = executed(group, lambda: call(leaf, group))
    outs = list(out) if isinstance(out, tuple) else [out]
    values = [o.detach().clone() for o in outs]
    if not any(o.requires_grad for o in outs):
        return values, [forward, 0]
    weights = [torch.linspace(-1, 1, o.numel()).view(o.shape) for o in outs]
    grads, backward = executed(
        group, lambda: torch.autograd.grad([(o * w).sum() for o, w in zip(outs, weights, strict=True)], leaf)
    )
    if len(outs) > 1:
        before = outs[1].detach().clone()
        outs[0].detach().fill_(-1)
        check(torch.equal(outs[1].detach(), before), "results share memory")
    return [*values, *grads], [forward, backward]


def compare(name: str, cp: int) -> dict[str, Any]:
    """A program as it is and compiled: bit-equal, forward and backward. What ran, and the report's figures."""
    torch._dynamo.reset()
    group, program = group_of(cp), PROGRAMS[name]
    PAIR[:] = [group_of(2)]
    x = torch.randn(4, 7 * cp, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
    report = Report()
    call = torch.compile(program, backend=packpass.backend, fullgraph=True, options=dict(ALONE))
    with collecting(report):
        got, ran = step(call, x, group)
    expected, plain = step(program, x, group)
    check(len(got) == len(expected), "results", len(got))
    for a, b in zip(got, expected, strict=True):
        check(reference.same(a, b) and a.stride() == b.stride(), name)
    return {
        "ran": ran,
        "plain": plain,
        "before": report.collectives_before,
        "after": report.collectives_after,
        "refusals": sorted({r.code for r in report.refusals}),
        "details": [r.details for r in report.rewrites],
    }


def lengths(cp: int) -> tuple[int, list[list[int]]]:
    """Rows of changing lengths: graphs, and collectives of each step."""
    torch._dynamo.reset()
    group = group_of(cp)
    counter = CompileCounterWithBackend("inductor")

    class Counting(type(packpass.backend)):  # type: ignore[misc]
        def __call__(self, gm: Any, *args: Any, **kwargs: Any) -> Any:
            counter.frame_count += 1
            return super().__call__(gm, *args, **kwargs)

    call = torch.compile(heads, backend=Counting(), fullgraph=True, options=dict(ALONE))
    counts = []
    for tokens in (6, 4, 10, 2, 30):
        x = torch.randn(tokens, 7 * cp, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
        got, ran = step(call, x, group)
        expected, _ = step(heads, x, group)
        for a, b in zip(got, expected, strict=True):
            check(reference.same(a, b), "lengths", tokens)
        counts.append(ran)
    return counter.frame_count, counts


def measure(cp: int) -> tuple[Link, list[int]]:
    """Figures are agreed, and large all-to-all of tensors that are in memory already are left alone by them."""
    torch._dynamo.reset()
    group = group_of(cp)
    link = packpass.measure_group(group)
    check(link_of(group, "cpu", Options()) == link != TYPICAL["cpu"], "measured figures are used")
    cheap: dict[str, Any] = {**ALONE, "packpass.collective_latency_us": 0.001}
    call = torch.compile(large, backend=packpass.backend, fullgraph=True, options=cheap)
    _, ran = step(call, torch.ones(cp * 256, 64), group)
    return link, ran


def large(x: Tensor, group: Any) -> tuple[Tensor, ...]:
    return tuple(AllToAll.apply(x @ (x * i).T, group) for i in (1, 2, 3))
