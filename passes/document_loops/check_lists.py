"""What may be made of a list with something of each document: conditions on its entries and its uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import is_tensor, op_name
from packpass.semantics.creation import LENT
from packpass.semantics.effects import mutated_after
from passes.document_loops.aliasing import memory_of, outside_nodes, written_in_lists, written_through
from passes.document_loops.appended import Common
from passes.document_loops.blocks import Diagonal
from passes.document_loops.documents import read_cell
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.machine import Document, Machine
from passes.document_loops.parts import Pieces
from passes.document_loops.reached import keep_gradients, may_be_none
from passes.document_loops.spaced import ROWS
from passes.document_loops.terms import DocRow, Outside, Row, walk
from passes.loops import LoopFound, only_asserted
from passes.refused import Refused


def check_segment(
    graph: fx.Graph, loop: LoopFound, machine: Machine, collect: fx.Node, value: Any, sizes: tuple[fx.Node, ...]
) -> None:
    """A list of segments may be concatenated along their packed dimension, or padded."""
    if not value.window.full or not value.store.exact:
        raise Refused("list-append", "what is appended per document is not as long as the document", collect)
    term = machine.read(value, collect)
    if may_be_none(machine.reach, machine.boundaries) and any(user.args[2:] == (False,) for user in collect.users):
        keep_gradients(machine.inside, term, None)  # the list has others, which eager joins where documents leave none
    root = memory_of(value)
    if root.outer is not None and (root.version or _changed_beside(graph, loop, collect, root.outer.node)):
        raise Refused(
            "aliasing", "a list holds views of a tensor that is changed before they are concatenated", collect
        )
    for user in collect.users:
        if user in sizes:
            continue
        if user.target is markers.LIST_GET:
            if machine.skips_empty:
                raise Refused("list-use", "a list that lacks the skipped documents is looped over again", user)
            if isinstance(user.args[1], int):
                _says_of_what_kind(user, value.rank + value.dim)
            if root.outer is not None and not isinstance(root.outer, Row) and mutated_after(graph, user, user.next):
                # The later loop would write to the row that is gathered of them.
                raise Refused("aliasing", "a list holds views of a tensor that a later loop writes through them", user)
            continue
        if user.target is markers.LIST_BOUNDARIES:
            if machine.skips_empty:
                raise Refused("list-use", "a jagged tensor lacks the skipped documents", user)
            continue
        if user.target is markers.LIST_PAD:
            if machine.skips_empty:
                raise Refused("list-use", "pad_sequence of a list that lacks the skipped documents", user)
            if value.dim != -value.rank:
                raise Refused("list-use", "pad_sequence of segments whose slots are not their rows", user)
            continue
        if user.target is not markers.RAGGED_CAT:
            raise Refused("list-use", "the list of per-document tensors is used by something else than torch.cat", user)
        if int(user.args[1]) % value.rank != value.rank + value.dim:  # type: ignore[arg-type]
            raise Refused("list-use", "the per-document tensors are concatenated along another dimension", user)


def _changed_beside(graph: fx.Graph, loop: LoopFound, collect: fx.Node, node: fx.Node) -> bool:
    """Is a tensor changed from the loop on, but through the list's own entries, as eager's are views of it, too?"""
    begin = loop.iterations[0][0]
    return mutated_after(graph, node, begin) and mutated_after(
        graph, node, begin, ignore=written_through(graph, collect)
    )


def _says_of_what_kind(entry: fx.Node, packed: int) -> None:
    """One entry of a list is taken by its number, of which only what they all have in common is looked at."""
    asserted = set(only_asserted(entry))
    for user in entry.users:
        size = user.target is torch.ops.aten.sym_size.int and user.args[1] != packed
        made = op_name(user) in LENT or (op_name(user) == "new" and not any(map(is_tensor, user.args[1:])))
        if user not in asserted and not size and not made:
            what = f"entry [{entry.args[1]}] of a list filled by the loop over documents is read"
            raise Refused("list-use", f"{what}: only its dtype, its device and its other sizes may be", user)


def check_pieces(
    graph: fx.Graph, loop: LoopFound, machine: Machine, collect: fx.Node, value: Pieces, sizes: tuple[fx.Node, ...]
) -> None:
    """A list of several parts of each document may be concatenated along their packed dimension, or looped over."""
    begin = loop.iterations[0][0]
    parts = [part.node for part in walk(value.term) if isinstance(part, (Elsewhere, Row, DocRow, Outside))]
    tensors = [part for part in parts if part is not None and is_tensor(part)]  # and no sizes that they share
    if any(mutated_after(graph, part, begin) for part in tensors) or written_in_lists(graph, loop, collect):
        raise Refused(
            "aliasing", "a list holds views of a tensor that is changed before they are concatenated", collect
        )
    for user in collect.users:
        joins = user.target is markers.RAGGED_CAT and int(user.args[1]) % value.rank == value.rank + value.term.dim  # type: ignore[arg-type]
        pads = user.target is markers.LIST_PAD and value.term.dim == -value.rank and isinstance(value.term, ROWS)
        if user.target is markers.LIST_GET and isinstance(value.term, ROWS) and isinstance(user.args[1], fx.Node):
            if machine.skips_empty or machine.reach or value.term.reach or mutated_after(graph, user, user.next):
                raise Refused("list-use", "a list that lacks documents, or is changed, is looped over again", user)
            continue
        if user.target is markers.LIST_GET and isinstance(value.term, ROWS) and not machine.skips_empty:
            _says_of_what_kind(user, value.rank + value.term.dim)
            continue
        if user.target is markers.LIST_BOUNDARIES and isinstance(value.term, ROWS) and not machine.skips_empty:
            continue
        if user not in sizes and not joins and not pads:
            raise Refused("list-use", "a list of parts of documents is used by something else than torch.cat", user)


def check_document(
    graph: fx.Graph, loop: LoopFound, machine: Machine, collect: fx.Node, value: Any, sizes: tuple[fx.Node, ...]
) -> None:
    """A list of values that documents have one of each may be stacked or concatenated."""
    if not isinstance(value, Document):
        raise Refused("list-append", "what is appended per document is not a part of a packed row", collect)
    read_cell(value.cell, collect)
    memory, begin = memory_of(value), loop.iterations[0][0]
    if isinstance(memory.term, Common) and any(
        mutated_after(graph, node, begin) for node in outside_nodes([memory.term])
    ):
        raise Refused("aliasing", "a list holds a tensor that is changed before they are stacked", collect)
    changed = memory.outer is not None and (memory.version or mutated_after(graph, memory.outer.node, begin))
    if changed or written_in_lists(graph, loop, collect):
        raise Refused("aliasing", "a list holds views of a tensor that is changed before they are stacked", collect)
    squares = isinstance(value.cell.term, Diagonal)
    if squares and machine.skips_empty:
        raise Refused("skip-condition", "a list has no entry for the documents that are skipped", collect)
    for user in collect.users:
        if user not in sizes and squares and user.target is not markers.LIST_DIAGONAL:
            raise Refused("list-use", "squares of documents are used by something else than block_diag", user)
        if user.target is markers.LIST_GET and not squares and isinstance(user.args[1], fx.Node):
            if machine.skips_empty or mutated_after(graph, user, user.next):
                raise Refused("list-use", "a list that lacks documents, or is changed, is looped over again", user)
            continue
        if user not in sizes and not squares and user.target not in (markers.LIST_STACK, markers.LIST_JOIN):
            raise Refused("list-use", "a list of per-document values is used by something else than stack or cat", user)
