"""Loops as the bytecode of a frame spells them: where a ``while`` begins, and what stands in which loop.

Every Python spells ``while`` differently (the test once, or once more behind the body), so nothing here goes by the
order of instructions: a loop is what some instruction jumps back to, and its test is what leads to the same place.
"""

from __future__ import annotations

import dis
import types
from typing import Any

from packpass.capture.state import current_frame, location_of, note
from packpass.decisions.location import is_library, shorten

_FILLERS = ("NOP", "CACHE", "NOT_TAKEN", "TO_BOOL")
_DRIVEN = ("FOR_ITER", "SEND", "YIELD_FROM")
"""What a loop begins with that an iterator drives."""
_INPLACE_ADD = 13
"""Of BINARY_OP, its number in the table of ``opcode``."""


def _back_edges(tx: Any) -> list[tuple[int, int]]:
    """``(first instruction, last instruction)`` of every way back in the code of a frame."""
    jumps = ((tx.indexof[i.target], at) for at, i in enumerate(tx.instructions) if i.target is not None)
    return [(first, last) for first, last in jumps if first <= last]


def _loop_around(tx: Any) -> int | None:
    """The first instruction of the innermost loop that the instruction which is traced is part of."""
    ways = [first for first, last in _back_edges(tx) if first <= tx.instruction_pointer - 1 <= last]
    return max(ways, default=None)


def names_on_line(tx: Any) -> set[str]:
    """The locals, and the attributes and keys, that the line which is traced reads."""
    here = _line(tx.current_instruction)
    own = (i for i in tx.instructions if i.opname.startswith(_READS) and _line(i) == here)
    read = (name for i in own for name in (i.argval if isinstance(i.argval, tuple) else (i.argval,)))
    return {name for name in read if isinstance(name, str)}


_READS = ("LOAD_FAST", "LOAD_ATTR", "LOAD_CONST")


def is_exit(tx: Any, at: int, head: Any) -> bool:
    """Does control, from an instruction in the loop that an iterator drives from ``head`` on, go on as behind its end
    with nothing else between? Python may write what follows twice."""
    if head.target is None:
        return False
    at, end = _beyond(tx, at), _beyond(tx, tx.indexof[head.target])
    if tx.instructions[at].opname not in _DROPS:
        return False
    at = _beyond(tx, at + 1)
    if tx.instructions[end].opname == "END_FOR":
        end = _beyond(tx, end + 1)
        end = _beyond(tx, end + 1) if tx.instructions[end].opname in _DROPS else end
    while at != end:
        one, other = tx.instructions[at], tx.instructions[end]
        if (one.opname, one.argval) != (other.opname, other.argval) or one.target is not None:
            return False
        if one.opname.startswith("RETURN"):
            return True
        if max(at, end) + 1 >= len(tx.instructions):
            return False
        at, end = _beyond(tx, at + 1), _beyond(tx, end + 1)
    return True


_DROPS = ("POP_TOP", "POP_ITER")
"""What takes the iterator of a loop from the stack that is left."""


def is_left(tx: Any, head: Any) -> bool:
    """Is what is traced now behind the loop that begins with the instruction ``head``, or in front of it?"""
    first = tx.indexof[head]
    last = max((last for one, last in _back_edges(tx) if one == first), default=first)
    return not first <= tx.instruction_pointer - 1 <= last


def line_of_loop(tx: Any) -> str | None:
    """Where the loop of its frame begins that the instruction which is traced is part of; None if there is none."""
    first = _loop_around(tx)
    return None if first is None else shorten(tx.f_code.co_filename, _line(tx.instructions[first]))


def loop_ahead(tx: Any) -> bool:
    """Does the code go on to a loop, or to a list of numbers (by which a row is split), in this frame or in one that
    has called it?"""
    while tx is not None:
        ahead = tx.instructions[tx.instruction_pointer or 0 :]
        loops = (i.opname in ("FOR_ITER", "GET_ITER") or isinstance(i.argval, types.CodeType) for i in ahead)
        if any(loops) or any(i.argval == "tolist" for i in ahead if i.opname.startswith("LOAD_")):
            return True
        tx = tx.parent
    return False


def is_gone_over(tx: Any) -> bool:
    """Does a loop of the user's go over what the call that is traced returns, perhaps with other things beside it?"""
    if is_library(tx.f_code.co_filename):
        return False
    ahead = [instruction.opname for instruction in tx.instructions[tx.instruction_pointer or 0 :][:24]]
    between = ahead[: ahead.index("GET_ITER")] if "GET_ITER" in ahead else ["STORE"]
    return not any(name.startswith(("STORE", "UNPACK", "POP", "RETURN", "JUMP", "FOR_ITER")) for name in between)


def holds_a_loop(tx: Any, head: Any) -> bool:
    """Is there another loop, or a comprehension, in the body of the loop that begins with the instruction ``head``?"""
    first = tx.indexof[head]
    body = tx.instructions[first + 1 : tx.indexof[head.target]] if head.target is not None else []
    return any(i.opname == "FOR_ITER" or isinstance(i.argval, types.CodeType) for i in body)


def adds_in_place(instruction: Any) -> bool:
    """``a += b``"""
    return instruction.opname == "INPLACE_ADD" or (
        instruction.opname == "BINARY_OP" and instruction.arg == _INPLACE_ADD
    )


def unpacks(tx: Any) -> bool:
    """Is what the call that is traced returns taken apart into as many names as the code has?"""
    return bool(tx.instructions[_beyond(tx, tx.instruction_pointer or 0)].opname == "UNPACK_SEQUENCE")


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


def body_of_test(tx: Any, comparison: Any) -> tuple[int, bool] | None:
    """``(first instruction, outcome)`` of the body of a ``while`` that this comparison may be the test of: the outcome
    of the comparison that leads there, False for ``while True: if i >= n: break``. None if it is none."""
    test = tx.indexof[comparison]
    jump = test + 1
    while jump < len(tx.instructions) and tx.instructions[jump].opname in _FILLERS:
        jump += 1
    if jump + 1 >= len(tx.instructions) or not tx.instructions[jump].opname.startswith("POP_JUMP"):
        return None
    branch = tx.instructions[jump]
    if branch.target is None or not branch.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jumps_if = branch.opname.endswith("IF_TRUE")
    ways = {jumps_if: _beyond(tx, tx.indexof[branch.target]), not jumps_if: _beyond(tx, jump + 1)}
    for first, last in _back_edges(tx):
        straight = first <= test and all(i.target is None for i in tx.instructions[first:test])
        if tx.instructions[first].opname in _DRIVEN:
            continue
        for outcome, body in ways.items():
            begins = last >= body and (_beyond(tx, first) == body or (straight and test < body))
            if begins and not _stays(tx, ways[not outcome], first, last):
                return body, outcome
    return None


def _stays(tx: Any, at: int, first: int, last: int) -> bool:
    """Does a way from ``at`` lead to the end of the loop between these two instructions without leaving it?"""
    seen, queue = set[int](), [at]
    while queue:
        here = queue.pop()
        if here in seen or not first <= here <= last:
            continue
        if here == last:
            return True
        seen.add(here)
        instruction = tx.instructions[here]
        if instruction.opname.startswith(("RETURN", "RAISE", "RERAISE")):
            continue
        if instruction.target is not None:
            queue.append(tx.indexof[instruction.target])
        if instruction.target is None or not instruction.opname.startswith("JUMP"):
            queue.append(here + 1)
    return False


def counters_of_test(tx: Any, comparison: Any) -> tuple[str | None, str | None]:
    """The locals on both sides of a comparison; None for a side where something else stands, or cannot be told."""
    test = tx.indexof[comparison]
    right = _local(tx.instructions[test - 1], last=True) if test else None
    depth, at = 0, test
    while depth < 1 and at > 0:
        at -= 1
        instruction = tx.instructions[at]
        if instruction.target is not None:
            return None, right
        try:
            depth += dis.stack_effect(instruction.opcode, instruction.arg if _has_argument(instruction) else None)
        except ValueError:
            return None, right
    if depth == 2:  # two locals in one instruction, since Python 3.13
        return _local(tx.instructions[at], last=False), right
    return _local(tx.instructions[at - 1], last=True) if depth == 1 and at else None, right


def _local(instruction: Any, last: bool) -> str | None:
    """The local that an instruction loads; of two, the ``last`` or the first."""
    if not instruction.opname.startswith(_LOADS):
        return None
    names = instruction.argval
    return str(names[-1 if last else 0]) if isinstance(names, tuple) else str(names)


_LOADS = ("LOAD_FAST",)


def _has_argument(instruction: Any) -> bool:
    return bool(instruction.opcode >= dis.HAVE_ARGUMENT)


def way_of_none(tx: Any) -> int | None:
    """Where the code goes if the call that is traced returns None, which its next instructions ask: ``x = call()`` in
    front of ``while x is not None``, ``while (x := call()) is not None``, ``if x is None: break``. None if they do
    not."""
    at = _beyond(tx, tx.instruction_pointer or 0)
    opname, name = tx.instructions[at].opname, tx.instructions[at].argval
    if opname in ("COPY", "DUP_TOP"):
        return _way_if_none(tx, at + 2) if tx.instructions[at + 1].opname.startswith("STORE_") else None
    if opname == "STORE_FAST_LOAD_FAST" and name[0] == name[1]:
        return _way_if_none(tx, at + 1)
    test = _beyond(tx, at + 1)
    asked = opname == "STORE_FAST" and _local(tx.instructions[test], last=True) == name
    return _way_if_none(tx, test + 1) if asked else None


def _way_if_none(tx: Any, at: int) -> int | None:
    """Where a branch on whether the value on the stack is None goes if it is."""
    opname, if_none = tx.instructions[at].opname, True
    if opname == "LOAD_CONST" and tx.instructions[at].argval is None and tx.instructions[at + 1].opname == "IS_OP":
        if_none, at = not tx.instructions[at + 1].arg, at + 2
        opname = tx.instructions[at].opname.replace("IF_TRUE", "IF_NONE").replace("IF_FALSE", "IF_NOT_NONE")
    if not opname.startswith("POP_JUMP") or not opname.endswith("NONE"):
        return None
    jumps = opname.endswith("IF_NONE") is if_none
    return _beyond(tx, tx.indexof[tx.instructions[at].target] if jumps else at + 1)


# === Loops that are not seen =================================================================================


def note_unseen(tx: Any) -> None:
    """Boundaries are read one by one: say so if a ``while``, or a function that calls itself, goes by them."""
    while tx is not None:
        first = _loop_around(tx)
        if first is not None:
            if tx.instructions[first].opname not in _DRIVEN:
                _note(tx, (tx.f_code, first), "while-loop", WHILE, location_of(tx))
            elif (line := shorten(tx.f_code.co_filename, _line(tx.instructions[first]))) in current_frame().stepped:
                _note(tx, (tx.f_code, first), "partial-coverage", STEPS, line)
            return
        if _calls_itself(tx):
            _note(tx, (tx.f_code, 0), "while-loop", RECURSION, location_of(tx))
            return
        tx = tx.parent


def _calls_itself(tx: Any) -> bool:
    above = tx.parent
    while above is not None and above.f_code is not tx.f_code:
        above = above.parent
    name = tx.f_code.co_name
    named = any(i.opname == "LOAD_GLOBAL" and i.argval == name for i in tx.instructions)
    return above is not None or named or name in tx.f_code.co_freevars


def _line(instruction: Any) -> int:
    """The line of an instruction."""
    line = instruction.positions.lineno if instruction.positions is not None else instruction.starts_line
    return int(line or 0)


def _note(tx: Any, key: Any, code: str, reason: str, location: str) -> None:
    frame = current_frame()
    if key not in frame.unseen:
        frame.unseen.add(key)
        note(code, reason, location)


WHILE = (
    "a while loop reads boundaries or lengths of documents in a way that is not understood, and runs as in stock "
    "torch; one that counts documents up by one, as `while i < len(cu_seqlens) - 1: ...; i += 1`, is captured, and so "
    "is a for loop over them"
)
STEPS = (
    "a loop over range(..., step) takes only some of the documents, or several at a time, and runs as in stock torch; "
    "go over every document, between neighbouring boundaries (of several at a time they are cu_seqlens[::step])"
)
RECURSION = (
    "a function that calls itself reads boundaries or lengths of documents, and runs as in stock torch; go over the "
    "documents in a for loop"
)
