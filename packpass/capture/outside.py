"""Branches outside of loops over documents, in a frame that has some."""

from __future__ import annotations

from typing import Any

from packpass.capture import branches, flags, joins, last_boundary, short_circuits
from packpass.capture.dynamo import TensorVariable
from packpass.capture.frame import LOOP_MODES
from packpass.capture.state import current_frame
from packpass.capture.watch import watch_check, watch_mask


def settled(tx: Any, instruction: Any, jumps_if: bool) -> bool:
    """Is there no branch any more? Otherwise its condition may be a known one now, on top of the stack."""
    frame, value = current_frame(), tx.stack[-1].realize()
    pops = instruction.opname.startswith("POP")
    if frame.seeks and isinstance(value, TensorVariable):
        watch_mask(tx, value)
        flags.watch(tx, value)
        watch_check(tx, value, branches.goes_on_if(tx, instruction, jumps_if) is not None)
    outcome = last_boundary.followed(tx, value)
    if outcome is None and pops:
        outcome = joins.truth(tx, value)
    if outcome is not None:
        tx.stack[-1] = outcome
        return False
    if not branches.is_on_data(value) or frame.mode not in LOOP_MODES:
        return False
    if pops:
        tx.pop()
        if branches.check(tx, instruction, value, jumps_if):
            return True
        tx.push(branches.as_condition(tx, value))  # there torch ends the graph, and at a number the frame
    return short_circuits.followed(tx, instruction, value, jumps_if)
