"""Branches on data inside a loop over documents.

Two forms have a meaning without knowing the data: ``if cond: continue`` (and its mirror, a body that is one ``if``)
skips the rest of the body for some documents, and ``assert cond`` checks every document. Both are written into the
graph as markers; any other branch on data fails as in stock Dynamo, which refuses the loop.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import symbolic_convert as sc
from torch._dynamo.variables import SymNodeVariable, TensorVariable

from packpass._compat import free_unbacked_symbols
from packpass.capture import markers
from packpass.capture.region import Region
from packpass.capture.state import active

_FILLERS = ("NOP", "RESUME", "CACHE")
_JUMPS = ("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE", "JUMP_FORWARD")


def _leads_to_loop(tx: Any, at: Any, head: Any) -> bool:
    """Does control, from instruction ``at``, go straight back to the FOR_ITER at ``head``?"""
    for _ in range(len(tx.instructions)):
        while tx.instructions[at].opname in _FILLERS:
            at += 1
        if at == head:
            return True
        instruction = tx.instructions[at]
        if instruction.opname not in _JUMPS or instruction.target is None:
            return False
        at = tx.indexof[instruction.target]
    return False


def _is_assert(tx: Any, jumps_if: bool) -> bool:
    return jumps_if and tx.instructions[tx.instruction_pointer].opname == "LOAD_ASSERTION_ERROR"


def _on_data(value: Any) -> bool:
    if isinstance(value, TensorVariable):
        return True
    return isinstance(value, SymNodeVariable) and bool(free_unbacked_symbols(value.sym_num))


def _write_down(tx: Any, instruction: Any, value: Any, jumps_if: bool, region: Region) -> bool:
    """Emit the marker for this branch and go on where control continues; False if the branch has no such meaning."""
    is_bool = isinstance(value, SymNodeVariable) and isinstance(value.sym_num, torch.SymBool)
    if is_bool and _is_assert(tx, jumps_if):
        message = f"assertion in the loop at {region.location} failed"
        args = (value.as_proxy(), message, region.id, region.iteration)
        tx.output.create_proxy("call_function", markers.LOOP_CHECK, args, {})
        tx.jump(instruction)
        return True
    if region.tx is not tx or not (is_bool or isinstance(value, TensorVariable)) or _is_assert(tx, jumps_if):
        return False
    head = tx.indexof[region.head]
    taken = _leads_to_loop(tx, tx.indexof[instruction.target], head)
    fallen = _leads_to_loop(tx, tx.instruction_pointer, head)
    if taken == fallen:
        return False
    region.note_skip()
    skip_when = jumps_if if taken else not jumps_if
    op = markers.LOOP_SKIP[0 if is_bool else 1]
    tx.output.create_proxy("call_function", op, (value.as_proxy(), skip_when, region.id, region.iteration), {})
    if fallen:
        tx.jump(instruction)
    return True


def _jump(original: Callable[[Any, Any], None], jumps_if: bool) -> Callable[[Any, Any], None]:
    def jump(self: Any, instruction: Any) -> None:
        if active.frame is not None and not active.regions and _is_assert(self, jumps_if):
            active.frame.user_checks = active.frame.user_checks or _on_data(self.stack[-1].realize())
        elif active.frame is not None and active.regions:
            value = self.stack[-1].realize()
            if _on_data(value):
                self.pop()
                if _write_down(self, instruction, value, jumps_if, active.regions[-1]):
                    return
                self.push(value)
        original(self, instruction)

    jump.__packpass_original__ = original  # type: ignore[attr-defined]
    return jump


def _opcodes() -> dict[int, bool]:
    """The conditional jumps of this Python: opcode -> does it jump if the value is true?"""
    names = [n for n in dis.opmap if n.startswith("POP_JUMP") and n.endswith(("IF_TRUE", "IF_FALSE"))]
    return {dis.opmap[n]: n.endswith("IF_TRUE") for n in names}


def problem() -> str | None:
    """Why the jumps cannot be wrapped on this torch or Python, or None."""
    table = getattr(sc.InstructionTranslatorBase, "dispatch_table", None)
    if not isinstance(table, list):
        return "InstructionTranslatorBase.dispatch_table is missing"
    if not any(opcode < len(table) and table[opcode] is not None for opcode in _opcodes()):
        return "InstructionTranslatorBase.dispatch_table has no conditional jumps"
    return None


def install_jumps() -> None:
    """Wrap the conditional jumps in every translator's dispatch table."""
    opcodes = _opcodes()
    classes: list[Any] = [sc.InstructionTranslatorBase]
    for cls in classes:
        classes.extend(cls.__subclasses__())
    tables = {id(cls.dispatch_table): cls.dispatch_table for cls in classes}
    for table in tables.values():
        for opcode, jumps_if in opcodes.items():
            if opcode < len(table) and table[opcode] is not None:
                table[opcode] = _jump(table[opcode], jumps_if)
