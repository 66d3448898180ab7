"""Programs with several all-to-alls in straight lines.

Each takes a tensor of 8 rows and 24 columns and a process group of 2 or 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# === Ways to write one ==========================================================================================


def in_place(x: Tensor, group: Any) -> Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, group=group)
    return out


def functional(x: Tensor, group: Any) -> Tensor:
    return funcol.all_to_all_single(x.contiguous(), None, None, group)


def with_splits(x: Tensor, group: Any) -> Tensor:
    splits = [x.shape[0] // group.size()] * group.size()
    out = x.new_empty(x.shape)
    dist.all_to_all_single(out, x, splits, splits, group=group)
    return out


class Exchange(torch.autograd.Function):
    """As model code has it: the backward is the function itself."""

    @staticmethod
    def forward(ctx: Any, group: Any, x: Tensor) -> Tensor:
        ctx.group = group
        x = x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, Exchange.apply(ctx.group, grad)


class FlatExchange(torch.autograd.Function):
    """In other words, through views that keep the order of elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.shape = group, x.shape
        return funcol.all_to_all_single(x.reshape(-1), None, None, group).view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        sent = grad.contiguous().view(ctx.group.size(), -1)
        return funcol.all_to_all_single(sent, None, None, ctx.group).reshape(ctx.shape), None


class Halved(Exchange):
    """Not an all-to-all of the gradient."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, Exchange.apply(ctx.group, grad) / 2


class Masked(Exchange):
    """Its bodies also write by an index, which gives no value."""

    @staticmethod
    def forward(ctx: Any, group: Any, x: Tensor) -> Tensor:
        ctx.group = group
        x = x.clone()
        x[0] = 0
        return in_place(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        grad = in_place(grad.contiguous(), ctx.group)
        grad[0] = 0
        return None, grad


class Permuted(torch.autograd.Function):
    """Sequence shards to head shards, with the permutations inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        rows, heads = x.shape
        sent = x.reshape(rows, group.size(), heads // group.size()).transpose(0, 1).contiguous()
        return in_place(sent, group).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        sent = grad.reshape(ctx.group.size(), -1, grad.shape[1]).contiguous()
        return in_place(sent, ctx.group).transpose(0, 1).flatten(1), None


def to_heads(x: Tensor, group: Any, exchange: Callable[..., Tensor] = in_place) -> Tensor:
    """``[rows, heads]`` -> ``[rows * size, heads / size]``, permutations outside."""
    rows, heads = x.shape
    sent = x.reshape(rows, group.size(), heads // group.size()).permute(1, 0, 2).contiguous()
    return exchange(sent, group).flatten(0, 1)


# === Rewritten ==================================================================================================


def five_sections(x: Tensor, group: Any) -> Tensor:
    """Sections of one tensor, then cat."""
    outs = [in_place(part.contiguous(), group) for part in x.split([8, 8, 4, 2, 2], 1)]
    return torch.cat(outs, 1)


def projections(x: Tensor, group: Any) -> Tensor:
    """Separately computed tensors, with other work between."""
    total = x.new_zeros(())
    for i in range(3):
        y = F.linear(x, torch.full((4 * (i + 1), 24), 0.5)).relu()
        total = total + (to_heads(y, group) * (i + 1)).sum()
    return total


def unrolled(x: Tensor, group: Any) -> list[Tensor]:
    outs = []
    for part in torch.chunk(x, 3, dim=1):
        outs.append(functional(part, group).sin())
    return outs


def functions(x: Tensor, group: Any) -> Tensor:
    q, k, v = x.chunk(3, 1)
    q, k, v = Exchange.apply(group, q), Exchange.apply(group, k * 2), Exchange.apply(group, v)
    return q * k + v


def flat_functions(x: Tensor, group: Any) -> Tensor:
    a, b = x.split(12, 1)
    return FlatExchange.apply(a, group) * FlatExchange.apply(b, group)


def heads(x: Tensor, group: Any) -> Tensor:
    """Permute, contiguous, all-to-all, permute, thrice."""
    q, k, v = (to_heads(t, group) for t in x.split(8, 1))
    return torch.softmax(q * k, -1) * v


def every_way(x: Tensor, group: Any) -> Tensor:
    """Ways of writing may differ in one group."""
    a, b, c, d = x.split(6, 1)
    a, b = in_place(a.contiguous(), group), Exchange.apply(group, b)
    c, d = functional(c, group), with_splits(d.contiguous(), group)
    return torch.cat([a * 1, b * 2, c * 3, d * 4], 1)


def two_stages(x: Tensor, group: Any) -> Tensor:
    """Each of two goes forth and back: one exchange forth, one back."""
    parts = []
    for part in x.split(12, 1):
        there = in_place(part.contiguous(), group)
        parts.append(in_place((there * there).contiguous(), group))
    return torch.cat(parts, 1)


def forth_and_back(x: Tensor, group: Any) -> Tensor:
    """What one exchange gives is what the next sends, as it is."""
    a, b = x.split(12, 1)
    a = functional(in_place(a.contiguous(), group), group)
    b = in_place(functional(b.contiguous(), group), group)
    return torch.cat([a, b], 1)


def into_slices(x: Tensor, group: Any) -> Tensor:
    """One buffer for all results, a part for each."""
    out = x.new_zeros(3, 8, 8)
    for i, part in enumerate(x.split(8, 1)):
        dist.all_to_all_single(out[i], part.contiguous(), group=group)
    return out * 2


def written_later(x: Tensor, group: Any) -> Tensor:
    """Results and inputs are changed in place after the last collective, and results before it."""
    y = x * 1
    a = in_place(y[:, :12].contiguous(), group)
    a.mul_(2)
    b = in_place(y[:, 12:].contiguous(), group)
    y.add_(1)
    return a + b + y[:, :12]


def twice_the_same(x: Tensor, group: Any) -> Tensor:
    return functional(x, group) + in_place(x, group)


def under_checkpoint(x: Tensor, group: Any) -> Tensor:
    result: Tensor = checkpoint(five_sections, x, group, use_reentrant=False)
    return result.sin()


def without_gradients(x: Tensor, group: Any) -> Tensor:
    return functions(x, group)


def in_no_grad(x: Tensor, group: Any) -> Tensor:
    with torch.no_grad():
        there = five_sections(x, group)
    return there + x


def results_unused(x: Tensor, group: Any) -> Tensor:
    """One without a gradient: its input gets none from it."""
    a, b, c = (functional(part, group) for part in x.split(8, 1))
    return a + b.detach() + c


def several_widths_and_dims(x: Tensor, group: Any) -> list[Tensor]:
    return [
        functional(x[:, 0], group),
        functional(x[:, :0], group),
        functional(x.view(8, 2, 3, 4), group).flatten(1),
        functional(x.t()[:8], group),
    ]


def casts(x: Tensor, group: Any) -> list[Tensor]:
    """One exchange for each dtype."""
    a, b = x.split(12, 1)
    return [
        functional(a, group),
        functional(a.bfloat16(), group),
        functional(b, group),
        functional(b.bfloat16(), group),
    ]


REWRITTEN: dict[Callable[..., Any], list[int]] = {
    five_sections: [5],
    projections: [3],
    unrolled: [3],
    functions: [3],
    flat_functions: [2],
    heads: [3],
    every_way: [4],
    two_stages: [2, 2],
    forth_and_back: [2, 2],
    into_slices: [3],
    written_later: [2],
    twice_the_same: [2],
    under_checkpoint: [5],
    without_gradients: [3],
    in_no_grad: [5],
    results_unused: [3],
    several_widths_and_dims: [4],
    casts: [2, 2],
}
"""Program -> members of its exchanges."""
WITHOUT_GRADIENTS = (without_gradients,)


# === Left alone =================================================================================================


def one(x: Tensor, group: Any) -> Tensor:
    return in_place(x, group)


def chain(x: Tensor, group: Any) -> Tensor:
    for _ in range(3):
        x = in_place(x.sin(), group)
    return x


def chain_of_functions(x: Tensor, group: Any) -> Tensor:
    for _ in range(3):
        x = Exchange.apply(group, x.sin())
    return x


def input_of_next_is_output(x: Tensor, group: Any) -> Tensor:
    """Through memory, not through values."""
    a, b = torch.empty_like(x), torch.empty_like(x)
    dist.all_to_all_single(a, x, group=group)
    dist.all_to_all_single(b, a, group=group)
    return b


def uneven(x: Tensor, group: Any) -> Tensor:
    rank, size = dist.get_rank(group), group.size()
    sent = [8 - size + 1] + [1] * (size - 1)
    outs = []
    for part in x.detach().split(12, 1):
        out = part.new_empty(sent[rank] * size, 12)
        dist.all_to_all_single(out, part.contiguous(), [sent[rank]] * size, sent, group=group)
        outs.append(out)
    return torch.cat(outs, 1)


def ring(x: Tensor, group: Any) -> Tensor:
    """Splits of zero for all ranks but the next: what to send a neighbour."""
    rank, size = dist.get_rank(group), group.size()
    sent = [8 if r == (rank + 1) % size else 0 for r in range(size)]
    received = [8 if r == (rank - 1) % size else 0 for r in range(size)]
    parts = [funcol.all_to_all_single(part.contiguous(), received, sent, group) for part in x.split(12, 1)]
    return torch.cat(parts, 1)


def overlapped(x: Tensor, group: Any) -> Tensor:
    """Work while a collective is on its way."""
    name, splits = group.group_name, [8 // group.size()] * group.size()
    a, b = x.detach().split(12, 1)
    first = torch.ops._c10d_functional.all_to_all_single(a.contiguous(), splits, splits, name)
    squares = b @ b.t()
    first = torch.ops._c10d_functional.wait_tensor(first)
    second = torch.ops._c10d_functional.all_to_all_single(b.contiguous(), splits, splits, name)
    cubes = squares @ squares
    return first + torch.ops._c10d_functional.wait_tensor(second) + cubes.sum()


def source_changed(x: Tensor, group: Any) -> Tensor:
    y = x.detach() * 1
    a = in_place(y, group)
    y.mul_(2)
    return a + in_place(y, group)


def source_changed_through_view(x: Tensor, group: Any) -> Tensor:
    y = x.detach() * 1
    rows = y.view(-1)
    a = in_place(y, group)
    rows[3] = 100.0
    return a + in_place(y, group)


def in_place_on_itself(x: Tensor, group: Any) -> Tensor:
    """Output and input share memory; so do those of the next."""
    y = x.detach() * 1
    dist.all_to_all_single(y, y, group=group)
    dist.all_to_all_single(y, y, group=group)
    return y


def one_buffer_twice(x: Tensor, group: Any) -> Tensor:
    buffer = x.new_zeros(8, 12)
    total = torch.zeros_like(buffer)
    for part in x.detach().split(12, 1):
        dist.all_to_all_single(buffer, part.contiguous(), group=group)
        total = total + buffer
    return total


def dtypes(x: Tensor, group: Any) -> list[Tensor]:
    return [functional(x, group), functional(x.bfloat16(), group)]


def one_without_gradient(x: Tensor, group: Any) -> list[Tensor]:
    return [functional(x, group), functional(x.detach() * 2, group)]


def random_between(x: Tensor, group: Any) -> Tensor:
    """Random numbers would be drawn in another order."""
    a = functional(F.dropout(x, 0.5), group)
    return a + functional(F.dropout(x, 0.5), group)


def gradients_switched(x: Tensor, group: Any) -> Tensor:
    a = functional(x * 2, group)
    with torch.no_grad():
        b = functional(x * 3, group)
    return a + b


def other_autocast(x: Tensor, group: Any) -> Tensor:
    weight = torch.ones(24, 24)
    a = functional((x @ weight).float(), group)
    with torch.autocast("cpu", torch.bfloat16):
        b = functional((x @ weight).float(), group)
    return a + b


def scaled_functions(x: Tensor, group: Any) -> Tensor:
    a, b = x.split(12, 1)
    return Halved.apply(group, a) + Halved.apply(group, b)


def masked_functions(x: Tensor, group: Any) -> Tensor:
    a, b = x.split(12, 1)
    return Masked.apply(group, a) + Masked.apply(group, b)


def permuted_functions(x: Tensor, group: Any) -> Tensor:
    """The permutations are inside; bucketed after autograd."""
    a, b = x.split(12, 1)
    return Permuted.apply(a, group) + Permuted.apply(b, group)


def source_changed_by_activation(x: Tensor, group: Any) -> Tensor:
    """In place by a positional argument."""
    y = x.detach() * 1
    a = in_place(y, group)
    F.relu(y, True)
    return a + in_place(y, group)


@torch.library.custom_op("packpass_tests::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    """Nobody can see what runs in it."""
    return x + 1


@opaque.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def custom_op_between(x: Tensor, group: Any) -> Tensor:
    x = x.detach()
    a = functional(x, group)
    return a + torch.ops.packpass_tests.opaque(x) + functional(x * 2, group)


def custom_op_before(x: Tensor, group: Any) -> Tensor:
    x = x.detach()
    return functional(x, group) + functional(torch.ops.packpass_tests.opaque(x), group)


LEFT_ALONE: dict[Callable[..., Any], str | None] = {
    one: None,
    chain: None,
    chain_of_functions: None,
    input_of_next_is_output: None,
    uneven: "uneven-splits",
    ring: "uneven-splits",
    overlapped: "overlapped",
    source_changed: "collective-order",
    source_changed_through_view: "collective-order",
    source_changed_by_activation: "collective-order",
    custom_op_between: "not-movable",
    custom_op_before: "not-movable",
    in_place_on_itself: None,
    one_buffer_twice: "reused-output",
    dtypes: None,
    one_without_gradient: None,
    random_between: "not-movable",
    gradients_switched: None,
    other_autocast: "not-movable",
    scaled_functions: "function-not-exchange",
    masked_functions: "function-not-exchange",
    permuted_functions: "function-not-exchange",
}
"""Program -> the refusal's code; None where there is nothing to refuse."""
