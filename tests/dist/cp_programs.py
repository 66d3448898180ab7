"""What the ranks run for test_cp_ops.py: each function returns, or raises, on every rank alike."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from packpass.ops import cp_packed_roll, cp_to_hp, hp_to_cp
from tests.dist import naive
from tests.ops import reference


@cache
def group_of(size: int) -> Any:
    """This rank's group of ``size``: the default one, or one of several side by side. All ranks ask in one order."""
    world = dist.get_world_size()
    if size == world:
        return dist.group.WORLD
    first = dist.get_rank() - dist.get_rank() % size
    groups = {start: dist.new_group(list(range(start, start + size))) for start in range(0, world, size)}
    return groups[first]


def executed(group: Any, call: Callable[[], Any]) -> tuple[Any, int]:
    """The result, and how many collectives the group's backend ran for it."""
    before = group._get_sequence_number_for_group()
    result = call()
    return result, group._get_sequence_number_for_group() - before


def documents(
    cp: int, count: int, seed: int, *, head: int = 0, tail: int = 0, zigzag: bool = True
) -> tuple[Tensor, int]:
    """Boundaries of documents of 0 to 5 slots per chunk between tails of ``head`` and ``tail`` slots per rank."""
    numbers = random.Random(seed)
    lengths = [(1 + zigzag) * cp * numbers.randint(0, 5) for _ in range(count)]
    cu = torch.tensor([head * cp, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return cu, int(cu[-1]) + tail * cp


def whole_row(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.randn(shape, generator=generator).to(dtype)
    return reference.sample(dtype, *shape)


def check(condition: bool, *what: object) -> None:
    if not condition:
        raise AssertionError(f"rank {dist.get_rank()}: differs: {what}")


def heads_of(whole: Tensor, sections: list[int], dim: int, cp: int, rank: int) -> Tensor:
    return torch.cat([section.chunk(cp, dim)[rank] for section in whole.split(sections, dim)], dim)


# === cp_to_hp, hp_to_cp =========================================================================================

# Shapes behind the tokens, the heads' dimension and its sections in multiples of the group's size.
LAYOUTS: dict[str, tuple[tuple[int, ...], int, list[int] | None]] = {
    "features": ((), -1, [3, 1, 4, 2]),
    "one section": ((), -1, None),
    "batch of one": ((1,), -1, [2, 2, 1]),
    "batch": ((3,), -1, [2, 5]),
    "heads times width": ((), -2, [2, 1, 1]),
    "batch, heads, width": ((2,), -2, None),
    "empty section": ((), -1, [2, 0, 1]),
}


def case(layout: str, cp: int, total: int) -> tuple[tuple[int, ...], int, list[int] | None, list[int]]:
    """Shape of the whole row, dim, sections as passed, sections as meant."""
    batch, dim, parts = LAYOUTS[layout]
    sections = None if parts is None else [cp * part for part in parts]
    meant = [cp * 3] if sections is None else sections
    inner = (4,) if dim == -2 else ()
    return (total, *batch, sum(meant), *inner), dim, sections, meant


def round_trip(cp: int, layouts: list[str], dtypes: list[torch.dtype], zigzag: bool = True) -> None:
    """Both ops against the definition, forward and backward, and one collective for each."""
    group = group_of(cp)
    rank = dist.get_rank(group)
    for (i, layout), dtype in itertools.product(enumerate(layouts), dtypes):
        cu, total = documents(cp, 1 + 2 * i, seed=i, head=i % 3, tail=(i + 1) % 3, zigzag=zigzag)
        shape, dim, sections, meant = case(layout, cp, total)
        whole = whole_row(shape, dtype, seed=i)
        real = dtype.is_floating_point and dtype.itemsize > 1
        x = naive.shard(whole, cu.tolist(), cp, rank, zigzag=zigzag).requires_grad_(real)
        spaced = torch.stack([x, x], -1).select(-1, 0)  # not contiguous
        y, count = executed(group, lambda: cp_to_hp(spaced, cu, group, sections, dim, zigzag=zigzag))  # noqa: B023
        expected = heads_of(whole, meant, dim, cp, rank)
        check(reference.same(y.detach(), expected), "cp_to_hp", layout, dtype)
        check(count == 1, "collectives", count)
        arguments: Any = (cu.long(), group.group_name, sections, dim)
        back, count = executed(group, lambda: hp_to_cp(y, *arguments, zigzag=zigzag))  # noqa: B023
        check(reference.same(back.detach(), x.detach()), "hp_to_cp", layout, dtype)
        check(count == 1, "collectives", count)
        if real:
            weights = whole_row(shape, dtype, seed=i + 100)
            mine = heads_of(weights, meant, dim, cp, rank)
            grads, count = executed(group, lambda: torch.autograd.grad(y, x, mine, retain_graph=True))  # noqa: B023
            shard = naive.shard(weights, cu.tolist(), cp, rank, zigzag=zigzag)
            check(reference.same(grads[0], shard), "grad of cp_to_hp", layout)
            check(count == 1, "collectives", count)
            grads, count = executed(group, lambda: torch.autograd.grad(back, y, shard))  # noqa: B023
            check(reference.same(grads[0], mine), "grad of hp_to_cp", layout)
            check(count == 1, "collectives", count)


def without_tails(cp: int, zigzag: bool) -> None:
    """The documents' parts alone, given and made: what cutting them out of everything, or putting them back, gives."""
    group = group_of(cp)
    rank, ops = dist.get_rank(group), torch.ops.packpass
    for i, (head, tail) in enumerate(itertools.product((0, 1, 3), (0, 2))):
        cu, total = documents(cp, 2 * i, seed=i, head=head, tail=tail, zigzag=zigzag)
        (first, stop), shard = (int(cu[0]), int(cu[-1])), (int(cu[0]) // cp, int(cu[-1]) // cp)
        shape, dim, _, meant = case("batch", cp, total)
        whole, weights = (whole_row(shape, torch.float32, seed) for seed in (i, i + 100))
        x, dx = (naive.shard(w, cu.tolist(), cp, rank, zigzag=zigzag) for w in (whole, weights))
        y, dy = (heads_of(w, meant, dim, cp, rank) for w in (whole, weights))
        rest = (meant, dim % whole.dim(), group.group_name, cp, zigzag)
        for op, given, made, inside, outside, put in (
            (ops.cp_to_hp, x, y, slice(*shard), slice(first, stop), (dx, dy)),
            (ops.hp_to_cp, y, x, slice(first, stop), slice(*shard), (dy, dx)),
        ):
            leaf = given.clone().requires_grad_()
            out, count = executed(group, lambda: op(leaf, cu, *rest, True))  # noqa: B023
            check(reference.same(out.detach(), made[outside]), "documents", op, head, tail)
            (grad,) = torch.autograd.grad(out, leaf, put[1][outside])
            expected = torch.zeros_like(given)
            expected[inside] = put[0][inside]
            check(reference.same(grad, expected), "gradient of documents", op, head, tail)
            back = op(given[inside], cu, *rest, False, given.shape[0])
            expected = torch.zeros_like(made)
            expected[outside] = made[outside]
            check(reference.same(back, expected), "put back", op, head, tail)
            both = op(given[inside], cu, *rest, True, given.shape[0])
            check(reference.same(both, made[outside]), "both", op, head, tail)
            check(count == 1, "collectives", count)


def nothing(cp: int) -> None:
    """No slots, or no features, or no documents between tails."""
    group = group_of(cp)
    for local, width, cu in ((0, 2, [0]), (0, 2, [0, 0, 0]), (2, 0, [0, 2 * cp]), (3, 2, [cp, cp]), (3, 1, [3 * cp])):
        x = torch.arange(local * width * cp).view(local, width * cp)
        boundaries = torch.tensor(cu)
        y = cp_to_hp(x, boundaries, group)
        check(y.shape == (cp * local, width), "shape", y.shape)
        check(torch.equal(hp_to_cp(y, boundaries, group), x), "nothing", local, width, cu)
        if cu[0] == cu[-1]:  # no documents: the tail stays as it is
            check(torch.equal(cp_packed_roll(x, boundaries, group, -2, 0, 7), x), "roll of nothing", local, width, cu)


def against_naive(cp: int, count: int, dtype: torch.dtype) -> tuple[int, int]:
    """Bit for bit what one all-to-all per document and section gives; collectives of both."""
    group = group_of(cp)
    rank = dist.get_rank(group)
    lengths = [2 * cp * (1 + i % 3) for i in range(count)]
    cu = torch.tensor([0, *lengths]).cumsum(0)
    sections = [2 * cp, cp, 4 * cp]
    x = naive.shard(whole_row((int(cu[-1]), 7 * cp), dtype, 1), cu.tolist(), cp, rank).requires_grad_()
    weights = whole_row((int(cu[-1]), 7), dtype, 2 + rank)

    def run(forth: Callable[..., Tensor], back: Callable[..., Tensor], boundaries: Any) -> list[Tensor]:
        y = forth(x, boundaries, group, sections)
        z = back(y * weights, boundaries, group, sections)
        return [y.detach(), z.detach(), *torch.autograd.grad((z * z).sum(), x)]

    ours, few = executed(group, lambda: run(cp_to_hp, hp_to_cp, cu))
    theirs, many = executed(group, lambda: run(naive.cp_to_hp, naive.hp_to_cp, cu.tolist()))
    for a, b in zip(ours, theirs, strict=True):
        check(reference.same(a, b), "naive", cp, count, dtype)
    return few, many


# === cp_packed_roll =============================================================================================


def rolls(cp: int, shifts: list[int]) -> None:
    """One field and one shift: the definition through the whole row, forward and backward."""
    group = group_of(cp)
    rank = dist.get_rank(group)
    for i, (shift, fill) in enumerate(itertools.product(shifts, (0, -100, None))):
        cu, total = documents(cp, i % 7, seed=i, head=i % 2, tail=i % 3)
        whole = whole_row((2, total, 3), torch.float32, i).requires_grad_()
        weights = whole_row((2, total, 3), torch.float32, i + 50)
        expected = reference.roll(whole, cu, shift, 1, fill)
        (expected_grad,) = torch.autograd.grad(expected, whole, weights)
        x, y, g, gx = (
            naive.shard(t.detach(), cu.tolist(), cp, rank, 1) for t in (whole, expected, weights, expected_grad)
        )
        x.requires_grad_()
        got, count = executed(group, lambda: cp_packed_roll(x, cu, group, shift, 1, fill))  # noqa: B023
        check(reference.same(got.detach(), y.contiguous()), "roll", shift, fill, cu)
        check(count <= 1, "collectives", count)
        grad, count = executed(group, lambda: torch.autograd.grad(got, x, g))  # noqa: B023
        check(reference.same(grad[0], gx.contiguous()), "grad of roll", shift, fill, cu)
        check(count <= 1, "collectives", count)


def roll_dtypes(cp: int, dtypes: list[torch.dtype]) -> None:
    group = group_of(cp)
    rank = dist.get_rank(group)
    cu, total = documents(cp, 5, seed=3, head=1, tail=1)
    for dtype in dtypes:
        whole = whole_row((total,), dtype, 0)
        for fill in (1, None):
            expected = naive.shard(reference.roll(whole, cu, -2, 0, fill), cu.tolist(), cp, rank)
            got = cp_packed_roll(naive.shard(whole, cu.tolist(), cp, rank), cu, group, -2, 0, fill)
            check(reference.same(got, expected), dtype, fill)


FILLS = [0, -100, 0.5, False, None]


def fields_of(cu: Tensor, total: int, cp: int, rank: int) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Token ids, labels, hidden states, a mask and positions: whole, sharded, and their packed dimensions."""
    hidden = whole_row((total, 2, 3), torch.bfloat16, 5)
    ids, labels = torch.arange(total).view(1, total), torch.arange(total, dtype=torch.int32)
    whole = [ids, labels, hidden, (labels % 3 == 0).view(1, total), torch.linspace(0, 1, total)]
    dims = [1, 0, 0, 1, 0]
    return whole, [naive.shard(w, cu.tolist(), cp, rank, d) for w, d in zip(whole, dims, strict=True)], dims


def many_fields(cp: int) -> tuple[int, int]:
    """Fields of several dtypes by several shifts both ways: one exchange forward, one backward."""
    group = group_of(cp)
    rank = dist.get_rank(group)
    cu, total = documents(cp, 6, seed=8, head=1, tail=2)
    whole, fields, dims = fields_of(cu, total, cp, rank)
    fields[2].requires_grad_()
    fields[4].requires_grad_()
    shifts = [-1, -2, -3, 2]
    outs, forward = executed(group, lambda: cp_packed_roll(fields, cu, group, shifts, dims, FILLS))
    for w, d, fill, by_shift in zip(whole, dims, FILLS, outs, strict=True):
        for shift, out in zip(shifts, by_shift, strict=True):
            expected = naive.shard(reference.roll(w, cu, shift, d, fill), cu.tolist(), cp, rank, d)
            check(reference.same(out.detach(), expected), "fields", w.dtype, shift)
    loss = sum(o.float().square().sum() * (i + 1) for f in (2, 4) for i, o in enumerate(outs[f]))
    grads, backward = executed(group, lambda: torch.autograd.grad(loss, [fields[2], fields[4]]))  # type: ignore[arg-type]
    leaves = [whole[2].clone().requires_grad_(), whole[4].clone().requires_grad_()]
    expected_loss: Any = 0
    for leaf, f in zip(leaves, (2, 4), strict=True):
        for i, shift in enumerate(shifts):
            rolled = reference.roll(leaf, cu, shift, 0, FILLS[f])
            expected_loss = expected_loss + rolled.float().square().sum() * (i + 1)
    for grad, expected in zip(grads, torch.autograd.grad(expected_loss, leaves), strict=True):
        torch.testing.assert_close(grad, naive.shard(expected, cu.tolist(), cp, rank))
    return forward, backward


# === Compiled ===================================================================================================


def layer(x: Tensor, ids: Tensor, cu: Tensor, group: Any) -> tuple[Tensor, ...]:
    sections = [x.shape[-1] // 2, x.shape[-1] // 2]
    y = cp_to_hp(x * 2, cu, group, sections)
    y = cp_to_hp(hp_to_cp(y * y, cu, group, sections) - x, cu, group, sections)
    z = hp_to_cp(y + 1, cu, group, sections)
    rolled, moved = cp_packed_roll([z, ids], cu, group, [-1, -2], 0, [0, -100])
    return y, z, *rolled, *moved


def compiled(cp: int, backend: str, by_name: bool) -> dict[str, Any]:
    """One graph for all numbers of documents and lengths; same results as eager; collectives that ran."""
    torch._dynamo.reset()
    group = group_of(cp)
    rank = dist.get_rank(group)
    passed = group.group_name if by_name else group
    counter = CompileCounterWithBackend(backend)
    call = torch.compile(lambda x, ids, cu: layer(x, ids, cu, passed), backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for i, number in enumerate((5, 1, 3, 9, 1)):
        cu, total = documents(cp, number, seed=number + 4 * i, tail=3)
        x = naive.shard(whole_row((total, 8 * cp), torch.float32, i), cu.tolist(), cp, rank)
        ids = torch.arange(total // cp)

        def run(function: Callable[..., Any]) -> tuple[list[Tensor], list[int]]:
            leaf = x.clone().requires_grad_()  # noqa: B023
            outs, forward = executed(group, lambda: function(leaf, ids, cu))  # noqa: B023
            loss = sum((o * torch.linspace(0, 1, o.numel()).view(o.shape)).sum() for o in outs if o.is_floating_point())
            grads, backward = executed(group, lambda: torch.autograd.grad(loss, leaf))  # type: ignore[arg-type]
            return [*(o.detach() for o in outs), *grads], [forward, backward]

        got, ran = run(call)
        expected, _ = run(lambda x, ids, cu: layer(x, ids, cu, passed))
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b)
            check(a.is_floating_point() or torch.equal(a, b), "compiled", backend)
        counts.append(ran)
    return {"graphs": counter.frame_count, "counts": counts}


# === Faults =====================================================================================================


def _message(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ValueError, TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def faults(backend: str | None) -> dict[str, str]:
    """What each wrong argument says; a group of 2."""
    torch._dynamo.reset()
    group = group_of(2)
    x, good = torch.ones(6, 4), torch.tensor([0, 4, 12])
    odd = torch.tensor([0, 4, 10])
    functions = {"cp_to_hp": cp_to_hp, "hp_to_cp": hp_to_cp, "cp_packed_roll": cp_packed_roll}
    if backend is not None:
        functions = {k: torch.compile(f, backend=backend, fullgraph=True) for k, f in functions.items()}
    said = {f"odd length, {name}": _message(lambda: f(x, odd, group)) for name, f in functions.items()}  # noqa: B023
    said["odd length, cp_packed_roll"] = _message(lambda: functions["cp_packed_roll"](x, odd, group, -1, 0))
    if backend is None:
        said["sections"] = _message(lambda: cp_to_hp(x, good, group, [3, 1]))
        said["sum of sections"] = _message(lambda: cp_to_hp(x, good, group, [2, 4]))
        said["dim"] = _message(lambda: cp_to_hp(x, good, group, dim=0))
        said["one dimension"] = _message(lambda: cp_to_hp(x[0], good, group))
        said["tokens"] = _message(lambda: hp_to_cp(x[:5], good, group))
        said["name"] = _message(lambda: cp_to_hp(x, good, "no such group"))
        said["kind"] = _message(lambda: cp_to_hp(x, good, 3))
        said["shift"] = _message(lambda: cp_packed_roll(x, good, group, -5000, 0))
        said["fill"] = _message(lambda: cp_packed_roll([x, x], good, group, -1, 0, [0]))
        said["slots"] = _message(lambda: cp_packed_roll([x, x[:4]], good, group, -1, 0))
    return said


def hang(rank: int) -> None:
    """All ranks but one wait for a collective."""
    if dist.get_rank() == rank:
        time.sleep(60)
    dist.barrier()


def die(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)
    dist.barrier()
