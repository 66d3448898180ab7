"""Slots of a document that a mask keeps: together they are a row of their own, with boundaries of its own.

Before (`packpass.capture.masked`)::

    part = x[s:e][labels[s:e] != -100]         # masked

After::

    mask = labels != -100
    order = (~mask).argsort(stable=True)       # the slots that are kept first, in their order
    kept, cu2 = x[order], pad(cumsum(mask), (1, 0))[cu]
    part = kept[cu2[i] : cu2[i + 1]]

Not a rewrite of its own: runs before the passes that look at loops, changes no value, and leaves what it does not
recognise. Slots of several masks, or kept slots beside all, are taken apart first (`passes.kept_apart`).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import call_of, example, family_of, meaning_of, op_name
from packpass.semantics.build import NO_VALUE
from packpass.semantics.effects import effects_of, mutated_after
from packpass.semantics.pointwise import slot_by_slot
from passes.building import Builder
from passes.document_loops.boundaries import boundary_vector, check_split, summed, unchanged
from passes.document_loops.lengths import same_length
from passes.kept_apart import take_apart
from passes.kept_counts import counts_of, without
from passes.kept_put import fill, put_back, puts, write_part, written_row
from passes.loops import LoopFound, find, is_unused, only_asserted
from passes.nodes import ahead, put_instead
from passes.refused import Refused

_Bounds = tuple[fx.Node, int]
"""A document lies between entries i + k and i + k + 1 of a vector."""


def with_kept_rows(graph: fx.Graph) -> None:
    """Cut what masks keep of documents from rows of what they keep."""
    for loop in find(graph):
        for node in [n for _, body, _ in loop.iterations for n in body if n.target is operator.setitem]:
            fill(graph, node)
        picked = [n for _, body, _ in loop.iterations for n in body if _picks(n)]
        for node in picked:
            _unless_used(graph, node)
        for node in sorted(loop.nodes, reverse=True) if picked else ():
            if _cuts(node) and is_unused(node):  # by an iteration that picks nothing
                for unused in (*only_asserted(node), node):
                    graph.erase_node(unused)
    for begin in [loop.iterations[0][0] for loop in find(graph)]:
        _apart(graph, begin)
    for loop in find(graph):
        picked = [n for _, body, _ in loop.iterations for n in body if _picks(n)]
        if picked:
            _Kept(graph, loop, picked).cut()


def _picks(node: fx.Node) -> bool:
    """``part[mask]``, where the mask is a document's and not the row of a batch."""
    return node.target is markers.MASKED and node.args[2] is None


def _unless_used(graph: fx.Graph, node: fx.Node) -> None:
    """Places of slots (`packpass.capture.masked`) of which only the mask is used."""
    checks = only_asserted(node)
    if set(node.users) <= set(checks):
        places: Any = node.args[0]
        for unused in (*checks, node, places, *places.all_input_nodes):
            if not unused.users and (unused not in (places, *places.all_input_nodes) or op_name(places) == "arange"):
                graph.erase_node(unused)


def _mask_of(node: fx.Node) -> fx.Node:
    mask = node.args[1]
    assert isinstance(mask, fx.Node)
    return mask


def _apart(graph: fx.Graph, begin: fx.Node) -> None:
    """A loop for each mask of a loop, and one for all slots."""
    while True:
        loop = next(loop for loop in find(graph) if loop.iterations[0][0] is begin)
        kinds = [_by_mask(body) for _, body, _ in loop.iterations]
        if not kinds[0] or any(len(kind) != len(kinds[0]) for kind in kinds):
            return
        picked = [node for kind in kinds for nodes in kind for node in nodes]
        counts = [user for node in picked for user in counts_of(_mask_of(node)) if user in loop.nodes]
        known = dict.fromkeys((*picked, *counts, *puts(loop.nodes)))
        gone = without(known, loop.nodes)
        alone = gone is not None and not any(_cuts(node) for node in loop.nodes - gone - set(known))
        if len(kinds[0]) == 1 and alone:
            return
        if not any(take_apart(graph, loop, [kind[k] for kind in kinds]) for k in range(len(kinds[0]))):
            return


def _cuts(node: fx.Node) -> bool:
    """Does a call of a body cut slots out of a row?"""
    index = node.args[1] if op_name(node) in ("getitem", "setitem") else None
    entries = index if isinstance(index, tuple) else (index,)
    sliced = any(isinstance(e, slice) and isinstance(e.start, fx.Node) | isinstance(e.stop, fx.Node) for e in entries)
    return sliced or node.target in (markers.SPLIT_GET, markers.SEGMENT)


def _by_mask(body: tuple[fx.Node, ...]) -> list[list[fx.Node]]:
    """What masks of a body pick, by the mask."""
    made: dict[fx.Node, Any] = {}
    for node in body:
        args = fx.map_arg((node.args, dict(node.kwargs)), lambda n: made.get(n, n))
        made[node] = made.setdefault((node.op, node.target, repr(args)), node)  # type: ignore[call-overload]
    kinds: dict[Any, list[fx.Node]] = {}
    for node in filter(_picks, body):
        kinds.setdefault(made.get(_mask_of(node), _mask_of(node)), []).append(node)
    return list(kinds.values())


class _Kept:
    def __init__(self, graph: fx.Graph, loop: LoopFound, picked: list[fx.Node]) -> None:
        self.graph, self.loop, self.picked = graph, loop, picked
        self.begin, self.last = loop.iterations[0][0], loop.iterations[-1][2]
        self.inside = loop.nodes
        self.build = Builder(graph, self.begin, graph.find_nodes(op="placeholder")[0])
        self.builds = [self.build]
        self.bounds: set[_Bounds] = set()
        self.rows: dict[Any, fx.Node] = {}
        self.orders: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}

    def cut(self) -> None:
        """All that is picked in the loop, or nothing of it."""
        written = puts(node for _, body, _ in self.loop.iterations for node in body)
        try:
            counts = list(dict.fromkeys(user for mask in self._masks() for user in counts_of(mask)))
            gone = without(dict.fromkeys((*self.picked, *counts, *written)), self.inside)
            if gone is None:
                raise Refused("no-rule", "slots that a mask keeps are used beside others")
            new = {node: self._part(node) for node in self.picked}
            new |= {node: self._count(node) for node in counts}
            for node in written:
                self._put(node)
        except Refused:
            for build in reversed(self.builds):
                build.undo()
            return
        for node, made in new.items():
            put_instead(node, made)
        for node in sorted({*gone, *new, *written}, reverse=True):
            self.graph.erase_node(node)

    def _masks(self) -> Iterator[fx.Node]:
        """The masks by which slots are picked, wherever they are made: a branch may go by them that picks nothing."""
        keys = {self._key(_mask_of(node)) for node in self.picked if _mask_of(node) in self.inside}
        for node in sorted(self.inside):
            fake = example(node)
            if isinstance(fake, torch.Tensor) and fake.dtype is torch.bool and fake.dim() == 1 and counts_of(node):
                with contextlib.suppress(Refused):  # another mask, made of what has no row
                    if self._key(node) in keys:
                        yield node

    # === Rows =================================================================================================

    def _whole(self, node: Any) -> fx.Node:
        """The row of all slots, of which a value of the body is the document's."""
        if not isinstance(node, fx.Node) or node not in self.inside or effects_of(node).writes:
            raise Refused("no-rule", "a mask, or what it picks from, is not cut from a row", node)
        key = self._key(node)
        if key not in self.rows:
            if node.target is markers.SPLIT_GET:
                self.rows[key] = self._split(node)
            elif node.target is markers.SEGMENT:
                self.rows[key] = self._segment(node)
            elif op_name(node) == "getitem":
                source, index = self._cut(node)
                self.rows[key] = source if index is None else self.build.call(operator.getitem, source, index)
            elif op_name(node) == "arange":
                self.rows[key] = self._numbers(node)
            else:
                self.rows[key] = self._computed(node)
        return self.rows[key]

    def _key(self, node: fx.Node) -> Any:
        if node.target is markers.SPLIT_GET:
            return node.args[0], "split", node.args[1]
        if node.target is markers.SEGMENT:
            return node.args[0], "segment", node.args[1]
        if op_name(node) == "getitem":
            return (*self._cut(node)[:1], repr(self._cut(node)[1]))
        inputs = tuple(self._key(n) if n in self.inside else n for n in node.all_input_nodes)
        return node.op, node.target, repr(fx.map_arg(node.args, lambda n: None)), repr(node.kwargs), inputs

    def _split(self, node: fx.Node) -> fx.Node:
        """The tensor that is split by lengths, which add up to its size."""
        x, lengths = self._row_and_vector(node)
        if ("ends", lengths) not in self.rows:
            self.rows["ends", lengths] = summed(self.build.call, lengths)
            check_split(self.build.call, x, lengths, 0)
        self.bounds.add((self.rows["ends", lengths], 0))
        return x

    def _segment(self, node: fx.Node) -> fx.Node:
        """The row that a pass before has made, of which this is the document."""
        row, cu = self._row_and_vector(node)
        self.bounds.add((cu, 0))
        return row

    def _row_and_vector(self, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """What a marker takes the document from, along its first dimension, and the lengths or boundaries by which."""
        row, vector, index, dim = node.args
        known = isinstance(row, fx.Node) and isinstance(vector, fx.Node) and dim in (0, -example(row).dim())
        if not known or {row, vector} & self.inside or index not in [begin for begin, _, _ in self.loop.iterations]:
            raise Refused("no-rule", "a mask, or what it picks from, is not cut from a row", node)
        assert isinstance(row, fx.Node) and isinstance(vector, fx.Node)
        if mutated_after(self.graph, row, self.begin, self.last) or not unchanged(vector, vector.next):
            raise Refused("no-rule", "the row that a mask picks from is written by the loop", node)
        return row, vector

    def _cut(self, node: fx.Node, written: bool = False) -> tuple[fx.Node, Any]:
        """The tensor, and the index of the row in it: None for all of it. ``written``: may the loop write it?"""
        source, index = node.args
        entries = index if isinstance(index, tuple) else (index,)
        cuts = [e for e in entries if isinstance(e, slice) and e != slice(None)]
        others = [e for e in entries if e not in cuts]
        at = entries.index(cuts[0]) if cuts else -1
        plain = all(type(e) is int for e in entries[:at])
        plain = plain and all(type(e) is int or e == slice(None) for e in entries[at + 1 :])
        if not isinstance(source, fx.Node) or len(cuts) != 1 or not plain:
            raise Refused("no-rule", "a mask, or what it picks from, is not cut from a row", node)
        source = self._outside(source)
        first, second = self._entry(cuts[0].start, node), self._entry(cuts[0].stop, node)
        if cuts[0].step not in (None, 1) or first[0] is not second[0] or second[1] != first[1] + 1:
            raise Refused("no-rule", "a mask does not pick from one document", node)
        if not written and mutated_after(self.graph, source, self.begin, self.last):
            raise Refused("no-rule", "the row that a mask picks from is written by the loop", node)
        self.bounds.add(first)
        return source, tuple(slice(None) if e is cuts[0] else e for e in entries) if others else None

    def _outside(self, node: fx.Node) -> fx.Node:
        """A tensor of the program, or a view of one that all documents share."""
        if node not in self.inside:
            return node
        constant = node.all_input_nodes == list(node.args[:1]) and not node.kwargs
        if not constant or family_of(node) not in ("views", "indexing") or effects_of(node).writes:
            raise Refused("no-rule", "a mask, or what it picks from, is not cut from a row", node)
        key = ("view", node.op, node.target, self._outside(node.args[0]), repr(node.args[1:]))  # type: ignore[arg-type]
        if key not in self.rows:
            self.rows[key] = self.build.call(node.target, key[3], *node.args[1:], method=node.op == "call_method")
        return self.rows[key]

    def _entry(self, number: Any, node: fx.Node) -> _Bounds:
        """Which entry of which vector a bound of a slice is."""
        picked: Any = number.args[0] if isinstance(number, fx.Node) and op_name(number) == "item" else number
        at = picked.args[1:] if isinstance(picked, fx.Node) and picked.target in (torch.select, "select") else ()
        if len(at) != 2 or at[0] != 0 or not isinstance(picked.args[0], fx.Node) or picked.args[0] in self.inside:
            raise Refused("no-rule", "a mask picks between numbers that are no entries of boundaries", node)
        begin = next(b for b, body, end in self.loop.iterations if picked in body)
        first = ahead(example(at[1]), example(begin))
        root, offset, lengths = boundary_vector(picked.args[0])
        if first is None or lengths or not unchanged(root, root.next) or first + offset < 0:
            raise Refused("no-rule", "a mask picks between numbers that are no entries of boundaries", node)
        return root, first + offset

    def _computed(self, node: fx.Node) -> fx.Node:
        """What is computed slot by slot, of the whole rows."""
        call, meaning = call_of(node), meaning_of(call_of(node))
        tensors = [n for n in node.all_input_nodes if isinstance(example(n), torch.Tensor)]
        known = call is not None and meaning is not None and slot_by_slot(node) and not call.in_place
        if not known or meaning is None or meaning.traits.random or meaning.traits.raises:
            raise Refused("no-rule", "a mask is not made slot by slot", node)
        if node.all_input_nodes != tensors or not all(self._beside(n, example(node)) for n in tensors):
            raise Refused("no-rule", "a mask is not made of rows alone", node)
        args = fx.map_arg(node.args, lambda n: self._whole(n) if n in self.inside else n)
        kwargs = fx.map_arg(dict(node.kwargs), lambda n: self._whole(n) if n in self.inside else n)
        return self.build.call(node.target, *args, method=node.op == "call_method", **kwargs)

    def _numbers(self, node: fx.Node) -> fx.Node:
        """``arange(n)`` of a document of n slots, for all documents."""
        picked = next((n for n in self.picked if n.args[0] is node), None)
        mask = None if picked is None else _mask_of(picked)
        if len(node.args) != 1 or mask is None or not same_length(example(node).shape[0], example(mask).shape[0]):
            raise Refused("no-rule", "what a mask picks from is not cut from a row", node)
        if example(node).dtype is not torch.int64:
            raise Refused("no-rule", "numbers of slots of this dtype have no rule", node)
        bounds, size = self._inside(self._whole(mask))
        return self.build.call(torch.ops.packpass.position_ids.default, bounds, size)

    def _beside(self, node: fx.Node, result: Any) -> bool:
        """Does an operand of a call have a slot for every slot of the result, or is it one number from outside?"""
        fake = example(node)
        if node not in self.inside:
            return fake.dim() == 0 and not mutated_after(self.graph, node, self.begin, self.last)
        return fake.dim() == result.dim() and same_length(fake.shape[0], result.shape[0])

    # === Parts ================================================================================================

    def _ordered(self, mask: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The slots of a row, those that are kept first, and where the parts of documents end among these."""
        if mask not in self.orders:
            call = self.build.call
            order = call(operator.getitem, call("sort", call(torch.logical_not, mask), method=True, stable=True), 1)
            sums = call(torch.nn.functional.pad, call(torch.cumsum, mask, 0), (1, 0))
            self.orders[mask] = order, call(torch.index_select, sums, 0, self._inside(mask)[0])
        return self.orders[mask]

    def _inside(self, mask: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The boundaries, none of which is beyond the row of a mask, and the length of that row."""
        if len(self.bounds) != 1:
            raise Refused("two-boundaries", "a mask picks from parts of several boundaries", mask)
        ((root, offset),) = self.bounds
        call = self.build.call
        if ("inside", mask) not in self.rows:
            bounds = call(operator.getitem, root, slice(offset, None)) if offset else root
            fits = call(torch.all, call(operator.ge, bounds, 0))
            call(torch._assert_async, fits, "packpass: boundaries are numbers of 0 or more", fake=NO_VALUE)
            self.rows["size", mask] = call(torch.ops.aten.sym_size.int, mask, 0)
            self.rows["inside", mask] = call(torch.clamp, bounds, 0, self.rows["size", mask])
        return self.rows["inside", mask], self.rows["size", mask]

    def _part(self, node: fx.Node) -> fx.Node:
        mask = self._whole(node.args[1])  # whose boundaries the row may be made of
        row = self._whole(node.args[0])
        if not same_length(example(row).shape[0], example(mask).shape[0]) or example(mask).dim() != 1:
            raise Refused("row-lengths", "a mask is not as long as the row that it picks from", node)
        order, cu = self._ordered(mask)
        if ("kept", row, mask) not in self.rows:
            self.rows["kept", row, mask] = self.build.call(torch.index_select, row, 0, order)
        build, index = self._at(node)
        part = build.call(markers.SEGMENT, self.rows["kept", row, mask], cu, index, 0, fake=example(node))
        return build.call("clone", part, method=True, fake=example(node))  # what a mask picks is a copy

    def _put(self, node: fx.Node) -> None:
        """A write to the slots that are kept."""
        part, row = written_row(self.loop, node)
        mask = self._whole(node.args[1])
        source, index = self._cut(part, written=True)
        if source is not row or index is not None or not same_length(example(row).shape[0], example(mask).shape[0]):
            raise Refused("no-rule", "slots that a mask keeps are written along another dimension", node)
        order, cu = self._ordered(mask)
        if ("put", row, mask) not in self.rows:
            if any(key[:2] == ("put", row) for key in self.rows if isinstance(key, tuple)):
                raise Refused("aliasing", "slots of a row are written by two masks", node)
            kept = self.rows["put", row, mask] = self.build.call(torch.index_select, row, 0, order)
            self.builds.append(put_back(self.loop, row, kept, order))
        build, at = self._at(node)
        write_part(build, self.rows["put", row, mask], cu, at, node)

    def _count(self, node: fx.Node) -> fx.Node:
        """How many slots are kept of a document, or what is asked of that."""
        given: Any = node.args[0]
        mask = self._whole(given if example(given).dtype is torch.bool else given.args[0])
        _, cu = self._ordered(mask)
        if ("lengths", mask) not in self.rows:
            self.rows["lengths", mask] = self.build.call(torch.diff, cu)
        build, index = self._at(node)
        count = build.call(torch.select, self.rows["lengths", mask], 0, index)
        if op_name(node) == "all":
            bounds = self._inside(mask)[0]
            ends = [build.call(torch.select, bounds, 0, at) for at in (index, build.call(operator.add, index, 1))]
            return build.call(operator.eq, count, build.call(operator.sub, ends[1], ends[0]))
        if op_name(node) == "any":
            return build.call(operator.gt, count, 0)
        same = example(count).dtype is example(node).dtype
        return count if same else build.call("to", count, example(node).dtype, method=True)

    def _at(self, node: fx.Node) -> tuple[Builder, fx.Node]:
        self.builds.append(Builder(self.graph, node, self.begin.graph.find_nodes(op="placeholder")[0]))
        return self.builds[-1], next(begin for begin, body, _ in self.loop.iterations if node in body)
