"""Loops that must keep eager's results: Python features, autograd inside the body, random numbers, odd operations."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import SHAPES, leave

# ---------------------------------------------------------------- iterators and control flow


@leave("f[2,T] f[N] cu")
def outer_iterator_advanced(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    weights = iter([0.5, 2.0, -1.0] * 40)
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] * next(weights)
    return out


@leave("f[2,T] cu")
def outer_range_advanced(x: Tensor, cu: Tensor) -> tuple[Tensor, list[int]]:
    ticks = iter(range(1000))
    out = x.clone()
    for i in range(len(cu) - 1):
        next(ticks)
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out, [next(ticks)]


@leave("f[2,T] cu")
def own_iterator_advanced(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    it = iter(range(len(cu) - 1))
    for i in it:
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        next(it, None)
    return out


@leave("f[2,T] cu")
def ends_by_next(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    ends = iter(cu.tolist())
    start = next(ends)
    for end in ends:
        out[:, start:end] = x[:, start:end].flip(-1)
        start = end
    return out


@leave("f[2,T] cu")
def pops_a_list(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    out = x.clone()
    end = bounds.pop()
    while bounds:
        start = bounds.pop()
        out[:, start:end] = x[:, start:end].roll(-1, -1)
        end = start
    return out


@leave("f[2,T] cu")
def while_loop(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1:
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        i += 1
    return out


@leave("f[2,T] cu")
def while_over_tokens(x: Tensor, cu: Tensor) -> Tensor:
    out, i, start = x.clone(), 0, int(cu[0])
    while start < int(cu[-1]):
        end = int(cu[i + 1])
        out[:, start:end] = x[:, start:end].roll(-1, -1)
        start, i = end, i + 1
    return out


def _documents(x: Tensor, cu: Tensor) -> Iterator[Tensor]:
    for i in range(len(cu) - 1):
        yield x[:, cu[i] : cu[i + 1]]


@leave("f[2,T] cu", tail=False)
def generator_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([seg.roll(1, -1) for seg in _documents(x, cu)], -1)


@leave("f[2,T] cu", tail=False)
def generator_expression(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat(tuple(x[:, s:e].flip(-1) for s, e in zip(cu[:-1], cu[1:])), -1)


@leave("f[2,T] cu")
def any_over_documents(x: Tensor, cu: Tensor) -> Tensor:
    long = any(e - s > 5 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()))
    return x * 2 if long else x - 1


@leave("f[2,T] cu", must_refuse=True, why="pairs of documents, accumulated in place")
def nested_over_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(min(4, len(cu) - 1)):
        for j in range(i + 1):
            out[:, cu[i] : cu[i + 1]] = out[:, cu[i] : cu[i + 1]] * 0.5 + x[:, cu[j] : cu[j + 1]].sum(-1, keepdim=True)
    return out


@leave("f[2,T] cu", must_refuse=True, why="windows inside documents, as many as the data says")
def chunks_inside_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        for a in range(s, e, 4):
            out[:, a : min(a + 4, e)] = x[:, a : min(a + 4, e)].flip(-1)
    return out


@leave("f[2,T] cu", shapes=SHAPES[:-1])  # without documents, stock Dynamo itself raises what the program would catch
def try_and_except(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu)):
        try:
            out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        except IndexError:
            out = out + 1
    return out


@leave("f[2,T] cu")
def suppress(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    with contextlib.suppress(ZeroDivisionError):
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[:, s:e] = x[:, s:e] * (8 // (e - s))
    return out


@leave("f[2,T] cu")
def prints(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        print("document", i)
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def graph_break_in_body(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e].roll(-1, -1)
        torch._dynamo.graph_break()
        out[:, s:e] = seg
    return out


@leave("f[2,T] cu")
def graph_break_before_use(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    torch._dynamo.graph_break()
    return out * 2 + (i if len(cu) > 1 else 0)


@functools.lru_cache(maxsize=None)
def _scale(length: int) -> float:
    return 2.0 if length > 3 else 0.5


@leave("f[2,T] cu")
def cached_helper(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e] * _scale(e - s)
    return out


@leave("f[2,T] cu", must_refuse=True, why="the order of the documents depends on the data")
def sorted_by_length(x: Tensor, cu: Tensor) -> Tensor:
    out, at = torch.zeros_like(x), 0
    docs = sorted(zip(cu[:-1].tolist(), cu[1:].tolist()), key=lambda d: d[1] - d[0])
    for s, e in docs:
        out[:, at : at + e - s] = x[:, s:e]
        at += e - s
    return out


@leave("f[2,T] cu")
def set_of_lengths(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    out, lengths = x.clone(), set()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        lengths.add(e - s)
        out[:, s:e] = x[:, s:e].flip(-1)
    return out, len(lengths)


@leave("f[2,T] cu")
def boundary_as_number(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[:, s:e] = x[:, s:e] * (e - s) + s
    return out


@leave("i[T] cu")
def absolute_positions(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = torch.arange(s, e) + ids[s:e]
    return out


@leave("i[T] cu")
def positions_from_the_end(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(ids)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = torch.arange(e - s - 1, -1, -1)
    return out


@leave("i[T] cu")
def positions_two_apart(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(ids)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = torch.arange(5, 5 + 2 * (e - s), 2)
    return out


# ---------------------------------------------------------------- random numbers


@leave("f[2,T] cu", must_refuse=True, why="the random stream is drawn document by document")
def dropout(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = F.dropout(x[:, s:e], 0.5, training=True)
    return out


@leave("f[2,T] cu", must_refuse=True, why="the random stream is drawn document by document")
def noise(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] + torch.rand_like(x[:, s:e])
    return out


@leave("f[2,T] cu", must_refuse=True, why="one random scale per document")
def one_random_scale_per_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] * torch.rand(())
    return out


@leave("f[2,T] cu")
def python_random(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] * random.random()
    return out


@leave("f[2,T] cu", must_refuse=True, why="one permutation per document")
def random_permutation(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e][:, torch.randperm(e - s)]
    return out


# ---------------------------------------------------------------- autograd in the body


@leave("f[2,T] cu")
def detached(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].detach().roll(-1, -1) + x[:, s:e]
    return out


@leave("f[2,T] cu")
def no_grad_around_the_read(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for s, e in zip(cu[:-1], cu[1:]):
        with torch.no_grad():
            seg = x[:, s:e].roll(-1, -1)
        out[:, s:e] = seg
    return out


@leave("f[2,T] cu")
def no_grad_around_the_write(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        with torch.no_grad():
            out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out * 2


@leave("f[2,T] cu")
def grad_mode_toggled(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        with torch.set_grad_enabled(i % 2 == 0):
            seg = x[:, cu[i] : cu[i + 1]] * 3
        out[:, cu[i] : cu[i + 1]] = seg
    return out


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seg: Tensor) -> Tensor:
        return seg.roll(-1, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.roll(1, -1) * 10


@leave("f[2,T] cu")
def autograd_function(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = _Reversed.apply(x[:, s:e])
    return out


@leave("f[2,T] cu")
def tensor_hook(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = x[:, s:e] * 2
        if seg.requires_grad:
            seg.register_hook(lambda g: g * 0.5)
        out[:, s:e] = seg
    return out


@leave("f[2,T] cu")
def backward_in_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        loss = (x[:, s:e].roll(-1, -1) * x[:, s:e]).sum()
        if loss.requires_grad:
            loss.backward()
        total = total + loss.detach()
    return total


# ---------------------------------------------------------------- operations that mix tokens or need their own rule


@leave("f[2,T] cu", exact=False)
def mean_per_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] - x[:, s:e].mean(-1, keepdim=True)
    return out


@leave("f[2,T] cu", exact=False)
def softmax_per_document(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = torch.softmax(x[:, s:e], -1)
    return out


@leave("i[2,T] cu")
def cumsum_per_document(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = ids[:, s:e].cumsum(-1)
    return out


@leave("i[2,T] cu")
def sort_per_document(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = ids[:, s:e].sort(-1).values
    return out


@leave("f[T,4] f[4,4] cu", exact=False)
def projection_per_document(h: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = h[s:e] @ w
    return out


@leave("f[T,4] cu", min_len=1, exact=False)
def attention_per_document(h: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        q = h[s:e][None]
        out[s:e] = F.scaled_dot_product_attention(q, q, q, is_causal=True)[0]
    return out


@leave("f[2,T] cu", min_len=1)
def max_over_documents(x: Tensor, cu: Tensor) -> Tensor:
    best = []
    for s, e in zip(cu[:-1], cu[1:]):
        best.append(x[:, s:e].amax(-1))
    return torch.stack(best, -1) if best else x


@leave("f[2,T] cu", must_refuse=True, why="a roll without dims moves tokens from one row into the other")
def flattened_roll(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = torch.roll(x[:, s:e], 1)
    return out


@leave("f[3,T] cu")
def roll_of_the_rows(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = torch.roll(x[:, s:e], 1, 0)
    return out


@leave("f[3,T] cu")
def roll_of_both_dims(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = torch.roll(x[:, s:e], (1, -2), (0, 1))
    return out


@leave("f[3,T] cu")
def flip_of_both_dims(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].flip((0, 1))
    return out


@leave("f[2,T] cu", must_refuse=True, why="the shift differs from document to document")
def shift_by_data(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].roll((e - s) // 2, -1)
    return out


@leave("i[T] cu")
def masked_by_content(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = ids[s:e].roll(-1, 0)
        seg[seg > 40] = -100
        out[s:e] = seg
    return out


@leave("f[2,T] cu")
def unused_loop(x: Tensor, cu: Tensor) -> Tensor:
    for s, e in zip(cu[:-1], cu[1:]):
        x[:, s:e].roll(-1, -1)
    return x * 2


@leave("f[2,T] cu")
def overwritten_before_the_loop_result_is_read(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    out[:, :3] = 7
    first = out.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = out[:, s:e].roll(-1, -1)
    return first + out


@leave("f[2,T] cu")
def data_dependent_branch_after(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    if out.sum() > 0:
        return out + 1
    return out - 1


@leave("f[2,T] cu", tail=False)
def split_of_another_dim(x: Tensor, cu: Tensor) -> Tensor:
    parts = [p.roll(-1, 0) for p in torch.split(x.t(), cu.diff().tolist(), dim=0)]
    return torch.cat(parts, 0).t()


@leave("f[2,T] cu", tail=False)
def cat_of_two_lists(x: Tensor, cu: Tensor) -> Tensor:
    a = [x[:, s:e].roll(-1, -1) for s, e in zip(cu[:-1], cu[1:])]
    b = [seg.flip(-1) for seg in a]
    return torch.cat(a + b, -1)


@leave("f[T,4] cu", tail=False, min_len=1, lead_empty=False, must_refuse=True, why="an entry that is a tensor")
def something_per_document_is_looked_at(x: Tensor, cu: Tensor) -> Tensor:
    outputs, weights = [], []
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outputs.append(x[start:end].cumsum(0))
        weights.append(x[start:end].sum())
    return torch.cat(outputs) * weights[0]


@leave("f[T,4] cu", tail=False, min_len=1, lead_empty=False, must_refuse=True, why="entries are gone through")
def nothing_for_some_documents(x: Tensor, cu: Tensor) -> Tensor:
    outputs = []
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outputs.append(x[start:end].cumsum(0))
        outputs.append(None)
    return torch.cat([output for output in outputs if output is not None])


@leave("f[T] cu", refusal=True)
def slots_counted_by_while(x: Tensor, cu: Tensor) -> Tensor:
    """How often the inner loop turns is data."""
    out = x.clone()
    for i in range(len(cu) - 1):
        at, end = cu[i].item(), cu[i + 1]
        while at < end:
            out[at] = 0
            at += 1
    return out
