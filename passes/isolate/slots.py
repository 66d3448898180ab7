"""One slot of a row, as the step of a loop over tokens takes it or writes it: ``x[:, t]``, ``x.select(1, t)``,
``x[:, t : t + 1]``, ``x.unbind(1)[t]``."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

from packpass.semantics import call_of, example
from passes.isolate.kinds import Merged, Row
from passes.isolate.reading import Reading


@dataclasses.dataclass(frozen=True)
class Slot:
    """Slot ``number`` of ``row``. ``form``: how it is taken, the number left out. ``kept``: does what is taken have the
    row's dimension still, of size 1? ``value``: what is written there."""

    row: fx.Node
    number: int
    form: Any
    kept: bool = False
    value: Any = None


def slot_read(reading: Reading, node: fx.Node) -> Slot | None:
    """The one slot of a row that a call takes, and nothing else of it."""
    call = call_of(node)
    base = node.args[0] if call is not None and node.args else None
    if call is None or not isinstance(base, fx.Node):
        return None
    kind = reading.kinds.get(base)
    if not isinstance(kind, (Row, Merged)):
        return _unbound(reading, node, base)
    dim, inner = kind.dim, kind.inner if isinstance(kind, Merged) else 1
    length, rank = int(reading.length), example(base).dim()
    if call.op == "select":
        number = call.get("index")
        whole = call.get("dim") % rank == dim and _number(number) and inner == 1
        return Slot(base, number % length, "select") if whole else None
    if call.op == "narrow":
        number, one = call.get("start"), call.get("length")
        whole = call.get("dim") % rank == dim and _number(number) and one == inner and number % inner == 0
        return Slot(base, number // inner % length, "narrow", kept=True) if whole else None
    if call.op == "getitem":
        found = _indexed(call.get("index"), dim, rank, length, inner)
        return None if found is None else Slot(base, *found)
    return None


def slot_written(node: fx.Node, memory: fx.Node, dim: int, length: int) -> Slot | None:
    """The one slot of memory that a call writes: ``out[:, t] = value``, all of it along the other dimensions."""
    call = call_of(node)
    if call is None or call.op != "setitem" or node.args[0] is not memory or node.users:
        return None
    found = _indexed(call.get("index"), dim, example(memory).dim(), length)
    if found is None or any(part not in (_SLOT, "...", (None, None, None)) for part in found[1][:-1]):
        return None
    return Slot(memory, *found, value=call.get("value"))


def _row_dim(reading: Reading, node: fx.Node) -> int | None:
    kind = reading.kinds.get(node)
    return kind.dim if isinstance(kind, Row) else None


def _unbound(reading: Reading, node: fx.Node, base: fx.Node) -> Slot | None:
    """A slot of ``row.unbind(dim)``."""
    call, of = call_of(node), call_of(base)
    row = base.args[0] if of is not None and of.op == "unbind" and base.args else None
    if call is None or of is None or call.op != "getitem" or not isinstance(row, fx.Node):
        return None
    dim, number = _row_dim(reading, row), call.get("index")
    if dim is None or of.get("dim", default=0) % example(row).dim() != dim or not _number(number):
        return None
    return Slot(row, number % int(reading.length), "unbind")


_SLOT = "slot"


def _indexed(index: Any, dim: int, rank: int, length: int, inner: int = 1) -> tuple[int, tuple[Any, ...], bool] | None:
    """``(number, form, kept)`` of an index of numbers and slices that takes one slot along a dimension, or the
    ``inner`` slots of one token."""
    items = index if isinstance(index, tuple) else (index,)
    taken = sum(1 for at in items if at is not None and at is not Ellipsis)
    number, kept, place, form = None, False, 0, list[Any]()
    for at in items:
        if at is None or at is Ellipsis:
            place += rank - taken if at is Ellipsis else 0
            form.append("new" if at is None else "...")
            continue
        ends = (at.start, at.stop, at.step) if isinstance(at, slice) else None
        if not (_number(at) if ends is None else all(end is None or _number(end) for end in ends)):
            return None
        if place == dim:
            number, kept = _one_slot(at, ends, length, inner), ends is not None
            form.append(_SLOT)
        else:
            form.append(at if ends is None else ends)
        place += 1
    return None if number is None else (number, (*form, kept), kept)


def _one_slot(at: Any, ends: tuple[Any, Any, Any] | None, length: int, inner: int) -> int | None:
    if ends is None:
        return int(at) % length if inner == 1 else None
    taken = range(*slice(*ends).indices(length * inner))
    whole = len(taken) == inner and taken[0] % inner == 0 and (inner == 1 or taken.step == 1)
    return taken[0] // inner if whole else None


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
