"""Masks of the row's end that are used beside the shift that they fill.

``labels = torch.roll(ids, -1, 1) * keep`` and then ``(loss(labels) * keep).sum()``: a document's last label becomes a 0
that nothing leaves out, for ``keep`` says so of the row's last slot alone. Where what is filled is no token
(``ignore_index``), it needs no mask, and the shift is rewritten.
"""

from __future__ import annotations

from packpass.semantics.pointwise import slot_by_slot
from passes.nodes import computed_from
from passes.pack_shifts.choosing import flags_of
from passes.pack_shifts.interpret import Found, Interpreter
from passes.pack_shifts.values import Left


def mask_beside(found: Found, run: Interpreter) -> Left | None:
    """Does the mask that has filled a shift meet what was shifted once more?"""
    fill = found.shift.fill
    if isinstance(fill, int) and not isinstance(fill, bool) and fill < 0:
        return None
    own = (found.store.root, *found.store.writes)
    masks = {n: view for node in own for n in node.all_input_nodes if flags_of(view := run.view(n), True) is not None}
    if not masks:
        return None
    roots = {view.store.root for view in masks.values() if view is not None}
    fills = {node for other in run.found for node in (other.store.root, *other.store.writes)}
    said = computed_from({*masks, *roots}, lambda user: user not in fills and slot_by_slot(user))
    shifted = computed_from([found.store.root])
    for node in said:
        met = next((u for u in node.users if u not in fills and any(n in shifted for n in u.all_input_nodes)), None)
        if met is not None and node not in shifted:
            return Left(
                "mask-used",
                f"the mask that fills the row's end with {fill} meets the shifted row again ({met.name}), and says "
                "nothing of the ends of documents; fill with a number that the loss leaves out, or shift the mask too",
            )
    return None
