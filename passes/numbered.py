"""Slots that carry the number of their document: what a loop over these numbers picks is a part of the sorted row.

Before (`packpass.capture.masked`)::

    for i in ids.unique():                     # or range(int(ids.max()) + 1)
        y[ids == i] = f(x[ids == i])           # masked, masked_put

After::

    order = ids.argsort(stable=True)
    xs, ys, cu = x[order], y[order], ...       # where each number begins among the sorted ones
    ...                                        # the loop, over documents of these rows
    y[order] = ys

A stable order keeps the slots of every document in their own, so that this is the same wherever documents lie. Not a
rewrite of its own: runs before the passes that look at loops, changes no value, and leaves what it does not recognise.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import call_of, example, is_tensor, op_name, storage
from packpass.semantics.build import NO_VALUE
from packpass.semantics.effects import effects_of, mutated_after
from packpass.semantics.memory import copied
from passes.building import Builder
from passes.document_loops.lengths import same_length
from passes.loops import LoopFound, find
from passes.nodes import ahead, put_instead
from passes.refused import Refused

_PICK = (markers.MASKED, markers.MASKED_PUT)
_AND = ("logical_and", "bitwise_and")


def with_sorted_rows(graph: fx.Graph) -> None:
    """Cut what loops pick by the numbers of documents from sorted rows."""
    for loop in find(graph):
        _rows_in_front(graph, loop)
        _take_masks_apart(graph, loop)
    for loop in find(graph):
        masks = [_picked_by(node, loop) for node in loop.nodes]
        numbers = {_number_of(mask, loop) for mask in masks if mask is not None}
        if len(numbers) == 1 and (number := numbers.pop()) is not None:
            _Sorted(graph, loop, number).cut()


def _rows_in_front(graph: fx.Graph, loop: LoopFound) -> None:
    """``coords[:, 0] == i``: the column is the same for all documents."""
    front: dict[Any, fx.Node] = {}
    for mask in [node for _, body, _ in loop.iterations for node in body if op_name(node) == "eq"]:
        for row, number in (mask.args, mask.args[::-1]) if len(mask.args) == 2 else ():
            if _through(number, loop) is None or not isinstance(row, fx.Node) or row not in loop.nodes:
                continue
            try:
                mask.replace_input_with(row, _Front(graph, loop, front).of(row))
            except Refused:
                continue


def _take_masks_apart(graph: fx.Graph, loop: LoopFound) -> None:
    """``x[(ids == i) & mask]`` is what the document's part of the mask keeps of its part of ``x``, and ``((ids == i) &
    mask).sum()`` the sum of that part."""
    front: dict[Any, fx.Node] = {}
    for both in [node for _, body, _ in loop.iterations for node in body if op_name(node) in _AND]:
        picks = [user for user in both.users if user.target is markers.MASKED and user.args[1] is both]
        others = [user for user in both.users if user not in picks]
        plain = all(op_name(user) in ("sum", "any") and len(user.args) == 1 and not user.kwargs for user in others)
        if not plain or not picks or any(pick.args[2] is not None for pick in picks):
            continue
        try:
            found = _document_and_more(graph, both, loop, front)
        except Refused:
            continue
        own = Builder(graph, both, both).call(markers.MASKED, found[1], found[0], None, None)
        for user in picks:
            part = Builder(graph, user, both).call(markers.MASKED, user.args[0], found[0], None, None)
            user.args = (part, own, None, None)
        for user in others:
            user.args = (own,)
        graph.erase_node(both)


def _document_and_more(
    graph: fx.Graph, both: fx.Node, loop: LoopFound, front: dict[Any, fx.Node]
) -> tuple[fx.Node, fx.Node]:
    """The mask of a document's slots, and that of others, made in front of the loop once for all iterations; raises
    `Refused`."""
    sides = _sides(both, loop)
    documents = [side for side in sides if _number_of(side, loop) is not None]
    if len(documents) != 1:
        raise Refused("no-rule", "a mask is not made of that of a document and of others", both)
    build = _Front(graph, loop, front)
    first, *more = [build.of(side) for side in sides if side is not documents[0]]
    for mask in (first, *more):
        fake, ids = example(mask), example(_number_of(documents[0], loop)[0])  # type: ignore[index]
        if fake.dtype is not torch.bool or fake.dim() != 1 or not same_length(fake.shape[0], ids.shape[0]):
            raise Refused("no-rule", "a mask has not a slot for every number", both)
    for mask in more:
        first = build.call("call_function", torch.logical_and, (first, mask), {})
    return documents[0], first


def _sides(both: fx.Node, loop: LoopFound) -> list[fx.Node]:
    """The masks that hold together where this one does."""
    if op_name(both) not in _AND or both not in loop.nodes or len(both.args) != 2 or both.kwargs:
        return [both]
    if not all(map(is_tensor, both.args)):
        raise Refused("no-rule", "a mask is made of a number", both)
    return [mask for side in both.args for mask in _sides(side, loop)]  # type: ignore[arg-type]


class _Front:
    """Values of the body that are the same for all documents, made in front of the loop."""

    def __init__(self, graph: fx.Graph, loop: LoopFound, made: dict[Any, fx.Node]) -> None:
        self.graph, self.loop, self.made = graph, loop, made
        self.begin, self.last = loop.iterations[0][0], loop.iterations[-1][2]

    def of(self, node: fx.Node) -> fx.Node:
        """Raises `Refused` for what documents have of their own."""
        if node not in self.loop.nodes:
            if is_tensor(node) and mutated_after(self.graph, node, self.begin, self.last):
                raise Refused("no-rule", "what a mask is made of is written by the loop", node)
            return node
        if node in [begin for begin, _, _ in self.loop.iterations] or not effects_of(node).pure:
            raise Refused("no-rule", "a mask is made of something that documents have of their own", node)
        if is_tensor(node) and mutated_after(self.graph, node, node.next, self.last):
            raise Refused("no-rule", "what a mask is made of is written by the loop", node)
        given = {n: self.of(n) for n in node.all_input_nodes}
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: given[n])
        return self.call(node.op, node.target, args, kwargs)

    def call(self, op: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        key = (op, target, repr(args), repr(kwargs))
        if key not in self.made:
            build = Builder(self.graph, self.begin, self.begin)
            self.made[key] = build.call(target, *args, method=op == "call_method", **kwargs)
        return self.made[key]


def _picked_by(node: fx.Node, loop: LoopFound) -> fx.Node | None:
    """The mask of the slots of a row that a node of the loop reads or writes; None for those of a part."""
    mask: Any = node.args[1] if node.target in (*_PICK, operator.setitem) else None
    is_mask = isinstance(mask, fx.Node) and isinstance(example(mask), torch.Tensor)
    of_row = is_mask and mask in loop.nodes and mask.target is not markers.MASKED
    return mask if of_row and example(mask).dtype is torch.bool else None


_Number = tuple[fx.Node, Any]
"""The row of numbers, and those that the loop goes through: a vector, or the first of consecutive ones."""


def _number_of(mask: fx.Node, loop: LoopFound) -> _Number | None:
    """``ids == i``: the row, and what ``i`` goes through."""
    call = call_of(mask) if op_name(mask) == "eq" else None
    if call is None or len(mask.args) != 2 or mask.kwargs:
        return None
    for ids, number in (mask.args, mask.args[::-1]):
        through = _through(number, loop)
        if through is None or not isinstance(ids, fx.Node) or ids in loop.nodes:
            continue
        row = example(ids)
        known = isinstance(row, torch.Tensor) and row.dim() == 1 and row.dtype in (torch.int32, torch.int64)
        if known and not mutated_after(mask.graph, mask, mask.next, loop.iterations[-1][2]):
            return ids, through
    return None


def _through(number: Any, loop: LoopFound) -> Any:
    """What a number of the body goes through, see `_Number`; None if it is another."""
    if not isinstance(number, fx.Node) or number not in loop.nodes:
        return None
    begins = [begin for begin, _, _ in loop.iterations]
    index = next(begin for begin, body, end in loop.iterations if number in (begin, *body, end))
    first = ahead(example(number), example(index))
    if first is not None:
        return first
    if op_name(number) == "item":
        number = number.args[0]
    at_index = number.target in (torch.select, "select") and number.args[1:2] == (0,) and number.args[2] in begins
    vector = number.args[0] if at_index else None
    if not isinstance(vector, fx.Node) or vector in loop.nodes:
        return None
    source = copied(vector)
    if source is None or example(source).dtype is not example(vector).dtype:
        return vector
    changed = mutated_after(source.graph, source, vector, loop.iterations[-1][2])
    return vector if changed or mutated_after(vector.graph, vector, vector.next) else source


def _all_in_order(vector: fx.Node, ids: fx.Node) -> bool:
    """Does a vector hold every number of the row once, in their order?"""
    made = vector.args[0] if vector.target is operator.getitem and vector.args[1] == 0 else vector
    if not isinstance(made, fx.Node) or op_name(made) != "unique" or made.args != (ids,):
        return False
    return set(made.kwargs) <= {"sorted", "return_counts", "return_inverse"} and made.kwargs.get("sorted", True) is True


class _Sorted:
    """A loop that is made to go over documents of sorted rows."""

    def __init__(self, graph: fx.Graph, loop: LoopFound, number: _Number) -> None:
        self.graph, self.loop, (self.ids, self.through) = graph, loop, number
        self.begin, self.last = loop.iterations[0][0], loop.iterations[-1][2]
        self.build = Builder(graph, self.begin, self.ids)
        self.inside_builds: list[Builder] = []
        self.inside = loop.nodes
        self.rows: dict[fx.Node, fx.Node] = {}
        self.lengths: fx.Node | None = None

    def cut(self) -> None:
        nodes = [node for node in self.graph.nodes if node in self.inside and _picked_by(node, self.loop) is not None]
        if not self._may_be_cut(nodes):
            return
        try:
            self._sort()
            changed = [(node, self._instead(node)) for node in nodes]
            written = {node.args[0] for node in nodes if node.target is not markers.MASKED}
            changed += [(node, self._count(node)) for node in self._sums(nodes)]
            self._put_back(sorted(written))
        except Refused:
            for build in (*reversed(self.inside_builds), self.build):
                build.undo()
            return
        for node, new in changed:
            put_instead(node, new)
            self.graph.erase_node(node)

    def _may_be_cut(self, nodes: list[fx.Node]) -> bool:
        """Do the numbers stay, and does nothing else in the loop see memory that it writes?"""
        numbers = [self.ids]
        if isinstance(self.through, fx.Node):
            if not _all_in_order(self.through, self.ids) or mutated_after(self.graph, self.ids, self.through):
                return False
            numbers.append(self.through)
        if any(mutated_after(self.graph, vector, vector.next, self.last) for vector in numbers):
            return False
        rows = {node.args[0] for node in nodes}
        written = {node.args[0] for node in nodes if node.target is not markers.MASKED}
        if not all(isinstance(row, fx.Node) and self._is_row(row) for row in rows):
            return False
        if any(mutated_after(self.graph, row, self.begin, self.last) for row in rows - written):  # type: ignore[arg-type]
            return False
        return all(self._is_own(row, nodes) for row in written)  # type: ignore[arg-type]

    def _is_row(self, row: fx.Node) -> bool:
        """Is it a row with a slot for every number?"""
        fake = example(row)
        if row in self.inside or fake.dim() < 1 or fake.device != example(self.ids).device:
            return False
        return same_length(fake.shape[0], example(self.ids).shape[0])

    def _is_own(self, row: fx.Node, nodes: list[fx.Node]) -> bool:
        """Is the memory of a written row the program's own, and seen in the loop by these nodes alone?"""
        memory = storage(row)
        given = self.graph.find_nodes(op="placeholder") + self.graph.find_nodes(op="get_attr")
        if memory is None or any(storage(node) == memory for node in given):
            return False
        for node in self.inside:
            for source in node.all_input_nodes:
                if storage(source) == memory and not (node in nodes and source is row and source is node.args[0]):
                    return False
        return True

    def _sort(self) -> None:
        call = self.build.call
        ordered = call("sort", self.ids, method=True, stable=True)
        self.order, values = call(operator.getitem, ordered, 1), call(operator.getitem, ordered, 0)
        if isinstance(self.through, fx.Node):
            # Where one number ends the next begins, as every number of the row is among them.
            ends = call(torch.searchsorted, values, self.through, right=True)
            self.cu = call(torch.nn.functional.pad, ends, (1, 0))
            return
        first, count = self.through, self.begin.args[0]
        stop = call(operator.add, count, first + 1) if isinstance(count, fx.Node) else count + first + 1
        numbers = call(torch.arange, first, stop, dtype=example(self.ids).dtype, device=example(self.ids).device)
        self.cu = call(torch.searchsorted, values, numbers)

    def _row(self, row: fx.Node) -> fx.Node:
        if row not in self.rows:
            self.rows[row] = self.build.call(torch.index_select, row, 0, self.order)
        return self.rows[row]

    def _at(self, node: fx.Node) -> Builder:
        """A builder before another node, whose calls use what `build` has made."""
        self.inside_builds.append(Builder(self.graph, node, self.ids))
        return self.inside_builds[-1]

    def _instead(self, node: fx.Node) -> fx.Node:
        """What stands in the place of one node: the part of the sorted row, or a write to it."""
        build = self._at(node)
        row = self._row(node.args[0])  # type: ignore[arg-type]
        fake = example(node) if node.target is markers.MASKED else None
        part = build.call(markers.SEGMENT, row, self.cu, self._index(node), 0, fake=fake)
        # What a mask picks is a copy.
        if node.target is markers.MASKED:
            build.call("clone", part, method=True, fake=fake)
        else:
            build.call(operator.setitem, part, slice(None), node.args[2], fake=NO_VALUE)  # torch 2.11 asks for sizes
        return build.made[-1]

    def _sums(self, nodes: list[fx.Node]) -> list[fx.Node]:
        """``mask.sum()`` of the masks that pick slots, or are written the same."""
        number = self.ids, self.through
        masks = [node for node in self.graph.nodes if node in self.inside and _number_of(node, self.loop) == number]
        users = [user for mask in masks for user in mask.users if user in self.inside]
        return [user for user in users if op_name(user) == "sum" and len(user.args) == 1 and not user.kwargs]

    def _count(self, node: fx.Node) -> fx.Node:
        """How many slots a document has, in the place of such a sum."""
        if self.lengths is None:
            self.lengths = self.build.call(torch.diff, self.cu)
        build = self._at(node)
        build.call(torch.select, self.lengths, 0, self._index(node))
        return build.made[-1]

    def _index(self, node: fx.Node) -> fx.Node:
        return next(begin for begin, body, _ in self.loop.iterations if node in body)

    def _put_back(self, written: list[fx.Node]) -> None:
        build = self._at(self.last.next)
        for row in written:
            build.call("index_copy_", row, 0, self.order, self.rows[row], method=True)
