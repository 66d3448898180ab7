"""What ops mean for `machine` that put parts of documents together, and take them apart: rolls, joins, and both chunks
of a zigzag in one tensor (``x[s:e].view(2, -1)``)."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass._compat import statically_known_true
from packpass._registry import registrar
from packpass.semantics import argument, example
from packpass.semantics.views import REGROUPING
from passes.fuse_boundary_exchange.machine import RULES, Machine
from passes.fuse_boundary_exchange.rules import check_alike, settle
from passes.fuse_boundary_exchange.values import ZERO, Memory, Stack, View, cut, normal, number, total
from passes.refused import Refused

rule = registrar(RULES)


@rule("roll")
def _roll(machine: Machine, node: fx.Node) -> View | Stack:
    value, rank = machine.value(node.args[0]), example(node).dim()
    shifts, dims = argument(node, 1, "shifts"), argument(node, 2, "dims")
    shifts, dims = ([v] if type(v) is int else list(v or ()) for v in (shifts, dims))
    if len(shifts) != 1 or len(dims) != 1:
        raise Refused("no-rule", "a roll along another dimension than the packed one", node)
    if not isinstance(value, Stack):
        return _rolled(machine, machine.view(node.args[0], node), shifts[0], dims[0] % rank - rank, node)
    dim = _of_part(value, dims[0] % rank, rank, node)
    return Stack(tuple(_rolled(machine, part, shifts[0], dim, node) for part in value.parts), value.axis)


def _rolled(machine: Machine, view: View, shift: int, dim: int, node: fx.Node) -> View:
    if not view.kept or dim != view.dim:
        raise Refused("no-rule", "a roll along another dimension than the packed one", node)
    runs = machine.read(view, node)
    at = number(-shift) if shift < 0 else view.length.plus(number(shift), -1)
    if not (at.at_least(ZERO) and view.length.at_least(at)):
        raise Refused("not-a-roll", "a roll by more than short chunks are long", node)
    return machine.fresh(normal([*cut(runs, at, view.length, node), *cut(runs, ZERO, at, node)]), view)


def _of_part(stack: Stack, dim: int, rank: int, node: fx.Node) -> int:
    """A dimension of what is stacked (not negative) as one of its parts (negative)."""
    if dim == stack.axis:
        raise Refused("no-rule", "more than one part of what is stacked, or not a whole one", node)
    return (dim if dim < stack.axis else dim - 1) - (rank - 1)


# === Parts one behind the other ================================================================================


@rule("cat")
def _cat(machine: Machine, node: fx.Node) -> View | Stack:
    parts: Any = node.args[0] if node.args else node.kwargs["tensors"]
    rank = example(node).dim()
    dim = (argument(node, 1, "dim", 0) if "axis" not in node.kwargs else node.kwargs["axis"]) % rank
    values = [machine.value(part) for part in parts]
    stacks = [value for value in values if isinstance(value, Stack)]
    for part in parts:
        check_alike(part, parts[0], dim - rank, node)
    if not stacks:
        views = [settle(v, p, dim - rank) if (v := machine.view(p, node)).kept is None else v for p in parts]
        return _joined(machine, views, dim - rank, node)
    if len(stacks) < len(values) or len({(len(stack.parts), stack.axis) for stack in stacks}) > 1:
        raise Refused("dim-mismatch", "tensors that are stacked in different ways meet", node)
    of_part = _of_part(stacks[0], dim, rank, node)
    made = [_joined(machine, list(each), of_part, node) for each in zip(*(s.parts for s in stacks), strict=True)]
    return Stack(tuple(made), stacks[0].axis)


def _joined(machine: Machine, views: list[View], dim: int, node: fx.Node) -> View:
    if any(not view.kept or view.dim != dim for view in views):
        raise Refused("no-rule", "parts are put together along another dimension than the packed one", node)
    runs = normal([run for view in views for run in machine.read(view, node)])
    length, empty = total([view.length for view in views]), sum(view.empty for view in views)
    return View(Memory(runs, length, empty), ZERO, length, empty, dim, True)


# === Parts of several rows, or both chunks, in one tensor ======================================================


@rule("stack")
def _stack(machine: Machine, node: fx.Node) -> Stack:
    """A buffer for the messages of several rows, or of both chunks."""
    parts: Any = argument(node, 0, "tensors")
    views = [machine.view(part, node) for part in parts]
    like = [(v.length, v.dim, v.kept, example(part).dtype) for v, part in zip(views, parts, strict=True)]
    if any(other != like[0] for other in like):
        raise Refused("dim-mismatch", "tensors of different sizes or dtypes are put together", node)
    made = [machine.fresh(machine.read(view, node), view) for view in views]
    return Stack(tuple(made), argument(node, 1, "dim", 0) % example(node).dim())


@rule("unbind")
def _unbind(machine: Machine, node: fx.Node) -> tuple[View, ...]:
    stack = machine.value(node.args[0])
    if not isinstance(stack, Stack) or argument(node, 1, "dim", 0) % example(node.args[0]).dim() != stack.axis:
        raise Refused("no-rule", "what is taken apart is no stack of slots", node)
    return stack.parts


@rule(*REGROUPING)
def _reshape(machine: Machine, node: fx.Node) -> View | Stack:
    """The chunks of a document in a dimension of their own, or one behind the other again."""
    value, sizes, new = machine.value(node.args[0]), list(example(node.args[0]).shape), list(example(node).shape)
    if isinstance(value, Stack):
        at = value.axis
        dims = {part.dim for part in value.parts if part.kept}
        if _fits(sizes, new, at, 2) and dims == {at + 1 - len(sizes)} and len(value.parts) == machine.form.chunks:
            return _one_behind_the_other(machine, value, node)
    else:
        view = machine.view(node.args[0], node)
        at = len(sizes) + (view.dim or 0)
        whole = view.kept and view.dim is not None and view.length == machine.whole
        if whole and machine.form.chunks == 2 and _fits(new, sizes, at, 2) and statically_known_true(new[at] == 2):
            return _in_chunks(machine, view, at, node)
    raise Refused("no-rule", "a document in another form than as both of its chunks", node)


def _fits(longer: list[Any], shorter: list[Any], at: int, count: int) -> bool:
    """Are all sizes the same but those of ``count`` dimensions, which are one of the shorter tensor's?"""
    if len(longer) != len(shorter) + count - 1:
        return False
    pairs = zip([*longer[:at], *longer[at + count :]], [*shorter[:at], *shorter[at + 1 :]], strict=True)
    return all(statically_known_true(a == b) for a, b in pairs)


def _in_chunks(machine: Machine, view: View, at: int, node: fx.Node) -> Stack:
    """Both may be views of the document, so that they are read as long as that stays as it is, and not written."""
    chunk = machine.form.chunk
    memory = Memory(machine.read(view, node), view.length, view.empty, parent=(view.memory, view.memory.version))
    whole = View(memory, ZERO, view.length, view.empty, view.dim, True)
    return Stack((whole.part(ZERO, chunk, 0), whole.part(chunk, chunk, 0)), at)


def _one_behind_the_other(machine: Machine, stack: Stack, node: fx.Node) -> View:
    """The same the other way: of memory of several parts, of which none may be written any more."""
    made = _joined(machine, list(stack.parts), stack.parts[0].dim or 0, node)
    first, *others = ((part.memory, part.memory.version) for part in stack.parts)
    made.memory.parent, made.memory.beside = first, tuple(others)
    return made
