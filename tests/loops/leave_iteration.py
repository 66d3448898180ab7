"""Loops that must keep eager's results: ranges, zips and lists used as objects, containers filled in the loop."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .harness import leave


def _roll(x: Tensor, out: Tensor, s: Any, e: Any) -> None:
    out[:, s:e] = x[:, s:e].roll(-1, -1)


# ---------------------------------------------------------------- ranges and zips as objects


@leave("f[2,T] cu")
def zip_advanced_before(x: Tensor, cu: Tensor) -> Tensor:
    out, pairs = x.clone(), zip(cu[:-1], cu[1:])
    next(pairs, None)
    for s, e in pairs:
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def zip_consumed_twice(x: Tensor, cu: Tensor) -> Tensor:
    out, pairs = x.clone(), zip(cu[:-1].tolist(), cu[1:].tolist())
    for s, e in pairs:
        _roll(x, out, s, e)
    for s, e in pairs:  # nothing is left
        out[:, s:e] = 0
    return out


@leave("f[2,T] cu")
def range_iterated_twice(x: Tensor, cu: Tensor) -> Tensor:
    out, docs = x.clone(), range(len(cu) - 1)
    for i in docs:
        _roll(x, out, cu[i], cu[i + 1])
    for i in docs:
        out[:, cu[i] : cu[i + 1]] += x[:, cu[i] : cu[i + 1]]
    return out * len(docs)


@leave("f[2,T] cu")
def range_sliced(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1)[1:]:
        _roll(x, out, cu[i], cu[i + 1])
    return out


@leave("f[2,T] cu")
def range_listed_and_sliced(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in list(range(len(cu) - 1))[:-1]:
        _roll(x, out, cu[i], cu[i + 1])
    return out


@leave("f[2,T] cu")
def range_downwards(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 2, -1, -1):
        _roll(x, out, cu[i], cu[i + 1])
    return out


@leave("f[2,T] cu")
def range_with_offset(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(3, len(cu) + 2):
        _roll(x, out, cu[i - 3], cu[i - 2])
    return out


@leave("f[2,T] cu")
def negative_indices(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(1, len(cu)):
        _roll(x, out, cu[-i - 1], cu[-i])
    return out


@leave("f[2,T] cu")
def indices_from_the_end(x: Tensor, cu: Tensor) -> Tensor:
    out, n = x.clone(), len(cu) - 1
    for i in range(n):
        _roll(x, out, cu[n - 1 - i], cu[n - i])
    return out


@leave("f[2,T] cu")
def membership_and_equality(x: Tensor, cu: Tensor) -> Tensor:
    docs, out = range(len(cu) - 1), x.clone()
    for i in docs:
        _roll(x, out, cu[i], cu[i + 1])
    return out + (2 in docs) + 10 * (docs == range(7))


@leave("f[2,T] cu")
def islice_of_pairs(x: Tensor, cu: Tensor) -> Tensor:
    out, bounds = x.clone(), cu.tolist()
    for s, e in itertools.islice(zip(bounds, bounds[1:]), 2):
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def zip_with_count(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e, k in zip(cu[:-1].tolist(), cu[1:].tolist(), itertools.count(2)):
        out[:, s:e] = x[:, s:e] * k
    return out


@leave("f[2,T] cu")
def zip_with_cycle(x: Tensor, cu: Tensor) -> Tensor:
    out, signs = x.clone(), [1.0, -1.0] * 40
    for (s, e), sign in zip(zip(cu[:-1], cu[1:]), signs):
        out[:, s:e] = x[:, s:e] * sign
    return out


@leave("f[2,T] cu")
def zip_of_two_orders(x: Tensor, cu: Tensor) -> Tensor:
    out, starts, ends = x.clone(), cu[:-1].flip(0), cu[1:].flip(0)
    for s, e in zip(starts, ends):
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def chained_ranges(x: Tensor, cu: Tensor) -> Tensor:
    out, n = x.clone(), len(cu) - 1
    for i in itertools.chain(range(n), range(min(2, n))):
        out[:, cu[i] : cu[i + 1]] = out[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def unpacked_pairs(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    first, *others = [*zip(cu[:-1].tolist(), cu[1:].tolist()), (0, 0)]
    out[:, first[0] : first[1]] = 0
    for s, e in others:
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def same_document_every_time(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for _ in range(len(cu) - 1):
        out[:, cu[0] : cu[1]] = out[:, cu[0] : cu[1]].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def whole_row_every_time(x: Tensor, cu: Tensor) -> Tensor:
    for _ in range(len(cu) - 1):
        x = x.roll(-1, -1)
    return x


@leave("f[2,T] cu")
def documents_visited_twice(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for _ in range(2):
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = out[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def boundary_list_changed_by_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out, bounds = x.clone(), cu.tolist()
    for i in range(len(bounds) - 1):
        _roll(x, out, bounds[i], bounds[i + 1])
        bounds[i + 1] = min(bounds[i + 1] + 1, x.shape[1])
    return out


@leave("f[2,T] cu")
def boundary_list_edited_before(x: Tensor, cu: Tensor) -> Tensor:
    out, bounds = x.clone(), cu.tolist()
    bounds.append(x.shape[1])  # the tail becomes a document
    bounds[0] = 0
    for s, e in zip(bounds[:-1], bounds[1:]):
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def boundary_list_of_odd_entries(x: Tensor, cu: Tensor) -> Tensor:
    out, bounds = x.clone(), cu.tolist()[::2]
    for s, e in zip(bounds[:-1], bounds[1:]):
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def boundary_list_with_tail(x: Tensor, cu: Tensor) -> Tensor:
    out, bounds = x.clone(), [0, *cu.tolist()[1:], x.shape[-1]]
    for i in range(len(bounds) - 1):
        _roll(x, out, bounds[i], bounds[i + 1])
    return out


@leave("f[2,T] cu")
def lengths_as_list_accumulated(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), int(cu[0])
    for end in itertools.accumulate(cu.diff().tolist(), initial=start):
        _roll(x, out, start, end)
        start = end
    return out


@leave("f[2,T] cu")
def sum_and_max_of_lengths(x: Tensor, cu: Tensor) -> Tensor:
    lens = cu.diff().tolist()
    return x * sum(lens) + (max(lens) if lens else 0) + functools.reduce(operator.mul, lens[:2], 1)


@leave("f[2,T] cu", tail=False)
def tensor_split_at_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([p.roll(1, -1) for p in torch.tensor_split(x, cu[1:-1].tolist(), dim=-1)], -1)


@leave("f[2,T] cu", tail=False)
def first_split_part_is_special(x: Tensor, cu: Tensor) -> Tensor:
    first, *others = x.split(cu.diff().tolist(), -1)
    return torch.cat([first * 2, *[p.roll(1, -1) for p in others]], -1)


@leave("f[2,T] i[T] cu", tail=False)
def splits_of_two_rows(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    lens = cu.diff().tolist()
    parts = [a * b.flip(0) for a, b in zip(x.split(lens, -1), ids.split(lens))]
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def split_parts_against_reversed_parts(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split(cu.diff().tolist(), -1)
    return torch.cat([a + b.sum(-1, keepdim=True) for a, b in zip(parts, parts[::-1])], -1)


# ---------------------------------------------------------------- containers filled in the loop


@leave("f[2,T] i[T] cu", tail=False)
def list_of_lists(x: Tensor, ids: Tensor, cu: Tensor) -> list[Tensor]:
    outs: list[list[Tensor]] = [[], []]
    for s, e in zip(cu[:-1], cu[1:]):
        outs[0].append(x[:, s:e].roll(-1, -1))
        outs[1].append(ids[s:e].flip(0))
    return [torch.cat(o, -1) for o in outs]


@leave("f[2,T] i[T] cu", tail=False)
def dict_of_lists(x: Tensor, ids: Tensor, cu: Tensor) -> dict[str, Tensor]:
    outs: dict[str, list[Tensor]] = {"x": [], "ids": []}
    for i in range(len(cu) - 1):
        outs["x"].append(x[:, cu[i] : cu[i + 1]].roll(-1, -1))
        outs["ids"].append(ids[cu[i] : cu[i + 1]].flip(0))
    return {k: torch.cat(v, dim=-1) for k, v in outs.items()}


@leave("f[2,T] cu", tail=False)
def list_added_to(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts += [x[:, s:e].roll(-1, -1)]
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def list_extended(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.extend((x[:, s:e].flip(-1), x[:, s:e][:, :0]))
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def list_rebuilt(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts = [*parts, x[:, s:e].flip(-1)]
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def tuple_grown(x: Tensor, cu: Tensor) -> Tensor:
    parts: tuple[Tensor, ...] = ()
    for s, e in zip(cu[:-1], cu[1:]):
        parts += (x[:, s:e].roll(1, -1),)
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def deque_of_parts(x: Tensor, cu: Tensor) -> Tensor:
    parts: collections.deque[Tensor] = collections.deque()
    for s, e in zip(cu[:-1], cu[1:]):
        parts.appendleft(x[:, s:e].roll(1, -1))
    return torch.cat(tuple(parts), -1)


@leave("f[2,T] cu", tail=False)
def list_in_an_attribute(x: Tensor, cu: Tensor) -> Tensor:
    class Holder:
        def __init__(self) -> None:
            self.parts: list[Tensor] = []

        def add(self, part: Tensor) -> None:
            self.parts.append(part)

    holder = Holder()
    for s, e in zip(cu[:-1], cu[1:]):
        holder.add(x[:, s:e].roll(1, -1))
    return torch.cat(holder.parts, -1)


@leave("f[2,T] cu", tail=False)
def list_cleared_in_between(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x]
    for s, e in zip(cu[:-1], cu[1:]):
        if len(parts) > 2:
            parts.clear()
        parts.append(x[:, s:e].roll(1, -1))
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def list_with_a_last_element(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e].roll(1, -1))
    parts.append(x[:, :2])
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def list_last_element_changed(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:, s:e].roll(1, -1) for s, e in zip(cu[:-1], cu[1:])]
    parts[-1] = parts[-1] * 2
    return torch.cat(parts, -1)


@leave("f[2,T] cu", min_len=1)
def padded_batch(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[0, s:e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return pad_sequence(parts, batch_first=True) if parts else x


@leave("f[2,T] cu", tail=False)
def parts_of_parts(x: Tensor, cu: Tensor) -> Tensor:
    first = [x[:, s:e].roll(1, -1) for s, e in zip(cu[:-1], cu[1:])]
    second = [p.flip(-1) for p in first]
    third = [a + b for a, b in zip(first, second)]
    return torch.cat(third, -1)


@leave("f[2,T] cu", tail=False)
def cat_viewed_as_the_row(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:, s:e].roll(1, -1) for s, e in zip(cu[:-1], cu[1:])]
    return torch.cat(parts, -1).view(x.shape) * x


@leave("f[2,T] cu")
def count_in_a_list(x: Tensor, cu: Tensor) -> Tensor:
    out, n = x.clone(), [0]
    for s, e in zip(cu[:-1], cu[1:]):
        n[0] += 1
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out * n[0]


@leave("f[2,T] cu")
def count_in_a_dict(x: Tensor, cu: Tensor) -> tuple[Tensor, dict[str, int]]:
    out, counts = x.clone(), collections.defaultdict(int)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        counts["long" if e - s > 3 else "short"] += 1
        out[:, s:e] = x[:, s:e].flip(-1)
    return out, dict(counts)


class _Meter:
    total = 0


def _take_total() -> int:
    taken, _Meter.total = _Meter.total, 0
    return taken


@leave("f[2,T] cu", observe=_take_total)
def count_in_a_class(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        _Meter.total += 1
        out[:, s:e] = x[:, s:e].flip(-1)
    return out


@leave("f[2,T] cu")
def walrus(x: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    out, last = x.clone(), None
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s : (last := e)] = x[:, s:e].roll(-1, -1)
    return out, last


@leave("f[2,T] cu")
def walrus_in_comprehension(x: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    total = 0
    sums = [total := total + n for n in cu.diff().tolist()]
    return x * len(sums), total


@leave("f[2,T] cu")
def deleted_local(x: Tensor, cu: Tensor) -> Tensor:
    out, seg = x.clone(), None
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e].roll(-1, -1)
        out[:, s:e] = seg
        del seg
        seg = None
    return out if seg is None else x


@leave("f[2,T] cu")
def local_set_in_the_first_iteration(x: Tensor, cu: Tensor) -> Tensor:
    out, scale = x.clone(), None
    for s, e in zip(cu[:-1], cu[1:]):
        if scale is None:
            scale = x[:, s:e].numel() + 1
        out[:, s:e] = x[:, s:e] * scale
    return out


@leave("f[2,T] cu")
def closure_over_the_loop_variable(x: Tensor, cu: Tensor) -> Tensor:
    out, calls = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        calls.append(lambda: out[:, s:e].mul_(2))
    for call in calls:  # all of them see the last document
        call()
    return out


@leave("f[2,T] cu")
class BufferPerCall(nn.Module):
    """The accumulator is a buffer of the module that keeps its content between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("store", torch.zeros(2, 200))
        self.parts: list[int] = []

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        self.parts = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            self.store[:, s:e] = self.store[:, s:e] * 0.5 + x[:, s:e].detach().roll(-1, -1)
            self.parts.append(e - s)
        return self.store[:, : x.shape[1]] + x


@leave("f[2,T] cu")
class ParameterPerLayer(nn.Module):
    """A loop over layers whose number is, once, the number of documents."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), nn.ReLU(), nn.Identity()])
        self.scales = nn.ParameterList([nn.Parameter(torch.tensor(float(k + 1))) for k in range(3)])

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for k in range(len(self.layers)):
            x = self.layers[k](x) * self.scales[k]
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = x[:, s:e].roll(-1, -1)
        return out


# ---------------------------------------------------------------- iterators that are shared or resumed


@leave("f[2,T] cu")
def one_iterator_zipped_with_itself(x: Tensor, cu: Tensor) -> Tensor:
    out, it = x.clone(), iter(cu.tolist())
    for s, e in zip(it, it):  # boundaries 0 and 1, then 2 and 3
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def tensor_iterator_zipped_with_itself(x: Tensor, cu: Tensor) -> Tensor:
    out, it = x.clone(), iter(cu)
    for s, e in zip(it, it):
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def second_iterator_advanced_by_hand(x: Tensor, cu: Tensor) -> Tensor:
    out, ends = x.clone(), iter(cu[1:])
    for s in cu[:-1]:
        e = next(ends)
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def range_iterator_consumed_twice(x: Tensor, cu: Tensor) -> Tensor:
    out, docs = x.clone(), iter(range(len(cu) - 1))
    for i in docs:
        _roll(x, out, cu[i], cu[i + 1])
    for i in docs:
        out[:, cu[i] : cu[i + 1]] = 0
    return out


@leave("f[2,T] cu")
def enumerate_consumed_twice(x: Tensor, cu: Tensor) -> Tensor:
    out, docs = x.clone(), enumerate(cu[:-1])
    for i, s in docs:
        _roll(x, out, s, cu[i + 1])
    for i, s in docs:
        out[:, s : cu[i + 1]] = 0
    return out


@leave("f[2,T] cu")
def tensor_zip_consumed_twice(x: Tensor, cu: Tensor) -> Tensor:
    out, pairs = x.clone(), zip(cu[:-1], cu[1:])
    for s, e in pairs:
        _roll(x, out, s, e)
    for s, e in pairs:
        out[:, s:e] += 1
    return out


@leave("f[2,T] cu")
def iterator_resumed_after_a_break(x: Tensor, cu: Tensor) -> Tensor:
    out, pairs = x.clone(), zip(cu[:-1].tolist(), cu[1:].tolist())
    for s, e in pairs:
        out[:, s:e] = 0
        break
    for s, e in pairs:
        _roll(x, out, s, e)
    return out


@leave("f[2,T] cu")
def nested_use_of_one_iterator(x: Tensor, cu: Tensor) -> Tensor:
    out, docs = x.clone(), iter(range(len(cu) - 1))
    for i in docs:
        out[:, cu[i] : cu[i + 1]] = 0
        for j in docs:
            _roll(x, out, cu[j], cu[j + 1])
    return out


@leave("f[2,T] cu", tail=False)
def split_iterator_consumed_twice(x: Tensor, cu: Tensor) -> Tensor:
    parts = iter(x.split(cu.diff().tolist(), -1))
    moved = [p.roll(1, -1) for p in parts]
    again = [p * 2 for p in parts]
    return torch.cat(moved + again, -1)


@leave("f[2,T] cu", tail=False)
def map_consumed_twice(x: Tensor, cu: Tensor) -> Tensor:
    parts = map(lambda p: p.flip(-1), x.split(cu.diff().tolist(), -1))
    moved = list(parts)
    return torch.cat(moved + list(parts), -1)


@leave("f[2,T] cu")
def list_of_pairs_used_twice(x: Tensor, cu: Tensor) -> Tensor:
    out, pairs = x.clone(), list(zip(cu[:-1].tolist(), cu[1:].tolist()))
    for s, e in pairs:
        _roll(x, out, s, e)
    for s, e in pairs:
        out[:, s:e] = out[:, s:e].flip(-1)
    return out * len(pairs)


@leave("f[2,T] cu")
def zip_of_pairs_and_parts(x: Tensor, cu: Tensor) -> Tensor:
    out, pairs = x.clone(), zip(cu[:-1], cu[1:])
    for (s, e), row in zip(pairs, x):  # two rows: the loop ends after two documents
        out[:, s:e] = x[:, s:e] + row[:1]
    for s, e in pairs:  # and one pair more was taken from the iterator
        out[:, s:e] = 0
    return out
