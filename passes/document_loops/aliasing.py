"""What a loop may read of the tensors from outside that it writes: the very same parts, and nothing beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import hint_of
from packpass.semantics import example, storage
from packpass.semantics.effects import mutated_after, written_inputs
from packpass.semantics.memory import own_storage
from passes.document_loops.blocks import Block
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.integers import EVERY, FULL, Affine, Bound, Check
from passes.document_loops.machine import Machine
from passes.document_loops.terms import Apply, Assign, DocRow, Guard, Outside, PointRead, Row, Term, walk
from passes.document_loops.whole import Whole
from passes.loops import LoopFound
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.find import Decided

Outer = Row | Elsewhere | Block | Whole
"""What a loop may write of a tensor from outside, one part per document."""


def overwriting(term: Term, row: Outer) -> Any:
    """What a loop leaves in an outer row: the value that it writes over all of it, or all that is there, or else the
    term."""
    there = row.window if isinstance(row, Elsewhere) else FULL
    if isinstance(term, Assign) and term.window in (FULL, there) and term.base is row:
        return term.value
    return term


def memory_of(value: Any) -> Any:
    """The store or cell that holds what a segment or a document's value shows, through all views of it."""
    memory: Any = value.store if hasattr(value, "store") else value.cell
    while memory.parent is not None:
        memory = memory.parent[0]
    return memory


def outside_nodes(terms: list[Term]) -> set[fx.Node]:
    """Outer tensors that the terms use whole, not cut by boundaries."""
    found = [t for term in terms for t in walk(term)]
    whole = {t.node for t in found if isinstance(t, Outside) and t.node is not None}
    return whole | {t.row.node for t in found if isinstance(t, PointRead)}


def written_in_lists(graph: fx.Graph, loop: LoopFound, collect: fx.Node) -> bool:
    """Does a later loop write to what another list has of the memory that this one's entries show?"""
    source: Any = collect.args[0]
    memory = storage(source)
    alike = [other for other in loop.collects if other is not collect and storage(other.args[0]) == memory]
    gets = [user for other in alike for user in other.users if user.target is markers.LIST_GET]
    return memory is not None and any(mutated_after(graph, get, get.next) for get in gets)


def written_through(graph: fx.Graph, collect: fx.Node) -> set[fx.Node]:
    """Calls of later loops that write to nothing but a list's own entries, or views of them."""
    own = {own_storage(user) for user in collect.users if user.target is markers.LIST_GET}
    return {n for n in graph.nodes if (written := written_inputs(n)) and {own_storage(t) for t in written} <= own}


def separate_inputs(graph: fx.Graph, decided: Decided) -> list[str]:
    """Inputs of the graph of which the loop writes one and uses others: separate now, they may share memory in a later
    call of the same graph, which has to be looked at then. Different dtypes do not share memory."""
    written = {row.node for row, _ in decided.writes} | {row.node for row, _ in decided.rows}
    loop = {node for n in decided.loop.nodes for node in n.all_input_nodes} | written
    memory = {storage(node): example(node).dtype for node in loop if storage(node) is not None}
    inputs = {storage(n): n for n in graph.nodes if n.op == "placeholder" and storage(n) in memory}
    targets = {memory[m] for m in {storage(node) for node in written} if m in inputs}
    found = [n.name for m, n in inputs.items() if memory[m] in targets]
    return found if len(found) > 1 else []


def used_beside_written(graph: fx.Graph, loop: LoopFound) -> tuple[str, ...]:
    """The same for a loop that is about to become several: each of them sees only its own part."""
    outer = {n for node in loop.nodes for n in node.all_input_nodes if n not in loop.nodes}
    memory = {storage(n): example(n).dtype for n in outer if isinstance(example(n), torch.Tensor)}
    inputs = {storage(n): n for n in graph.nodes if n.op == "placeholder" and storage(n) is not None}
    targets = {memory[m] for m in loop.written if m in inputs and m in memory}
    found = [n.name for m, n in inputs.items() if m in memory and memory[m] in targets]
    return tuple(found) if len(found) > 1 else ()


def only_overwritten(decided: Decided, node: fx.Node) -> bool:
    """Does the loop, each time once, write parts of a tensor one after the other, and never read it?"""
    written = [(row, store) for row, store in decided.writes if row.node is node]
    rows = [row for row, _ in written if isinstance(row, Elsewhere)]
    alike = {(row.index, row.dim, row.per_row) for row in rows}
    if len(rows) < len(written) or len(alike) != 1 or any(store.version != 1 for _, store in written):
        return False
    values = [overwriting(store.term, row) for row, store in decided.writes]
    if any(overwriting(store.term, row) is store.term for row, store in written):
        return False
    appended = [term for term in decided.terms if all(term is not store.term for _, store in decided.writes)]
    found = [t for value in (*values, *appended) for t in walk(value)]
    return all(getattr(t, "node", None) is not node for t in found)


def no_aliasing(decided: Decided, rows: list[Row], machine: Machine) -> None:
    """A tensor that the loop writes may be read only as the very same row, and never holds the boundaries."""
    boundaries = decided.boundaries
    written: list[Outer | DocRow] = [
        *(row for row, _ in decided.writes),
        *(row for row, _ in decided.rows),
    ]
    read = {t: None for term in decided.terms for t in walk(term) if isinstance(t, (DocRow, Elsewhere, Block, Whole))}
    parts: list[Outer | DocRow] = [
        *rows,
        *(dict.fromkeys((*read, *(row for row, _ in decided.rows)))),
    ]
    whole = outside_nodes(decided.terms) | machine.vectors
    used = whole | {row.node for row in parts} | {boundaries.node}
    for row, store in decided.writes:
        if isinstance(row, Elsewhere) and row.per_row is None and row in walk(overwriting(store.term, row)):
            raise Refused("aliasing", "documents that may overlap are read and written in one loop", row.node)
    for target in written:
        memory = storage(target.node)
        if boundaries.node is target.node and (boundaries.made is None or not boundaries.made.is_const):
            raise Refused("boundaries-written", "the loop writes its own boundaries", target.node)
        if target.node in whole:
            raise Refused("aliasing", "the loop reads the whole of a tensor whose documents it writes", target.node)
        for node in used:
            if node is not target.node and storage(node) == memory:
                raise Refused(
                    "aliasing", "the loop writes a tensor that shares memory with another tensor it uses", node
                )
        for other in parts:
            if other is target or other.node is not target.node or _disjoint(target, other):
                continue
            if not only_overwritten(decided, target.node):
                raise Refused("aliasing", "the loop reads and writes overlapping parts of one tensor", target.node)
        if isinstance(target, Row):
            _set_before_it_is_read(decided, target, machine)
        if _elements_share_memory(example(target.node)):
            reason = "the loop writes a tensor whose elements share memory (expanded, or unfolded)"
            raise Refused("aliasing", reason, target.node)


_SLOT_BY_SLOT = (Apply, Assign, Guard, Outside, Row)
"""Terms of which a slot holds what their operands hold in the same one."""


def _set_before_it_is_read(decided: Decided, row: Row, machine: Machine) -> None:
    """``x[cu[i]] = 0`` of a document without slots sets the first one of the next document, before that is read; in
    front of all slots, ``x[cu[i + 1] - 1]`` is the row's last. Unless what is read stays in its slot and is overwritten
    there, there must be no such documents."""
    stores = [store for other, store in decided.writes if other is row]
    where = {window for store in stores for window, _ in store.point_fills} - {"last"}
    if not where or not _is_read(decided, row, [store.term for store in stores]):
        return
    memory = storage(row.node)
    if any(n.op in ("placeholder", "get_attr") and storage(n) == memory for n in row.node.graph.nodes):
        # A call that fails its check could not be run as it was written: the input is changed by then.
        reason = "a document without slots would set a slot of an input that another document reads: skip empty ones"
        raise Refused("point-read", reason, row.node)
    of, k = machine.boundaries
    end = Affine.of(Bound(of, k + 1))
    least = Affine.of(1) if where == {"end"} else Affine.of(Bound(of, k)).plus(Affine.of(1))
    message = "packpass: a document without slots sets a slot of another document, which is read later: leave it out"
    machine.checks.append(Check(end, "ge", least, message, EVERY))


def _is_read(decided: Decided, row: Row, own: list[Term]) -> bool:
    """Is a row that is written read for anything but what is in the same slot afterwards?"""
    for term in decided.terms:
        for part in walk(term):
            kept = any(term is mine for mine in own) and isinstance(part, _SLOT_BY_SLOT)
            if not kept and any(isinstance(t, Row) and t.node is row.node for t in walk(part)):
                return True
    return False


def _elements_share_memory(fake: torch.Tensor) -> bool:
    """Does a step along one dimension stay within what the smaller ones span, as with ``expand``, ``unfold`` and most
    of ``as_strided``? Of rows of any size that lie one behind the other none does."""
    dims = list(zip(fake.stride(), fake.shape, strict=True))
    if any(isinstance(stride, int) and stride == 0 and size != 1 for stride, size in dims):
        return True
    steps = [(hint_of(stride), hint_of(size)) for stride, size in dims]
    span = 0
    for stride, size in sorted((stride, size) for stride, size in steps if stride is not None and size is not None):
        if size > 1 and stride <= span:
            return True
        span += stride * max(size - 1, 0)
    return False


def _disjoint(a: Outer | DocRow, b: Outer | DocRow) -> bool:
    """Do two selections of one tensor never overlap? Proven by two different integers in one position."""
    if len(a.index) != len(b.index):
        return False
    return any(
        isinstance(x, int) and isinstance(y, int) and x != y and (x >= 0) == (y >= 0)
        for x, y in zip(a.index, b.index, strict=True)
    )
