"""Rolls without a fill that belong together: tokens and their mask.

Before::

    labels, mask = torch.roll(ids, -1, 1), torch.roll(mask, -1, 1)
    labels[~mask] = -100

The first slot's mask decides about the last label, which is how a document alone behaves. Both rolls go around within
every document instead, so that one document's mask never decides about another one's label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from packpass.semantics import example, op_name, storage
from packpass.semantics.memory import copied
from packpass.semantics.pointwise import NEGATIONS
from passes.pack_shifts.decide import chooses
from passes.pack_shifts.interpret import Found, Interpreter
from passes.pack_shifts.pieces import Shift
from passes.pack_shifts.values import Left, Store, view_of


def _tests(node: fx.Node) -> bool:
    """Does a call say of every slot what its operand says, or the opposite?"""
    name = op_name(node)
    return copied(node) is not None or name in NEGATIONS or name in ("eq", "ne")


def add_masked_together(run: Interpreter) -> None:
    """Add a `Found` for every roll that is masked by a roll by the same distance, and for the mask."""
    users: dict[Store, list[fx.Node]] = {}
    wraps: dict[Store, Shift] = {}
    alone: dict[Found, None] = {}
    for store, user, shift in run.wrapping:
        if store.found is None and not store.escaped and not any(write < user for write in store.writes):
            users.setdefault(store, []).append(user)
            wraps[store] = shift
    for row, shift in wraps.items():
        first = min(users[row])
        mask = _mask(first, row, wraps, shift) if chooses(first) else None
        if mask is not None and all(_leads_to_choices(user) for user in users[mask]):
            for store in (row, mask):
                if store.found is None:
                    _add(run, store, wraps[store], users[store])
            if row.found is None or mask.found is None or row.found.packing != mask.found.packing:
                alone.update((store.found, None) for store in (row, mask) if store.found is not None)
            else:
                row.found.needs.append(mask.found)
                mask.found.needs.append(row.found)
    run.found = with_all_they_need(run.found, alone)


def need_copies(run: Interpreter) -> None:
    """Whoever looks at copies of one shifted row sees one row: all of them stop at documents, or none does."""
    copies: dict[tuple[fx.Node, Any], list[Found]] = {}
    for found in run.found:
        copies.setdefault((found.origin, found.packing), []).append(found)
    for family in copies.values():
        for found in family:
            found.copies = [other for other in family if other is not found]
            found.needs += found.copies


def need_rows_between(run: Interpreter) -> None:
    """Slots that are moved more than once: whoever looks at the row between two moves sees it stop at documents too, or
    the last one does not."""
    for found in run.found:
        found.needs += [store.found for store in rows_between(run, found) if store.found is not None]


def stays_between(run: Interpreter, found: Found) -> Left | None:
    """Is this a move of a row that somebody looks at, and that goes around at the row's end?"""
    around = Left("no-fill", "it moves on a row that is looked at, and that wraps around at the row's end")
    seen = dict(run.unfilled) | {store: around for store, *_ in run.wrapping}
    left = (seen[store] for store in rows_between(run, found) if store.found is None and store in seen)
    return next(left, None)


def rows_between(run: Interpreter, found: Found) -> list[Store]:
    """The rows between the source of a shift and its result that are shifts of their own."""
    out: list[Store] = []
    stack, seen, source = [found.store], {found.store}, storage(found.shift.source.node)
    while stack:
        store = stack.pop()
        for node in (store.root, *store.writes):
            for other, shift in run.between.get(node, ()):
                if other in seen or storage(other.root) == source:
                    continue
                seen.add(other)
                stack.append(other)
                if (shift.source, shift.by) != (found.shift.source, found.shift.by):  # else: filled afterwards
                    out.append(other)
    return out


def with_all_they_need(found: Sequence[Found], left: dict[Found, Any]) -> list[Found]:
    """The shifts to rewrite: those that are not left, nor need one that is; the latter are added to ``left``."""
    accepted = [f for f in found if f not in left]
    while short := [f for f in accepted if any(other in left for other in f.needs)]:
        for f in short:
            left[f] = next(left[other] for other in f.needs if other in left)
        accepted = [f for f in accepted if f not in left]
    return accepted


def _mask(choice: fx.Node, row: Store, wraps: dict[Store, Shift], shift: Shift) -> Store | None:
    """The rolled mask that a choice between slots of ``row`` and numbers is made by."""
    for node in choice.all_input_nodes:
        while _tests(node) and node.args and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        for store, other in wraps.items():
            if store is not row and store.root is node and other.by == shift.by and _whole_mask(store, row):
                return store
    return None


def _whole_mask(mask: Store, row: Store) -> bool:
    return tuple(example(mask.root).shape) == tuple(example(row.root).shape) and mask.dim == row.dim


def _leads_to_choices(user: fx.Node) -> bool:
    """A mask that is used for nothing but choices."""
    if chooses(user):
        return True
    return _tests(user) and bool(user.users) and all(_leads_to_choices(after) for after in user.users)


def _add(run: Interpreter, store: Store, shift: Shift, users: list[fx.Node]) -> None:
    packed = run.layouts.packed_dim(shift.source.node)
    if packed is None or store.origin is None:
        return
    view = view_of(store)
    store.found = Found(shift, packed[1], view, min(users), store.origin, packed[0], [(user, view) for user in users])
    run.found.append(store.found)
