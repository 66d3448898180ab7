"""Rows of different lengths that are cut by the same boundaries: ``out = x.new_zeros(cu[-1], 3)`` beside ``x`` itself.

The documents lie in what all these rows have. Where one of them is known to be the shortest, or to end with the last
document, the others are taken up to its end: as views, which cost nothing. That they are as long as that is checked.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import call_of, example
from packpass.semantics.build import Builder
from packpass.semantics.pointwise import whole_divisor
from passes.document_loops.boundaries import boundary_vector, check_split, summed_up, unchanged
from passes.document_loops.find import Decided, OtherLengths, decide
from passes.document_loops.fitting import index_entries
from passes.document_loops.integers import Boundaries
from passes.document_loops.lengths import no_longer, same_length
from passes.document_loops.machine import Machine
from passes.loops import LoopFound

TOO_SHORT = "packpass: the last of the boundaries is behind the end of a row that they cut"


class Cropped:
    """One loop, whose rows may be taken up to the end of the shortest, and how to go back to what it was."""

    def __init__(self, graph: fx.Graph, loop: LoopFound) -> None:
        self.graph, self.loop = graph, loop
        self._build: Builder | None = None
        self._replaced: list[tuple[fx.Node, fx.Node, fx.Node]] = []

    def decide(self) -> Decided:
        """What the loop does, with rows of one length; raises `Refused`."""
        try:
            return decide(self.graph, self.loop)
        except OtherLengths as refused:
            if not self._crop(refused):
                raise
            try:
                # What Python cuts off at the end of one row it may leave in another.
                return decide(self.graph, self.loop, must_fit=True)
            except OtherLengths:
                raise refused from None

    def undo(self) -> None:
        """The graph as it was."""
        for user, row, view in self._replaced:
            user.replace_input_with(view, row)
        if self._build is not None:
            self._build.undo()
        self._replaced, self._build = [], None

    def _crop(self, refused: OtherLengths) -> bool:
        """Take the longer rows as views of their documents; False if no row is known to be the shortest."""
        rows = list(dict.fromkeys(refused.rows))
        extents = [example(row).shape[dim] for row, dim in rows]
        begin = self.loop.iterations[0][0]
        at = next((k for k, e in enumerate(extents) if all(no_longer(e, other) for other in extents)), None)
        if at is None:
            at = next((k for k, e in enumerate(extents) if _is_last(e, refused.machine, begin)), None)
        if at is None:
            return False
        self._build = build = Builder(self.graph, before=begin, like=rows[at][0])
        size = extents[at]
        if not isinstance(size, int):
            size = build.call(torch.ops.aten.sym_size.int, *rows[at])
        for (row, dim), extent in zip(rows, extents, strict=True):
            if not same_length(extent, extents[at]):
                self._take(build, row, dim, size)
        return True

    def _take(self, build: Builder, row: fx.Node, dim: int, size: Any) -> None:
        """Let the loop cut the part of a row that all rows have. What else it does with the row is done with all of
        it."""
        cuts = [user for user in row.users if user in self.loop.nodes and _cuts_documents(user, row, dim)]
        extent = build.call(torch.ops.aten.sym_size.int, row, dim)
        for user in cuts[:1]:
            if user.target is markers.SPLIT_GET:  # torch splits a row only where its lengths fill it
                check_split(build.call, row, user.args[1], dim)  # type: ignore[arg-type]
        fits = build.call(operator.le, size, extent)
        if not statically_known_true(example(fits)):
            build.call(torch.ops.aten._assert_scalar.default, fits, TOO_SHORT)
        view = build.call(torch.narrow, row, dim, 0, size)
        for user in cuts:
            user.replace_input_with(row, view)
            self._replaced.append((user, row, view))


def _cuts_documents(user: fx.Node, row: fx.Node, dim: int) -> bool:
    """Does this look at nothing of a row but what lies between two numbers of the program? What is counted from the end
    of the row would be another slot."""
    if user.target in (markers.SPLIT_GET, markers.SEGMENT):
        return user.args[0] is row and row not in user.args[1:] and bool(user.args[3] == dim)
    entries = index_entries(user)
    if entries is None or user.args[0] is not row or row in user.args[1:] or len(entries) <= dim:
        return False
    if any(entry is None or not isinstance(entry, (int, slice)) for entry in entries):
        return False
    cut = entries[dim]
    return isinstance(cut, slice) and isinstance(cut.start, fx.Node) and isinstance(cut.stop, fx.Node)


def _is_last(extent: Any, machine: Machine, begin: fx.Node) -> bool:
    """Is this size the last of the boundaries that the loop goes by, or that as a shard has it?"""
    if not isinstance(extent, torch.SymInt) or machine.boundaries is None:
        return False
    documents = machine.boundaries[0]
    whole, by = _of_whole(documents, begin)
    for node in begin.graph.nodes:
        if node is begin:
            return False
        made = example(node)
        if not isinstance(made, torch.SymInt) or made.node.expr != extent.node.expr:
            continue
        if node.target == "item" and _reads_the_last(node.args[0], documents, machine, begin):
            return True
        last = node.args[0] if node.target is operator.floordiv and node.args[1] == by else None
        if isinstance(last, fx.Node) and last.target == "item" and whole is not None:
            if _reads_the_last(last.args[0], whole, machine, begin):
                return True
    return False


def _of_whole(documents: Boundaries, begin: fx.Node) -> tuple[Boundaries | None, int | None]:
    """The boundaries that those of shards are a quotient of, and by what."""
    node = documents.node
    by = whole_divisor(node, node.args[1] if len(node.args) > 1 else None)
    source = node.args[0] if by is not None else None
    if documents.lengths or not isinstance(source, fx.Node) or not unchanged(source, begin):
        return None, None
    return Boundaries(source), by


def _reads_the_last(scalar: Any, documents: Boundaries, machine: Machine, begin: fx.Node) -> bool:
    """Is this tensor ``cu[-1]``, or the sum of all lengths?"""
    source: Any = scalar.args[0] if scalar.args else None
    if documents.made is not None or not isinstance(source, fx.Node) or not unchanged(source, scalar):
        return False
    fake = example(source)
    if not isinstance(fake, torch.Tensor) or fake.dim() != 1:
        return False
    root, offset, _ = boundary_vector(source)
    whole = statically_known_true(fake.shape[0] + offset == example(root).shape[0])
    if not whole or not unchanged(root, scalar):
        return False
    if scalar.target in ("sum", torch.sum):
        call = call_of(scalar)
        if offset or call is None or any(v is not None for k, v in call.arguments.items() if k != "input"):
            return False
        return root is documents.node if documents.lengths else summed_up(machine, root, begin) is documents.node
    return not documents.lengths and root is documents.node and _is_at_the_end(scalar, fake.shape[0])


def _is_at_the_end(entry: fx.Node, size: Any) -> bool:
    if entry.target is operator.getitem:
        at: Any = entry.args[1]
    elif entry.target in (torch.select, "select") and entry.args[1] == 0:
        at = entry.args[2]
    else:
        return False
    number = example(at) if isinstance(at, fx.Node) else at
    if type(number) is int and number == -1:
        return True
    return isinstance(number, (int, torch.SymInt)) and statically_known_true(number == size - 1)
