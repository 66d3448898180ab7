"""Entries of a tensor from outside the loop that add up what documents give: ``sums[0] += f(doc)``.

Before::

    sums[0] += x[s:e].sum()
    counts[i + 1 :] -= (~keep[s:e]).sum()

After: each document's share is in a list, as if it had been appended to one, and behind the loop ::

    sums[0] += stack(shares).sum(0)
    counts -= cat([zero, stack(others).cumsum(0)])[numbers of the documents that have ended]

Nobody in the loop looks at the tensor otherwise, so that no document needs what others left there. (Sums of floating
point numbers are taken in another order than eager takes them.) Not a rewrite of its own: runs before the passes that
look at loops, and leaves what it does not recognise.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, is_tensor, storage
from packpass.semantics.added_entries import AddedEntry, added_entry, is_plain, is_to_the_end
from packpass.semantics.build import NO_VALUE
from packpass.semantics.effects import mutated_after, records_gradients
from passes.building import Builder
from passes.loops import LoopFound, find
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class _Added:
    """What one traced iteration adds to an entry."""

    by: AddedEntry
    ahead: int | None
    """``total[i + ahead :]`` for the document with the number ``i``; None where it is not that."""
    at: fx.Node | None
    """``total[at]``, a number of the document's own; None where the index is the same for all."""

    @property
    def form(self) -> tuple[Any, ...]:
        """What must be the same in all iterations."""
        same = repr(self.by.index) if self.ahead is None and self.at is None else None
        return (self.by.total, same, self.ahead, self.at is None, self.by.less)


def with_entry_totals(graph: fx.Graph) -> None:
    """Put what documents add to such entries into lists, and add it up behind the loop."""
    loops = find(graph)
    outer = [loop for loop in loops if any(n.target is markers.LOOP_BEGIN for _, b, _ in loop.iterations for n in b)]
    nested = {node for loop in outer for node in loop.nodes}
    for loop in loops:
        begins = {begin for begin, _, _ in loop.iterations}
        if loop not in outer and not begins & nested:
            _collect(graph, loop)


def _collect(graph: fx.Graph, loop: LoopFound) -> None:
    every = [[one for node in body if (one := _added(loop, begin, node, end))] for begin, body, end in loop.iterations]
    if not any(every) or any(node.target in markers.LOOP_SKIP for node in loop.nodes):
        return
    seen = set[Any]().union(*(_seen(body, found) for (_, body, _), found in zip(loop.iterations, every, strict=True)))
    numbered: list[dict[Any, _Added]] = [{} for _ in every]
    for found, known in zip(every, numbered, strict=True):
        for added in found:
            if storage(added.by.total) not in seen:
                known[added.form, sum(form == added.form for form, _ in known)] = added
    for key in dict.fromkeys(key for known in numbered for key in known):
        same = [known.get(key) for known in numbered]  # an iteration that goes another way may add nothing
        forms = {_form(added.by.share) for added in same if added is not None}
        if len(forms) == 1 and None not in forms:
            _add_up(graph, loop, same)


def _seen(body: tuple[fx.Node, ...], found: list[_Added]) -> set[Any]:
    """The memory that a body looks at in other ways."""
    known = {node for added in found for node in added.by.nodes}
    seen = {storage(given) for node in body if node not in known for given in node.all_input_nodes}
    return seen | {storage(added.by.share) for added in found if isinstance(added.by.share, fx.Node)}


def _added(loop: LoopFound, begin: fx.Node, node: fx.Node, end: fx.Node) -> _Added | None:
    """What begins with this look at an entry."""
    by = added_entry(node)
    if by is None:
        return None
    inside = loop.nodes
    if by.total in inside or any(n not in inside for n in by.nodes):
        return None
    if by.total.op == "placeholder" and example(by.total).requires_grad:
        return None  # whether there is a document to write to a leaf is for eager to say
    ahead, at = _ahead(by.index, begin), _own_place(loop, by.index, begin)
    if ahead is None and at is None and not is_plain(by.index):
        return None
    if not _fits(example(by.total), example(node), by.share, ahead, at):
        return None
    if is_tensor(by.share) and mutated_after(node.graph, by.share, by.nodes[1], end):
        return None  # what was added is what it was then
    same_mode = records_gradients(by.nodes[1]) == records_gradients(loop.iterations[0][0])
    return _Added(by, ahead, at) if same_mode else None


def _ahead(index: Any, begin: fx.Node) -> int | None:
    """How far the slice of all entries from a document's number on begins ahead of that."""
    if not is_to_the_end(index):
        return None
    start, number = (example(n) if isinstance(n, fx.Node) else None for n in (index.start, begin))
    if not isinstance(start, torch.SymInt) or not isinstance(number, torch.SymInt):
        return None
    ahead = start.node.expr - number.node.expr
    return int(ahead) if ahead.is_Integer and ahead >= 0 else None


def _own_place(loop: LoopFound, index: Any, begin: fx.Node) -> fx.Node | None:
    """The number of the document's own that is the index, if it is not its number among the documents."""
    if not isinstance(index, fx.Node) or index not in loop.nodes:
        return None
    place, number = example(index), example(begin)
    if isinstance(place, torch.SymInt):
        return None if (place.node.expr - number.node.expr).is_Integer else index
    whole = isinstance(place, torch.Tensor) and not place.dim() and place.dtype in (torch.int64, torch.int32)
    return index if whole and not mutated_after(index.graph, index, index, loop.iterations[-1][2]) else None


def _form(share: Any) -> tuple[tuple[int, ...], torch.dtype | None] | None:
    """The sizes of what is added, and the dtype of a tensor; None if the sizes are not numbers of the program."""
    if not is_tensor(share):
        return (), None
    fake = example(share)
    return (tuple(fake.shape), fake.dtype) if all(type(size) is int for size in fake.shape) else None


def _fits(total: Any, entry: torch.Tensor, share: Any, ahead: int | None, at: fx.Node | None) -> bool:
    """Is it the same whether the shares are added one by one or together?"""
    value = example(share) if isinstance(share, fx.Node) else share
    if total.dtype is torch.bool or total.is_complex():
        return False
    size = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
    whole = tuple(entry.shape) if ahead is None else tuple(total.shape[1:])
    if size != whole and (size != () or at is not None):
        return False
    if isinstance(value, torch.Tensor):
        if not value.dtype.is_floating_point and not value.dtype.is_complex:
            return True  # integers that are cut off are cut off alike
        return torch.promote_types(value.dtype, total.dtype) == total.dtype
    if type(value) is float:
        return bool(total.dtype.is_floating_point)
    return isinstance(value, torch.SymInt) or type(value) is int


def _add_up(graph: fx.Graph, loop: LoopFound, same: list[_Added | None]) -> None:
    """Collect the shares, and add their sum behind the loop."""
    found = [added for added in same if added is not None]
    total = found[0].by.total
    inside = [Builder(graph, end, total) for _, _, end in loop.iterations]
    behind = Builder(graph, loop.iterations[-1][2].next, total)
    try:
        shares = _shares(inside, found[0], same)
        places = _places(inside, found[0], same)
        _write(behind, loop, found[0], shares, places)
    except Refused:  # the loop stays as it is written
        for build in (behind, *inside):
            build.undo()
        return
    for node in sorted((node for added in found for node in added.by.nodes), reverse=True):
        graph.erase_node(node)


def _shares(builders: list[Builder], one: _Added, same: list[_Added | None]) -> list[Any]:
    """What each iteration adds, as a tensor; 0 where it adds nothing."""
    total, (sizes, dtype) = example(one.by.total), _form(one.by.share) or ((), None)
    exact = total.dtype if isinstance(one.by.share, float) else torch.int64 if dtype is None else dtype
    shares: list[Any] = [0 if added is None else added.by.share for added in same]
    return [
        share if is_tensor(share) else build.call(torch.full, sizes, share, dtype=exact, device=total.device)
        for build, share in zip(builders, shares, strict=True)
    ]


def _places(builders: list[Builder], one: _Added, same: list[_Added | None]) -> list[Any]:
    """Where each iteration adds it, as a tensor; none where the place is the same for all documents."""
    if one.at is None:
        return []
    device, places = example(one.by.total).device, [0 if added is None else added.at for added in same]
    return [
        at if is_tensor(at) else build.call(torch.full, (), at, dtype=torch.int64, device=device)
        for build, at in zip(builders, places, strict=True)
    ]


def _write(build: Builder, loop: LoopFound, one: _Added, shares: list[Any], places: list[Any]) -> None:
    """Add all of it."""
    total, dtype, less = one.by.total, example(one.by.total).dtype, one.by.less
    every, add = _stacked(build, loop, shares), operator.isub if less else operator.iadd
    if places:
        where = _wrapped(build, _stacked(build, loop, places), total)
        every = build.call("to", every, dtype, method=True)
        build.call("index_add_", total, 0, where, every, method=True, alpha=-1 if less else 1)
    elif one.ahead is not None:
        build.call(add, total, _by_place(build, total, every, one.ahead, loop.length))
    else:
        entry = build.call(operator.getitem, total, one.by.index)
        added_up = build.call(add, entry, build.call(torch.sum, every, 0, dtype=dtype))
        build.call(operator.setitem, total, one.by.index, added_up, fake=NO_VALUE)


def _stacked(build: Builder, loop: LoopFound, values: list[Any]) -> fx.Node:
    """One entry per document."""
    collected = build.call(markers.LIST_COLLECT, *markers.collected(values, loop.id))
    return build.call(markers.LIST_STACK, collected, 0, loop.length)


def _wrapped(build: Builder, places: fx.Node, total: fx.Node) -> fx.Node:
    """Places that are counted from the end, from the beginning."""
    places = build.call("to", places, torch.int64, method=True)
    size = build.call(torch.ops.aten.sym_size.int, total, 0)
    return build.call(torch.where, build.call(torch.lt, places, 0), build.call(torch.add, places, size), places)


def _by_place(build: Builder, total: fx.Node, every: fx.Node, ahead: int, length: Any) -> fx.Node:
    """For every entry of ``total``, the sum of what the documents add whose number is at least ``ahead`` smaller."""
    like, rest = example(total), tuple(example(every).shape[1:])
    sums = build.call(torch.cumsum, every, 0, dtype=like.dtype)
    none = build.call(torch.zeros, (1, *rest), dtype=like.dtype, device=like.device)
    sums = build.call(torch.cat, (none, sums))
    size = build.call(torch.ops.aten.sym_size.int, total, 0)
    ended = build.call(torch.sub, build.call(torch.arange, size, device=like.device), ahead - 1)
    found = build.call(torch.index_select, sums, 0, build.call(torch.clamp, ended, 0, length))
    for _ in range(like.dim() - 1 - len(rest)):
        found = build.call(torch.unsqueeze, found, -1)
    return found
