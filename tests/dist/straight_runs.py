"""What the ranks run for test_straight.py: each function returns, or raises, on every rank alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch._dynamo.utils import counters

import packpass
from tests.dist import straight_programs
from tests.dist.cp_programs import check, documents, executed, group_of
from tests.ops import reference


def compiled(program: Callable[..., Any], inner: str, stock: bool = False) -> Callable[..., Any]:
    torch._dynamo.reset()
    if stock:
        return torch.compile(program, backend=inner, fullgraph=True)
    return torch.compile(program, backend=packpass.backend, fullgraph=True, options={"packpass.inner_backend": inner})


def step(call: Callable[..., Any], group: Any, seed: int) -> tuple[list[Tensor], Tensor | None, list[int]]:
    """Results, the gradient, and how many collectives ran for each."""
    torch.manual_seed(seed + dist.get_rank(group))
    leaf = torch.randn(8, 24, requires_grad=True)
    torch.manual_seed(seed)
    outs, forward = executed(group, lambda: call(leaf, group))
    outs = [outs] if isinstance(outs, Tensor) else list(outs)
    found = [o.detach().clone() for o in outs]
    real = [o for o in outs if o.requires_grad]
    if not real:
        return found, None, [forward, 0]
    loss = sum((o * torch.linspace(-1, 1, o.numel()).view(o.shape)).sum() for o in real)
    (grad,), backward = executed(group, lambda: torch.autograd.grad(loss, leaf, allow_unused=True))  # type: ignore[arg-type]
    return found, grad, [forward, backward]


def same(a: Tensor | None, b: Tensor | None, inner: str) -> bool:
    """Bit-equal. Of Inductor's kernels only almost: which loop computes a sine decides about its last bit."""
    if a is None or b is None:
        return a is b
    if inner == "inductor":
        return torch.allclose(a, b, rtol=1e-6, atol=1e-6)
    return a.shape == b.shape and reference.same(a.reshape(-1), b.reshape(-1))


def same_as_stock(cp: int, names: list[str], inner: str) -> dict[str, list[int]]:
    """Results are those of eager mode, gradients those under stock torch.compile; collectives of a step."""
    group = group_of(cp)
    counts = {}
    for name in names:
        program = getattr(straight_programs, name)
        eager, _, _ = step(program, group, 1)
        _, stock, _ = step(compiled(program, inner, stock=True), group, 1)
        got, grad, counts[name] = step(compiled(program, inner), group, 1)
        for a, b in zip(got, eager, strict=True):
            check(same(a, b, inner), name, "eager", a, b)
        check(same(grad, stock, inner), name, "gradient", grad, stock)
    return counts


def exchanged(cp: int, dtypes: list[torch.dtype]) -> None:
    """The op itself: what one all-to-all each gives, for any dtype and shape, and gradients of some of its results."""
    group = group_of(cp)
    rank = dist.get_rank(group)
    op = torch.ops.packpass.all_to_all_group.default
    for dtype in dtypes:
        shapes = [(2 * cp, 3), (cp,), (3 * cp, 0, 2), (cp, 2, 5)]
        xs = [reference.sample(dtype, *shape) for shape in shapes]
        xs = [x.roll(rank, 0) for x in xs]
        xs[3] = xs[3].transpose(1, 2)
        outs, count = executed(group, lambda: op(xs, group.group_name, cp))  # noqa: B023
        check(count == 1, dtype, count)
        for x, out in zip(xs, outs, strict=True):
            expected = torch.empty_like(x, dtype=torch.uint8 if dtype.itemsize == 1 else dtype).contiguous()
            sent = x.contiguous().view(expected.dtype)
            if dtype in (torch.int16, torch.complex64):  # gloo does not send them
                expected, sent = expected.view(torch.uint8), sent.view(torch.uint8)
            dist.all_to_all_single(expected, sent, group=group)
            check(reference.same(out, expected.view(dtype)), "op", dtype, x.shape)
    leaves = [torch.randn(2 * cp, 3, requires_grad=True) for _ in range(3)]
    outs = op([leaf * 2 for leaf in leaves], group.group_name, cp)
    loss = (outs[0] * (rank + 1)).sum() + outs[2].sum()
    grads, count = executed(group, lambda: torch.autograd.grad(loss, leaves, allow_unused=True))
    check(count == 1, "one exchange backward", count)
    by_rank = torch.arange(1.0, cp + 1).repeat_interleave(2).view(-1, 1).expand(2 * cp, 3) * 2
    check(torch.equal(grads[0], by_rank) and torch.equal(grads[2], torch.full((2 * cp, 3), 2.0)), "gradients")
    check(grads[1] is None, "no gradient where none comes from")


def layouts(cp: int, inner: str) -> list[list[int]]:
    """A change of layout per section, forth and back."""
    group = group_of(cp)
    cu, total = documents(cp, 4, seed=1, head=1, tail=2)
    torch.manual_seed(dist.get_rank(group))
    x = torch.randn(total // cp, 6 * cp, requires_grad=True)
    weights = torch.randn(total // cp, 6 * cp)

    def program(x: Tensor, cu: Tensor) -> Tensor:
        there = [packpass.ops.cp_to_hp(part, cu, group) for part in x.split([cp, 3 * cp, 2 * cp], 1)]
        back = [packpass.ops.hp_to_cp(part.sin() * (i + 1), cu, group) for i, part in enumerate(there)]
        return torch.cat(back, 1)

    def run(call: Callable[..., Tensor]) -> tuple[list[Tensor], list[int]]:
        out, forward = executed(group, lambda: call(x, cu))
        grads, backward = executed(group, lambda: torch.autograd.grad(out, x, weights))
        return [out.detach(), *grads], [forward, backward]

    expected, separate = run(program)
    got, together = run(compiled(program, inner))
    for a, b in zip(got, expected, strict=True):
        check(same(a, b, inner), "layouts", inner)
    return [separate, together]


def used_on_one_rank(cp: int) -> list[int]:
    """The other ranks do not look at the results, but take part: collectives, written by the user and as ops."""
    group = group_of(cp)
    looks = dist.get_rank(group) == 0
    cu = torch.tensor([0, 8 * cp])

    def written(x: Tensor) -> Tensor:
        a, b = (straight_programs.functional(part, group) for part in x.split(12, 1))
        return a + b if looks else x * 2

    def ops(x: Tensor) -> Tensor:
        row = packpass.ops.hp_to_cp(packpass.ops.cp_to_hp(x, cu, group), cu, group)
        rolled = packpass.ops.cp_packed_roll(x, cu, group, -1, 0)
        return row + rolled if looks else x * 2

    counts = []
    for program in (written, ops):
        x = torch.randn(8, 24)
        got, count = executed(group, lambda: compiled(program, "aot_eager")(x))  # noqa: B023
        check(torch.equal(got, program(x)), "used on one rank")
        counts.append(count)
    return counts


def steps_with_many_shapes(cp: int, inner: str) -> int:
    """Graphs for batches of many sizes."""
    group = group_of(cp)
    counters.clear()
    call = compiled(straight_programs.five_sections, inner)
    for rows in (8, 16, 4, 24, 12, 40):
        x = torch.randn(rows, 24)
        check(torch.equal(call(x, group), straight_programs.five_sections(x, group)), rows)
    return int(counters["stats"]["unique_graphs"])


# === Fuzz =======================================================================================================

Line = tuple[Any, ...]


def waited(x: Tensor, group: Any) -> Tensor:
    """In eager mode a functional collective still reads its input when it returns."""
    return funcol.wait_tensor(straight_programs.functional(x, group))


STYLES = (straight_programs.in_place, waited, straight_programs.with_splits)


def random_program(seed: int, in_place: bool) -> list[Line]:
    """Lines that read and write numbered tensors; the same on every rank."""
    numbers = random.Random(seed)
    kinds = ["exchange"] * 4 + ["combine"] * 2 + ["view", "function"]
    kinds += ["write", "write part", "into"] if in_place else []
    lines: list[Line] = []
    count = 3
    for _ in range(numbers.randint(4, 12)):
        kind = numbers.choice(kinds)
        a, b = numbers.randrange(count), numbers.randrange(count)
        lines.append((kind, a, b, numbers.choice(STYLES), numbers.randint(1, 7)))
        count += kind not in ("write", "write part", "into")
    return lines


def run_program(lines: list[Line], tensors: list[Tensor], group: Any) -> list[Tensor]:
    tensors = list(tensors)
    for kind, a, b, style, number in lines:
        x, y = tensors[a], tensors[b]
        if kind == "exchange":
            tensors.append(style(x * number if number > 5 else x, group))
        elif kind == "function":
            tensors.append(straight_programs.Exchange.apply(group, x))
        elif kind == "combine":
            tensors.append(x * 2 + y if number > 4 else torch.where(x > y, x, -y))
        elif kind == "view":
            tensors.append(x.view(-1).view(x.shape))
        elif kind == "write":
            x.mul_(number)
        elif kind == "write part":
            x.view(-1)[number] = 7.0
        elif kind == "into":
            dist.all_to_all_single(x, y.clone(), group=group)
    return tensors


def fuzz(cp: int, seeds: list[int], in_place: bool, inner: str) -> int:
    """Random programs, bit-equal to eager ones in every tensor they made or wrote; collectives that were saved."""
    group = group_of(cp)
    saved = 0
    for seed in seeds:
        lines = random_program(seed, in_place)

        def program(*tensors: Tensor, lines: list[Line] = lines) -> list[Tensor]:
            if in_place:  # what comes in is not written
                return run_program(lines, [t * 1 for t in tensors], group)
            return run_program(lines, list(tensors), group)

        torch.manual_seed(seed * 10 + dist.get_rank(group))
        # Whole numbers: a tensor that is sent several times gets its gradients in another order.
        given = [torch.randint(-3, 4, (8, 3)).double().requires_grad_(not in_place) for _ in range(3)]
        expected, many = executed(group, lambda: program(*given))  # noqa: B023
        got, few = executed(group, lambda: compiled(program, inner)(*given))  # noqa: B023
        for a, b in zip(got, expected, strict=True):
            check(same(a.detach(), b.detach(), inner), seed, lines)
        if not in_place:
            stock = compiled(program, inner, stock=True)(*given)
            grads = [
                torch.autograd.grad(sum((o * o).sum() for o in outs if o.requires_grad), given, allow_unused=True)  # type: ignore[arg-type]
                for outs in (got, stock)
            ]
            check(all(same(a, b, inner) for a, b in zip(*grads, strict=True)), "gradient", seed, lines)
        saved += many - few
    return saved
