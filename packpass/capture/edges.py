"""What a body does for the first document alone, or for the last, where only the numbers differ.

::

    s = 0 if i == 0 else ends[i - 1]
    e = starts[i + 1] if i + 1 < len(starts) else len(x)

Boundaries without the first one, or the last, as people write them. Such a branch is no branch on data: both ways lead
to the same instruction, do nothing but work out numbers before it, and the first document is one for which
``[0, *ends][i]`` is the number. So both are traced up to there, in turn, from the same state; what the other documents
read from a neighbour is read from the longer vector; and if the numbers of both ways are then the same for the first
document (the last), which is shown by arithmetic, those of the other documents are everybody's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx

from packpass.capture.dynamo import SymNodeVariable, TensorVariable, Unsupported, attribute, emit
from packpass.capture.edge_numbers import ARITHMETIC, Edge, Join, documents, is_number, is_vector
from packpass.capture.entries import is_constant
from packpass.capture.lists import is_documents, items_of
from packpass.capture.moments import FILLERS, Moment
from packpass.capture.region import JUMPS
from packpass.capture.state import active, restart
from packpass.capture.tallies import nodes_of

if TYPE_CHECKING:
    from packpass.capture.region import Region

_ON_THE_STACK = ("COPY", "SWAP", "DUP_TOP", "ROT_", "POP_TOP", "PUSH_NULL")
_PURE = ("LOAD_", "STORE_FAST", "BINARY_", "BUILD_TUPLE", "UNPACK_SEQ", *_ON_THE_STACK)
_OTHERS = ("LOAD_FAST_AND_CLEAR", "LOAD_SUPER_ATTR", "LOAD_BUILD_CLASS", "LOAD_NAME")
_CALLS = ("CALL", "CALL_METHOD", "CALL_FUNCTION")
_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL")
_IN_PLACE = 13
"""Of BINARY_OP, the first in its table that changes its operand."""
_READS = ("item", "shape", "size")
_LONGEST = 40
"""Instructions of one way."""


class NoNeighbour(Exception):
    """One way reads an entry that is none of a neighbour."""


def is_neighbour(key: Any) -> bool:
    """Is this position that of the neighbour which a branch has made sure of? Where one is asked for, it must be."""
    edge = active.trace.edge
    if edge is None:
        return False
    if sympy.expand(key - edge.region.index.sym_num.node.expr) != edge.ahead:
        raise NoNeighbour
    return True


def neighbour(tx: Any, vector: Any, key: Any) -> Any:
    """``ends[i - 1]`` behind such a branch: a number that stands for it; None if it is something else."""
    edge = active.trace.edge
    if edge is None or not isinstance(key, SymNodeVariable) or not is_vector(vector):
        return None
    if not vector.as_proxy().node < edge.region.indices[0]:
        return None
    steps = sympy.expand(key.sym_num.node.expr - edge.region.index.sym_num.node.expr)
    if steps != edge.ahead:
        if steps.is_Integer and steps != 0:
            raise NoNeighbour
        return None
    entry = emit(tx, torch.select, vector.as_proxy(), 0, edge.region.index.as_proxy())
    node = entry.as_proxy().node
    edge.reads[node] = vector.as_proxy().node, edge.region.indices[-1] if edge.ahead < 0 else key.as_proxy().node
    return entry


def join(tx: Any, instruction: Any, value: Any, jumps_if: bool, region: Region) -> bool:
    """Go on where both ways of a branch on the number of the document meet; False if it is another branch."""
    frame = active.frame
    if active.trace.edge is not None or not isinstance(value, SymNodeVariable):
        return False
    if frame is None or region.key in frame.no_edges:
        return False
    return any(_join(tx, instruction, jumps_if, Edge(region, ahead), when) for ahead, when in _edges(value, region))


def _join(tx: Any, instruction: Any, jumps_if: bool, edge: Edge, when: bool) -> bool:
    """``when``: the condition's outcome for the document without a neighbour."""
    ways = {jumps_if: tx.indexof[instruction.target], not jumps_if: tx.instruction_pointer}
    special, others = _way(tx, ways[when]), _way(tx, ways[not when])
    meet = next((at for at in special if at in others), None)
    if meet is None:
        return False
    special, others = special[: special.index(meet)], others[: others.index(meet)]
    if not _calls_what_it_loads(tx, special) or not _calls_what_it_loads(tx, others):
        return False
    before, joined = Moment(tx), None
    one: dict[Any, Any] | None = None
    other: dict[Any, Any] | None = None
    with contextlib.suppress(Unsupported, NoNeighbour):
        one = _trace(tx, special, before)
        before.restore()
        with _reading_neighbours(edge):
            other = None if one is None else _trace(tx, others, before)
        if one is not None and other is not None:
            joined = Join(edge).of(before.completed(one, other), before.completed(other, one))
    before.restore()
    if joined is None or one is None or other is None:
        return False
    for place, number in sorted(joined.items(), key=lambda item: str(item[0])):
        before.put(place, number, was_read=(place in one) is not (place in other))
    tx.instruction_pointer = meet
    return True


def check(region: Region) -> None:
    """A loop is closed: do its documents leave the vectors alone that were made longer, and is what is a tensor for
    most of them, and a number for one, nothing but a bound? Otherwise the frame is traced again without."""
    if not region.edges or active.frame is None:
        return
    kept = all(is_constant(tensor, region.indices[0]) for tensor in region.edges)
    numbers = list(region.bounds)
    more = [user for number in numbers for user in number.users if _does_more(user, numbers)]
    listed = any(node in numbers for items in region.lists for values in items.values for node in nodes_of(values))
    if more or listed or not kept:
        active.frame.no_edges.add(region.key)
        raise restart("what one document does in another way is more than a number")


def _does_more(user: fx.Node, numbers: list[fx.Node]) -> bool:
    """Does somebody do more with a number than to compare it, and to cut tensors by it or compute with them? What is
    computed without tensors is one of the ``numbers``."""
    value = user.meta.get("example_value")
    if user.target in ARITHMETIC and isinstance(value, torch.SymInt):
        numbers.append(user)
        return False
    if isinstance(value, (bool, torch.SymBool)):
        return False
    return not any(isinstance(node.meta.get("example_value"), torch.Tensor) for node in user.all_input_nodes)


# === Which branch it is ======================================================================================


def _edges(value: Any, region: Region) -> list[tuple[int, bool]]:
    """``(-1, outcome)`` of a condition that has this outcome for the first document alone, ``(1, outcome)`` for the
    last; of one document both."""
    index = region.index.sym_num.node.expr if isinstance(region.index, SymNodeVariable) else None
    number, outcome = value.sym_num.node.expr, True
    if not isinstance(index, sympy.Symbol):
        return []
    if not isinstance(value.sym_num, torch.SymBool):  # ``if i:``
        return [(-1, False)] if number == index else []
    if isinstance(number, sympy.Not):
        number, outcome = number.args[0], False
    if not isinstance(number, sympy.core.relational.Relational):
        return []
    spare = sympy.expand(number.lhs - number.rhs)
    sign = spare.coeff(index)
    if sign not in (1, -1):
        return []
    found = []
    for ahead, rest in ((-1, sign * spare - index), (1, sign * spare - (index - documents(region) + 1))):
        rest = sympy.expand(rest)
        alone = _alone(number, sign, int(rest), ahead) if rest.is_Integer else None
        if alone is not None:
            found.append((ahead, alone is outcome))
    return found


def _alone(relation: Any, sign: Any, rest: int, ahead: int) -> bool | None:
    """The outcome of ``sign * (d + rest) <relation> 0`` for d of 0, where it has the other for all d that are left,
    1, 2, ... (-1, -2, ... if ``ahead`` is 1)."""
    outcomes = [bool(relation.func(sign * (-ahead * d + rest), 0)) for d in range(abs(rest) + 3)]
    return outcomes[0] if all(outcome is not outcomes[0] for outcome in outcomes[1:]) else None


# === The two ways ============================================================================================


def _way(tx: Any, at: int) -> list[int]:
    """The instructions of a way, one after the other, as long as they only work out numbers, and the one behind."""
    way: list[int] = []
    while at not in way and at < len(tx.instructions) and len(way) < _LONGEST:
        way.append(at)
        instruction = tx.instructions[at]
        if instruction.opname in JUMPS and instruction.target is not None:
            at = tx.indexof[instruction.target]
        elif _is_pure(tx, instruction):
            at += 1
        else:
            break
    return way


def _calls_what_it_loads(tx: Any, way: list[int]) -> bool:
    """Is nothing called but a method or a function that is named there?"""
    names = [tx.instructions[at].opname for at in way]
    return sum(name in _CALLS for name in names) <= sum(name in _LOADS for name in names)


def _is_pure(tx: Any, instruction: Any) -> bool:
    name = instruction.opname
    if name in ("LOAD_ATTR", "LOAD_METHOD"):
        return instruction.argval in _READS
    if name == "LOAD_GLOBAL":
        return instruction.argval not in tx.f_globals and instruction.argval in ("int", "len")
    if name == "BINARY_OP":
        return instruction.arg < _IN_PLACE
    return name in (*FILLERS, *_CALLS, "PRECALL") or (name.startswith(_PURE) and name not in _OTHERS)


def _trace(tx: Any, way: list[int], before: Moment) -> dict[Any, Any] | None:
    """What a way has left, by its place; None if it takes something from the stack, or asks what is no tensor."""
    for at in way:
        instruction = tx.instructions[at]
        if instruction.opname in (*JUMPS, *FILLERS):
            continue
        if not _is_on_numbers(tx, instruction, [value.realize() for value in tx.stack[-2:]]):
            return None
        tx.current_instruction, tx.instruction_pointer = instruction, at + 1
        tx.dispatch_table[instruction.opcode](tx, instruction)
    if len(tx.stack) < len(before.stack) or any(a is not b for a, b in zip(tx.stack, before.stack, strict=False)):
        return None
    return before.changed()


def _is_on_numbers(tx: Any, instruction: Any, operands: list[Any]) -> bool:
    """Does an instruction with these operands at most read numbers, and compute with them?"""
    name, last = instruction.opname, operands[-1] if operands else None
    if name in ("LOAD_ATTR", "LOAD_METHOD"):
        return isinstance(last, TensorVariable)
    if name == "BINARY_SUBSCR":
        return is_number(last) and _has_numbers(tx, operands[0])
    return not name.startswith("BINARY_") or all(is_number(operand) for operand in operands)


def _has_numbers(tx: Any, base: Any) -> bool:
    """Is it a vector, a shape, or a list of numbers, and not a list that the loop fills, or one whose entries are made
    by code of the user?"""
    if is_documents(base):
        return not attribute(tx, base, "calls").as_python_constant()
    return is_vector(base) if isinstance(base, TensorVariable) else items_of(base) is None


@contextlib.contextmanager
def _reading_neighbours(edge: Edge) -> Iterator[None]:
    active.trace.edge = edge
    try:
        yield
    finally:
        active.trace.edge = None
