"""Loops that were refused beside others that are captured: the graph ends in front of them."""

from __future__ import annotations

from typing import Any

import torch

from packpass.capture import branches
from packpass.capture.dynamo import call
from packpass.capture.frame import Mode
from packpass.capture.state import active, has_captured, leave_to_stock


def makes_left_loop(tx: Any) -> bool:
    """Does this call make what a refused loop goes over, in front of which the graph is to end?"""
    frame = active.frame
    if frame is None or frame.mode is not Mode.SYMBOLIC or active.regions:
        return False
    at = tx.instruction_pointer
    between = ("GET_ITER", *branches.FILLERS)
    while at is not None and at < len(tx.instructions) and tx.instructions[at].opname in between:
        at += 1
    head = tx.instructions[at] if at is not None and at < len(tx.instructions) else None
    return head is not None and head.opname == "FOR_ITER" and (tx.f_code, head.offset) in frame.left


def end_graph(tx: Any) -> None:
    """End the graph in front of the call, if a loop was captured in it; else the frame is stock torch's."""
    if not has_captured():
        raise leave_to_stock("nothing stands in front of the loop that was refused")
    call(tx, torch._dynamo.graph_break)
