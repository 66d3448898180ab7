"""May a shift that was found be made boundary-aware? Every condition on its own, none of them changes the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from packpass.layout import Layouts, Packing
from packpass.layout.axes import Axes, Axis
from packpass.layout.rules import apply
from packpass.semantics import argument, contents_of, example, family_of, op_name, scans, storage
from packpass.semantics.effects import grad_mode_changes, mutated_after
from packpass.semantics.inner_graphs import subgraphs
from packpass.semantics.lookups import SEARCHES
from packpass.semantics.losses import OF_CLASSES
from packpass.semantics.meaning import Iota
from packpass.semantics.names import base_name
from packpass.semantics.pointwise import COMPARISONS, DIFFERENCES, NEGATIONS, slot_by_slot
from packpass.semantics.writes import CHOICES
from passes.pack_shifts.interpret import Found, Interpreter
from passes.pack_shifts.pieces import ZERO, Source
from passes.pack_shifts.shards import refused_shards
from passes.pack_shifts.values import TOKEN_DTYPES, Left, View

_FAR = 16
"""Shifts up to here are depths of a model, unless the row is as short as that; more parts are made of no row."""


def check(found: Found, run: Interpreter, layouts: Layouts) -> Left | None:
    """``(code, reason)`` why this shift is left alone, or None."""
    packing, source = found.packing, found.shift.source.node
    value = example(source)
    if packing.kind == "input" and any(not _one(n) for n in value.shape[: found.dim]):
        return Left(
            "ambiguous-rows", f"{source.name} has several rows; {packing.text} may cut each of them or all of them"
        )
    if example(packing.boundaries).device != value.device and packing.boundaries.op != "placeholder":
        return Left(
            "boundary-device",
            f"the boundaries are on {example(packing.boundaries).device}, the row on {value.device}",
        )
    refused = refused_shards(found) or part_of_row(found.shift.by, value.shape[found.dim])
    if refused is not None:
        return refused
    if not found.shift.wraps and _only_compared(found):
        return Left("look-ahead", "the shifted tokens are only compared: a look at the neighbour, not labels")
    running = _running(source) or _counted(found)
    if running is not None:
        return Left(
            "running-value",
            f"{op_name(running)} over the whole row makes or uses what is shifted, not one token each",
        )
    if found.shift.dropped and not _scores_start_at_row(found, run, layouts):
        return Left(
            "unaligned-targets", "the scores and the targets of the loss are not cut from the same row by that shift"
        )
    if _bounded(found):
        return Left(
            "already-bounded", "the code itself treats the slots at boundaries, by a mask or index made from them"
        )
    return None


def part_of_row(by: int, size: Any) -> Left | None:
    """Half a row, or all of it but one slot, is as far as its length says. Where the length is a constant of the graph,
    nothing tells such a distance from a number of the user's, but that documents are hardly shifted as far as that."""
    if not isinstance(size, int) or by == 0:
        return None
    parts = size // abs(by)
    if 2 * abs(by) < size and (abs(by) <= _FAR or parts > _FAR or size // parts != abs(by)):
        return None
    return Left(
        "unknown-bounds",
        f"{abs(by)} slots of a row of {size} may be a part of its length, which is another one for each document; "
        "if it is a number of its own, compile with dynamic=True, or use packpass.ops.packed_roll",
    )


def _one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _only_compared(found: Found) -> bool:
    uses = [use for copy in (found, *found.copies) for use in copy.uses]
    return bool(uses) and all(_compares(user, view, found) for user, view in uses)


def _compares(user: fx.Node, view: View, found: Found) -> bool:
    """Does this call compare a slot with its neighbour: by a comparison, as ``x - shifted``, or as ``m & ~shifted``?"""
    name, source = op_name(user), found.shift.source.node
    if name in COMPARISONS or name == "isin":
        return not _tests_fill(user, found)
    if example(source).is_floating_point():
        return False
    if name in DIFFERENCES:
        return any(same_value(n, source) for n in user.all_input_nodes if n not in (view.base, *view.chain))
    if name in NEGATIONS:
        others = [n for after in user.users for n in after.all_input_nodes if n is not user]
        return bool(others) and all(same_value(n, source) for n in others)
    return False


def same_value(a: Any, b: Any) -> bool:
    """Are two values the same node, or computed in the same way, however long that takes?"""
    pairs: list[tuple[Any, Any]] = [(a, b)]
    seen: set[tuple[fx.Node, fx.Node]] = set()
    while pairs:
        one, other = pairs.pop()
        if one is other or (isinstance(one, fx.Node) and (one, other) in seen):
            continue
        if type(one) is not type(other):
            return False
        if isinstance(one, fx.Node):
            if one.op != other.op or one.target != other.target or one.op not in ("call_function", "call_method"):
                return False
            seen.add((one, other))
            pairs += [(one.args, other.args), (dict(one.kwargs), dict(other.kwargs))]
        elif isinstance(one, (tuple, list)):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif isinstance(one, dict):
            if one.keys() != other.keys():
                return False
            pairs += [(one[key], other[key]) for key in one]
        elif isinstance(one, slice):
            pairs.append(((one.start, one.stop, one.step), (other.start, other.stop, other.step)))
        elif one != other:
            return False
    return True


def _tests_fill(user: fx.Node, found: Found) -> bool:
    """``labels != -100``, ``mask == 0``: is a slot filled? Of tokens, a number that is no token."""
    fill, source = found.shift.fill, found.shift.source.node
    others = [a for a in user.args if not isinstance(a, fx.Node)]
    if user.kwargs or len(others) != 1 or isinstance(others[0], str) or others[0] != fill:
        return False
    return example(source).dtype not in TOKEN_DTYPES or fill < 0


def _running(node: fx.Node) -> fx.Node | None:
    """A running sum, a sort or an arange that ``node`` was made from, slot by slot."""
    stack, seen = [node], set[fx.Node]()
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        if _runs(at):
            return at
        if _slot_by_slot(at):
            tensors = [n for n in at.all_input_nodes if isinstance(example(n), torch.Tensor)]
            stack += [n for n in tensors if not (chooses(at) and example(n).dtype == torch.bool)]
    return None


def _runs(node: fx.Node) -> bool:
    """Does a value say where in the row a slot stands, or how many there were?"""
    name = op_name(node)
    return scans(node) or isinstance(contents_of(node), Iota) or name in SEARCHES or name in ("sort", "argsort")


def _slot_by_slot(node: fx.Node) -> bool:
    """Is a value made of others slot by slot, perhaps in another place?"""
    name = op_name(node)
    moves = family_of(node) in ("views", "indexing") and name != "repeat_interleave"
    return moves or name in ("roll", "packpass::packed") or slot_by_slot(node)


def chooses(node: fx.Node) -> bool:
    """Does a call choose between slots of its operands, by a condition or an index?"""
    return base_name(op_name(node)) in CHOICES


def _counted(found: Found) -> fx.Node | None:
    """A running sum or maximum that the shifted row goes into, as where segments are numbered by their last tokens."""
    if example(found.shift.source.node).is_floating_point():
        return None
    stack, seen = [user for user, _ in found.uses], set[fx.Node]()
    while stack:
        at = stack.pop()
        if scans(at):
            return at
        if at not in seen and _slot_by_slot(at):
            seen.add(at)
            stack += at.users
    return None


def _bounded(found: Found) -> bool:
    """Is the result corrected by a condition or index that depends on the boundaries?"""
    return any(corrected(user, found.store.root, found.packing.boundaries) for user, _ in found.uses)


def corrected(user: fx.Node, row: fx.Node, boundaries: fx.Node) -> bool:
    """Does ``user`` choose between the slots of ``row`` and something else by what was computed from the boundaries?"""
    if not chooses(user):
        return False
    dependent = made_from(boundaries)
    return any(n in dependent for n in user.all_input_nodes if n is not row)


def made_from(boundaries: fx.Node) -> set[fx.Node]:
    """Boundaries and every integer or bool tensor that was computed from them, also in the graphs of higher-order
    operators that they are handed to; a row that is declared is not."""
    dependent: set[fx.Node] = {boundaries}
    stack = [boundaries]
    handed_out: dict[fx.Node, list[fx.Node]] = {}
    while stack:
        node = stack.pop()
        reached = list(handed_out.get(node, ()))
        for after in node.users:
            owner = after.graph.owning_module
            if op_name(after).startswith("higher_order::") and owner is not None:
                for _, inputs, outputs in subgraphs(owner, after):
                    reached += [inner for outer, inner in inputs if outer is node]
                    for item, inner in outputs:
                        handed_out.setdefault(inner, []).extend(u for u in after.users if u.args[1:] == (item,))
            elif not _says_nothing_of_slots(after, dependent):
                reached.append(after)
        for after in reached:
            fake = example(after)
            if after not in dependent and isinstance(fake, torch.Tensor) and not fake.is_floating_point():
                dependent.add(after)
                stack.append(after)
    return dependent


def _says_nothing_of_slots(node: fx.Node, dependent: set[fx.Node]) -> bool:
    """Is a call that takes boundaries a declaration of another row, or a mask of every slot that has a document?"""
    if op_name(node) == "packpass::packed":
        return node.args[0] not in dependent
    return op_name(node) == "packpass::window_mask" and node.args[2:] == (0, 0)


def _scores_start_at_row(found: Found, run: Interpreter, layouts: Layouts) -> bool:
    """The scores of a loss must stand on the slots ``[0, T - k)`` of the row whose slots ``[k, T)`` are the targets:
    some cut ``[:-k]`` of a packed row leads to them token by token, and no other cut does."""
    targets = argument(found.user, 1, "target")
    view = run.view(targets)
    if view is None or view.dim is None:
        return False
    cuts = Cuts(found.user, run, layouts).of_scores(view.dim)
    return {(cut.start, packing == found.packing) for cut, packing in cuts} == {(ZERO, True)}


class Cuts:
    """The cuts of rows that the operands of a loss were made from, token by token."""

    def __init__(self, loss: fx.Node, run: Interpreter, layouts: Layouts) -> None:
        self.loss, self.run, self.layouts = loss, run, layouts
        self.axes = Axes()
        for node in loss.graph.nodes:
            if node is loss:
                break
            if op_name(node) not in OF_CLASSES:  # a loss would link scores with targets
                apply(self.axes, node)

    def of(self, node: Any, dim: int) -> list[tuple[View, Packing | None]]:
        """The cuts that dimension ``dim`` of a tensor was made from, and what packs the rows that were cut."""
        if not isinstance(node, fx.Node):
            return []
        wanted = self.axes.find(Axis(node, dim))
        out = []
        for at, cut in self.run.values.items():
            if not isinstance(cut, View) or cut.dim is None or not cut.chain or cut.complete or not at < self.loss:
                continue
            if self.axes.find(Axis(at, cut.dim)) == wanted:
                packed = self.layouts.packed_dim(cut.base)
                out.append((cut, packed[1] if packed is not None else None))
        return out

    def of_scores(self, dim: int) -> list[tuple[View, Packing | None]]:
        """Those of the scores, for dimension ``dim`` of the targets: the classes are dimension 1."""
        row = dim + 1 if example(argument(self.loss, 1, "target")).dim() > 1 else 0
        return self.of(argument(self.loss, 0, "input"), row)


def point(found: Found, run: Interpreter) -> fx.Node | None:
    """Where the new call can go: after everything it needs, before anybody looks at the result, and while the source
    still holds what was shifted. None if there is no such place."""
    source: Source = found.shift.source
    at = found.user
    view = run.view(source.node)
    since = source.node
    if view is not None:
        writes = view.store.writes
        if len(writes) > source.version and writes[source.version] < at:
            at = writes[source.version]
        if source.version:
            since = writes[source.version - 1]
    complete = _complete(found)
    if example(complete if found.is_cut else found.store.root).requires_grad and grad_mode_changes(complete, at):
        # Whoever looks first may do so under no_grad, and others later.
        at = complete.next
        for cu in (found.packing.boundaries, found.packing.padded):
            if cu is not None and cu.graph is at.graph and not cu < at:
                return None
    if mutated_after(found.user.graph, source.node, since.next, at):
        return None
    return at


def _complete(found: Found) -> fx.Node:
    """The call after which the shifted tensor holds what it does when somebody first looks at it."""
    if found.is_cut:
        return found.view.chain[0]
    return max([found.store.root, *(w for w in found.store.writes if w < found.user)])


def first_reader(found: Found, accepted: Sequence[Found]) -> fx.Node:
    """Who sees the shifted tensor first: a call that looks at it, one that moves its slots on and stays as it is, or
    one that sees a shift of it, among those that are ``accepted``.

    A shift of a shift that is left alone must read what the first one becomes, or the program would hold both rows.
    """
    if found.is_cut:
        return found.user
    memory, writes = storage(found.store.root), set(found.store.writes)
    replaced = {node for other in accepted for node in (other.store.root, *other.store.writes)}
    complete = _complete(found)
    later = [o.user for o in accepted if storage(o.shift.source.node) == memory and complete < o.user]
    first = min([found.user, *later])
    for node in _between(complete, first):
        reads = any(storage(n) == memory for n in node.all_input_nodes)
        if reads and node not in writes and node not in replaced and storage(node) != memory:
            return node
    return first


def _between(after: fx.Node, before: fx.Node) -> Iterator[fx.Node]:
    node = after.next
    while node is not before and node.op != "output":
        yield node
        node = node.next
