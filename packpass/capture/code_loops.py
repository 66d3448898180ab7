"""Loops as the bytecode of a frame spells them: where a ``while`` begins, and what stands in which loop.

Every Python spells ``while`` differently (the test once, or once more behind the body), so nothing here goes by the
order of instructions: a loop is what some instruction jumps back to, and its test is what leads to the same place.
"""

from __future__ import annotations

import dis
from typing import Any

from packpass.capture.state import current_frame, location_of, note

_FILLERS = ("NOP", "CACHE", "NOT_TAKEN", "TO_BOOL")
_DRIVEN = ("FOR_ITER", "SEND", "YIELD_FROM")
"""What a loop begins with that an iterator drives."""


def _back_edges(tx: Any) -> list[tuple[int, int]]:
    """``(first instruction, last instruction)`` of every way back in the code of a frame."""
    jumps = ((tx.indexof[i.target], at) for at, i in enumerate(tx.instructions) if i.target is not None)
    return [(first, last) for first, last in jumps if first <= last]


def _beyond(tx: Any, at: int) -> int:
    """The instruction that does something, from ``at`` on, behind fillers and jumps."""
    for _ in range(len(tx.instructions)):
        instruction = tx.instructions[at]
        if instruction.opname in _FILLERS:
            at += 1
        elif instruction.opname.startswith("JUMP") and instruction.target is not None:
            at = tx.indexof[instruction.target]
        else:
            break
    return at


def body_of_test(tx: Any, comparison: Any) -> int | None:
    """Where the body of a ``while`` begins, if this comparison may be its test; None if it is none."""
    test = tx.indexof[comparison]
    jump = test + 1
    while jump < len(tx.instructions) and tx.instructions[jump].opname in _FILLERS:
        jump += 1
    if jump + 1 >= len(tx.instructions) or not tx.instructions[jump].opname.startswith("POP_JUMP"):
        return None
    branch = tx.instructions[jump]
    if branch.target is None or not branch.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    body = _beyond(tx, tx.indexof[branch.target] if branch.opname.endswith("IF_TRUE") else jump + 1)
    for first, last in _back_edges(tx):
        straight = first <= test and all(i.target is None for i in tx.instructions[first:test])
        if last >= body and (_beyond(tx, first) == body or (straight and test < body)):
            return body
    return None


def counter_of_test(tx: Any, comparison: Any) -> str | None:
    """The local on the left of a comparison, where nothing else stands there; None if that cannot be told."""
    depth, at = 0, tx.indexof[comparison]
    while depth < 1 and at > 0:
        at -= 1
        instruction = tx.instructions[at]
        if instruction.target is not None:
            return None
        try:
            depth += dis.stack_effect(instruction.opcode, instruction.arg if _has_argument(instruction) else None)
        except ValueError:
            return None
    if depth == 2 and isinstance(tx.instructions[at].argval, tuple):  # two locals in one instruction, since Python 3.13
        return str(tx.instructions[at].argval[0])
    if depth != 1 or at == 0 or tx.instructions[at - 1].opname not in _LOADS:
        return None
    return str(tx.instructions[at - 1].argval)


_LOADS = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")


def _has_argument(instruction: Any) -> bool:
    return bool(instruction.opcode >= dis.HAVE_ARGUMENT)


# === Loops that are not seen =================================================================================


def note_unseen(tx: Any) -> None:
    """Boundaries are read one by one: say so if a ``while``, or a function that calls itself, goes by them."""
    while tx is not None:
        ways = [(first, last) for first, last in _back_edges(tx) if first <= tx.instruction_pointer - 1 <= last]
        if ways:
            first = max(ways)[0]
            if tx.instructions[first].opname not in _DRIVEN:
                _note(tx, (tx.f_code, first), WHILE)
            return
        if _calls_itself(tx):
            _note(tx, (tx.f_code, 0), RECURSION)
            return
        tx = tx.parent


def _calls_itself(tx: Any) -> bool:
    above = tx.parent
    while above is not None and above.f_code is not tx.f_code:
        above = above.parent
    name = tx.f_code.co_name
    named = any(i.opname == "LOAD_GLOBAL" and i.argval == name for i in tx.instructions)
    return above is not None or named or name in tx.f_code.co_freevars


def _note(tx: Any, key: Any, reason: str) -> None:
    frame = current_frame()
    if key not in frame.unseen:
        frame.unseen.add(key)
        note("while-loop", reason, location_of(tx))


WHILE = (
    "a while loop reads boundaries or lengths of documents in a way that is not understood, and runs as in stock "
    "torch; one that counts documents up by one, as `while i < len(cu_seqlens) - 1: ...; i += 1`, is captured, and so "
    "is a for loop over them"
)
RECURSION = (
    "a function that calls itself reads boundaries or lengths of documents, and runs as in stock torch; go over the "
    "documents in a for loop"
)
