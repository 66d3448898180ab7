"""Instructions that mean something else in a loop over documents: iteration, indexing, attributes, branches on data.

Every instruction is traced by a function in a table; the ones here are put around some of those. What branches mean is
decided in `packpass.capture.branches`.
"""

from __future__ import annotations

import dis
import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

from packpass.capture import (
    branches,
    code_loops,
    defaults,
    divisible,
    edges,
    effects,
    extended,
    given_numbers,
    grown,
    joined_numbers,
    late_reads,
    left_loops,
    lifted,
    number_lists,
    outside,
    places,
    ranges,
    row_entries,
    running,
    same_numbers,
    sequences,
    slots,
    subscripts,
    whiles,
)
from packpass.capture.dynamo import (
    InstructionTranslatorBase,
    LocalGeneratorObjectVariable,
    SliceVariable,
    TensorVariable,
    Unsupported,
    call,
    constant,
)
from packpass.capture.frame import LOOP_MODES
from packpass.capture.lists import is_documents, items_of, numbers_of
from packpass.capture.python_functions import unpacked
from packpass.capture.state import active
from packpass.capture.watched import TrackedLocals


def _jump(original: Callable[[Any, Any], None], jumps_if: bool) -> Callable[[Any, Any], None]:
    def jump(self: Any, instruction: Any) -> None:
        if active.frame is not None and not active.regions and branches.is_plain_assert(self, jumps_if):
            active.frame.user_checks = active.frame.user_checks or branches.is_on_data(self.stack[-1].realize())
        elif active.frame is not None and not active.regions:
            if outside.settled(self, instruction, jumps_if):
                return
        if active.frame is not None and active.regions:
            value = self.stack[-1] = branches.by_numbers(self, self.stack[-1].realize())
            if branches.is_on_data(value):
                if instruction.opname.startswith("POP"):
                    self.pop()
                    given = self, instruction, value, jumps_if, active.regions[-1]
                    if edges.join(*given) or branches.write_down(*given):
                        return
                    self.push(value)
                left, before = branches.follow(self, value, jumps_if, active.regions[-1]), len(self.stack)
                original(self, instruction)
                if left is not None and len(self.stack) == before:  # JUMP_IF_TRUE_OR_POP leaves what it looks at
                    self.stack[-1] = left
                return
        original(self, instruction)

    jump.__packpass_original__ = original  # type: ignore[attr-defined]
    return jump


# === Iteration, indexing, attributes =========================================================================


def _get_iter(original: Any, self: Any, instruction: Any) -> None:
    """``for boundary in cu_seqlens``; looping again over a list with one entry per document."""
    value = self.stack[-1].realize()
    if active.frame is not None:
        number_lists.seen(self, value, True)
    # Up to torch 2.14 this instruction is a call, which is asked the same.
    if active.frame is not None and active.frame.left and is_documents(value) and left_loops.makes_left_loop(self):
        left_loops.end_graph(self)
    if isinstance(value, TensorVariable) or items_of(value) is not None:
        found = sequences.documents_of(self, value)
        if found is not None:
            self.pop()
            self.push(sequences.iterate(self, found))
            return
    original(self, instruction)
    effects.note_birth(self.stack[-1])


def _get_item(original: Any, self: Any, instruction: Any) -> None:
    """``x[s]`` and ``x[:, e - 1]`` with a number that is data; an entry, or a part, of a list of numbers."""
    base, key = self.stack[-2], self.stack[-1]
    if active.frame is not None and isinstance(key, SliceVariable):
        number_lists.seen(self, base.realize())
    last = places.load(base.realize(), key) or defaults.load(base, key) or running.last_of(base, key)
    if last is not None:
        self.popn(2)
        self.push(last)
        return
    own = divisible.piece(self, self.stack[-2], self.stack[-1])
    if own is not None:
        self.popn(2)
        self.push(own)
        return
    found = numbers_of(self.stack[-2]) or sequences.again_by_number(self, self.stack[-2], self.stack[-1])
    if found is not None:
        key = self.pop()
        self.pop()
        self.push(call(self, operator.getitem, found, key))
        return
    _indexed(original, self, instruction, "__getitem__", 2)


def _set_item(original: Any, self: Any, instruction: Any) -> None:
    """``x[e - 1] = value``; ``parts[i] = value`` of a list with a place for each document."""
    value, items, at = (entry.realize() for entry in self.stack[-3:])
    if slots.fill(items, at, value) or places.store(items, at, value):
        self.popn(3)
        return
    _indexed(original, self, instruction, "__setitem__", 3)


def _indexed(original: Any, self: Any, instruction: Any, name: str, operands: int) -> None:
    base = self.stack[-2].realize()
    if isinstance(base, TensorVariable) and active.frame is not None and active.frame.seeks:
        subscripts.watch(self, base, self.stack[-1])
    if isinstance(base, TensorVariable) and active.frame is not None and active.frame.mode in LOOP_MODES:
        args = [self.stack[-1]] if operands == 2 else [self.stack[-1], self.stack[-3]]
        try:
            out = subscripts.index_by_number(self, base, name, args)
        except Unsupported:
            out = None  # the instruction itself will say so, where a graph break can be made
        if out is not None:
            self.popn(operands)
            if operands == 2:
                self.push(out)
            return
    original(self, instruction)


def _load_attr(original: Any, self: Any, instruction: Any) -> None:
    """``Class.tensor`` in a backward."""
    _attribute(original, self, instruction, functools.partial(late_reads.read, self))


def _attribute(original: Any, self: Any, instruction: Any, read: Callable[[Any, str], Any]) -> None:
    """What ``read(object, name)`` makes of an attribute, unless that is None or the instruction's other form, which
    loads a method to be called."""
    if sys.version_info < (3, 12) or not instruction.arg or instruction.arg % 2 == 0:
        out = read(self.stack[-1].realize(), instruction.argval)
        if out is not None:
            self.pop()
            self.push(out)
            return
    original(self, instruction)


def _load_place(original: Any, self: Any, instruction: Any) -> None:
    """``state.loss`` of an object that the frame has made."""
    if active.regions:
        _attribute(original, self, instruction, places.load)
    else:
        original(self, instruction)


def _store_place(original: Any, self: Any, instruction: Any) -> None:
    """``state.loss = value``."""
    if active.regions and places.store(self.stack[-1].realize(), instruction.argval, self.stack[-2]):
        self.popn(2)
        return
    original(self, instruction)


_MULTIPLY = 5
"""Of BINARY_OP, its number in the table of ``opcode``."""


def _operate(original: Any, self: Any, instruction: Any) -> None:
    """``[0] + numbers + [last]`` of a list of ranges; ``parts += [a, b]``, which is ``extend``; ``[x] * n``."""
    if code_loops.adds_in_place(instruction):
        items, more = self.stack[-2].realize(), self.stack[-1].realize()
        if grown.regrown(items, more) is not None or extended.extend(self, items, more) is not None:
            self.pop()
            return
    if instruction.opname == "BINARY_MULTIPLY" or (instruction.opname == "BINARY_OP" and instruction.arg == _MULTIPLY):
        for repeated in (slots.repeated, ranges.repeated):
            made = repeated(self, *self.stack[-2:])
            if made is not None:
                self.popn(2)
                self.push(made)
                return
    adds = instruction.opname == "BINARY_ADD" or instruction.arg == 0  # of BINARY_OP, the first in its table
    if adds and active.regions and grown.regrown(self.stack[-2].realize(), self.stack[-1].realize()) is not None:
        self.pop()
        return
    sides = [side.realize() for side in self.stack[-2:]]
    every = ranges.worked_out(self, instruction, *sides) if active.regions else None
    if every is not None:
        self.popn(2)
        self.push(every)
        return
    joined = joined_numbers.plus(self, *sides) or extended.added(*sides) if adds and not active.regions else None
    if joined is not None:
        self.popn(2)
        self.push(joined)
        return
    original(self, instruction)


def _list_extend(original: Any, self: Any, instruction: Any) -> None:
    """``[*parts]`` of what a loop over documents makes."""
    items, more = self.stack[-1 - instruction.argval].realize(), self.stack[-1].realize()
    own = None if active.regions else joined_numbers.plus(self, items, more)
    if own is None:
        own, self.stack[-1] = extended.unpacked(self, items, more)
    if own is not None:
        self.pop()
        self.stack[-instruction.argval] = own
        return
    _goes_through(1)(original, self, instruction)


def _slice(original: Any, self: Any, instruction: Any) -> None:
    """``x[: cu[-1]]`` reads a number from the boundaries; ``bounds[:-1]`` of a list of numbers."""
    found = numbers_of(self.stack[-3]) if instruction.opname == "BINARY_SLICE" else None
    if found is not None:
        start, stop = (given_numbers.item(self, end) or end for end in self.popn(2))
        self.pop()
        self.push(call(self, operator.getitem, found, SliceVariable([start, stop, constant(None)], self)))
        return
    ends = range(-(instruction.argval if instruction.opname == "BUILD_SLICE" else 2), 0)
    if active.frame is not None and active.frame.seeks:
        row_entries.watch_items(self, [self.stack[at] for at in ends])
    for at in ends:
        lifted.watch(self, self.stack[at])
        self.stack[at] = lifted.item(self, self.stack[at]) or self.stack[at]
    original(self, instruction)


def _list_append(original: Any, self: Any, instruction: Any) -> None:
    """``[*numbers, total]``."""
    items, value = self.stack[-1 - instruction.argval].realize(), self.stack[-1]
    if is_documents(items):
        self.pop()
        self.stack[-instruction.argval] = joined_numbers.with_entry(self, items, value)
        return
    self.stack[-1] = ranges.entry(self, instruction, value) or value
    original(self, instruction)


def _for_iter(original: Any, self: Any, instruction: Any) -> None:
    """A loop, which may be what runs a generator."""
    value = self.stack[-1]
    if isinstance(value, LocalGeneratorObjectVariable):
        active.trace.consumers[value.inline_tracer] = self
    _goes_through(1)(original, self, instruction)


def _goes_through(depth: int) -> Callable[..., None]:
    """Instructions that may go through one of the values on top of the stack."""

    def look(original: Any, self: Any, instruction: Any) -> None:
        active.trace.alive.add(instruction.opname)
        if active.regions:
            effects.check_iterators(*self.stack[-depth:])
        original(self, instruction)

    return look


def _call_with_entries(original: Any, self: Any, instruction: Any) -> None:
    """``zip(*rows)``, with the entries of a list that a loop over documents has filled."""
    if active.frame is not None and active.frame.mode in LOOP_MODES:
        entries = -2 if instruction.argval & 1 else -1
        for at in (entries - 1, entries - 2):
            made = None if len(self.stack) < -at else unpacked(self, self.stack[at], *self.stack[entries:])
            if made is not None:
                self.stack[at], self.stack[entries] = made
                break
    _goes_through(2)(original, self, instruction)


def _set_aside(original: Any, self: Any, instruction: Any) -> None:
    """The variable of a comprehension, where Python runs that in the frame around it."""

    def run() -> Any:
        original(self, instruction)
        return self.stack[-1]

    if isinstance(self.symbolic_locals, TrackedLocals):
        self.symbolic_locals.set_aside(instruction.argval, run)
    else:
        run()


_REPLACEMENTS: dict[str, Callable[[Any, Any, Any], None]] = {
    "GET_ITER": _get_iter,
    **dict.fromkeys(("BUILD_SLICE", "BINARY_SLICE", "STORE_SLICE"), _slice),
    "BINARY_SUBSCR": _get_item,
    **dict.fromkeys(("INPLACE_ADD", "BINARY_OP", *ranges.BINARY), _operate),
    "STORE_SUBSCR": _set_item,
    "LOAD_FAST_AND_CLEAR": _set_aside,
    "FOR_ITER": _for_iter,
    "COMPARE_OP": whiles.compare,
    "LOAD_ATTR": _load_place,
    "STORE_ATTR": _store_place,
    **dict.fromkeys(("UNPACK_SEQUENCE", "UNPACK_EX", "SET_UPDATE", "DICT_UPDATE"), _goes_through(1)),
    "CONTAINS_OP": functools.partial(same_numbers.look, _goes_through(1)),
    "LIST_EXTEND": _list_extend,
    "LIST_APPEND": _list_append,
    **dict.fromkeys(("SEND", "YIELD_FROM"), _goes_through(2)),
    "CALL_FUNCTION_EX": _call_with_entries,
}
_LATE_READS: dict[str, Callable[[Any, Any, Any], None]] = {"LOAD_ATTR": _load_attr}


# === The table ===============================================================================================


def _jumps() -> dict[str, bool]:
    """The conditional jumps of this Python: name -> does it jump if the value is true?"""
    names = [n for n in dis.opmap if n.startswith("POP_JUMP") and n.endswith(("IF_TRUE", "IF_FALSE"))]
    names += [n for n in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP") if n in dis.opmap]
    return {name: "IF_TRUE" in name for name in names}


def _tables() -> list[list[Any]]:
    classes: list[Any] = [InstructionTranslatorBase]
    for cls in classes:
        classes.extend(cls.__subclasses__())
    return list({id(cls.dispatch_table): cls.dispatch_table for cls in classes}.values())


def problem() -> str | None:
    """Why the instructions cannot be wrapped on this torch or Python, or None."""
    table = getattr(InstructionTranslatorBase, "dispatch_table", None)
    if not isinstance(table, list):
        return "InstructionTranslatorBase.dispatch_table is missing"
    for name in ("GET_ITER", "FOR_ITER", "BINARY_SUBSCR", "STORE_SUBSCR"):
        if name not in dis.opmap or dis.opmap[name] >= len(table) or table[dis.opmap[name]] is None:
            return f"InstructionTranslatorBase.dispatch_table has no {name}"
    if not any(dis.opmap[name] < len(table) and table[dis.opmap[name]] is not None for name in _jumps()):
        return "InstructionTranslatorBase.dispatch_table has no conditional jumps"
    return None


def _wrap(name: str, make: Callable[[Any], Any]) -> None:
    opcode = dis.opmap.get(name)
    for table in _tables():
        if opcode is not None and opcode < len(table) and table[opcode] is not None:
            table[opcode] = make(table[opcode])


def _gated(replacement: Callable[[Any, Any, Any], None], *, loops: bool = True) -> Callable[[Any], Any]:
    """Outside of frames that packpass traces (for ``loops``: and looks for loops in), the original and nothing else."""

    def make(original: Any) -> Any:
        def instruction(self: Any, inst: Any) -> None:
            if not active.ours or (loops and active.frame is None):
                original(self, inst)
            else:
                replacement(original, self, inst)

        instruction.__packpass_original__ = original  # type: ignore[attr-defined]
        return instruction

    return make


def install_loops() -> None:
    """Wrap the instructions of loops in every translator's table."""
    for name, jumps_if in _jumps().items():
        _wrap(name, functools.partial(_jump, jumps_if=jumps_if))
    for name, replacement in _REPLACEMENTS.items():
        _wrap(name, _gated(replacement))


def install_late_reads() -> None:
    """Wrap the instruction that reads attributes."""
    for name, replacement in _LATE_READS.items():
        _wrap(name, _gated(replacement, loops=False))
