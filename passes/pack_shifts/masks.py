"""Masks of the row's end that are used beside the shift that they fill.

``labels = torch.roll(ids, -1, 1) * keep`` and then ``(loss(labels) * keep).sum()``: a document's last label becomes a 0
that nothing leaves out, for ``keep`` says so of the row's last slot alone. Where what is filled is no token
(``ignore_index``), it needs no mask, and the shift is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from packpass.semantics.pointwise import slot_by_slot
from passes.pack_shifts.choosing import flags_of
from passes.pack_shifts.interpret import Found, Interpreter
from passes.pack_shifts.values import Left


def mask_beside(found: Found, run: Interpreter) -> Left | None:
    """Does the mask that has filled a shift meet what was shifted once more?"""
    fill = found.shift.fill
    if isinstance(fill, int) and not isinstance(fill, bool) and fill < 0:
        return None
    fills = {node for other in run.found for node in (other.store.root, *other.store.writes)}
    own = [node for node in (found.store.root, *found.store.writes) if node in fills]
    masks = {n for node in own for n in node.all_input_nodes if flags_of(run.view(n), True) is not None}
    roots = {view.store.root for n in masks if (view := run.view(n)) is not None}
    said = _after({*masks, *roots}, lambda user: user not in fills and slot_by_slot(user))
    shifted = _after({found.store.root}, lambda user: True)
    for node in said:
        met = next((u for u in node.users if u not in fills and any(n in shifted for n in u.all_input_nodes)), None)
        if met is not None and node not in shifted:
            return Left(
                "mask-used",
                f"the mask that fills the row's end with {fill} meets the shifted row again ({met.name}), and says "
                "nothing of the ends of documents; fill with a number that the loss leaves out, or shift the mask too",
            )
    return None


def _after(start: set[fx.Node], goes_on: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """What is computed from some nodes, by calls that ``goes_on`` lets pass."""
    seen, stack = set(start), list(start)
    while stack:
        for user in stack.pop().users:
            if user not in seen and goes_on(user):
                seen.add(user)
                stack.append(user)
    return seen
