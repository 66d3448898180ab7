"""What is made of boundaries alone: lengths, starts, a cast. Once the boundaries are replaced, it is made again."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true as known
from packpass.layout.attention import is_boundaries
from packpass.layout.sources import SAME_BOUNDARIES, root_of
from packpass.semantics import argument, contents_of, example, family_of, op_name, read_inputs, ways
from packpass.semantics.effects import effects_of
from packpass.semantics.meaning import KEPT, Iota, Uninitialised
from packpass.semantics.memory import copied
from packpass.semantics.names import base_name
from packpass.semantics.pointwise import ORDERINGS, SCALING

_FAMILIES = frozenset({"pointwise", "views", "indexing", "joins", "reductions"})
"""Operations that make numbers about the same documents of numbers about documents."""
_ENDS = (slice(1, None), slice(None, -1), slice(1, -1))


def derives(node: fx.Node) -> bool:
    """Is this a call that what is made of boundaries is made by, and could be made again by?"""
    name = op_name(node)
    if name == "repeat_interleave" or not effects_of(node).repeatable:
        return False  # one for every slot of a document is a row
    return name in ("getitem", *SAME_BOUNDARIES) or family_of(node) in _FAMILIES


def is_derived(node: fx.Node, derived: Container[fx.Node]) -> bool:
    """Is this made of ``derived`` values and numbers only?"""
    if not derives(node):
        return False
    tensors = [n for n in node.all_input_nodes if not isinstance(example(n), (int, torch.SymInt))]
    return all(n in derived or _is_constant(n, derived) for n in tensors)


def _is_constant(node: fx.Node, derived: Container[fx.Node]) -> bool:
    """One number, or a tensor of the form of a derived one, of whatever the call was given."""
    value = example(node)
    if not isinstance(value, torch.Tensor) or not effects_of(node).repeatable or read_inputs(node):
        return False
    if node.op != "placeholder" and all(_one(n) for n in value.shape):
        return contents_of(node) != Uninitialised()
    formed = [n for n, how in ways(node) if how == KEPT]
    return bool(formed) and all(n in derived for n in formed)


def _one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def is_scaled(node: fx.Node) -> bool:
    """``5 * cu`` is how code says by itself that five slots come of every token."""
    return base_name(op_name(node)) in SCALING


def stays_behind(node: fx.Node, before: Any, after: Any) -> bool:
    """Would a derived value, made again of boundaries of the expanded row, still speak of the row before? It does if a
    length of that row is in it: a last boundary that is appended, an upper limit."""
    numbers = [n for part in (node, *node.all_input_nodes) for n in _numbers(part)]
    return any(_speaks_of(n, before, after) for n in numbers)


def numbers_behind(node: fx.Node, derived: Container[fx.Node]) -> Iterator[Any]:
    """The numbers in a value that is made of boundaries, beside those."""
    seen, stack = set[fx.Node](), [n for n in node.all_input_nodes if n in derived]
    while stack:
        at = stack.pop()
        if at not in seen:
            seen.add(at)
            yield from (n for part in (at, *at.all_input_nodes) for n in _numbers(part))
            stack += [n for n in at.all_input_nodes if n in derived]


def _numbers(node: fx.Node) -> Iterator[Any]:
    """The numbers among the arguments of a call, and a number that is a node itself."""
    if not isinstance(example(node), torch.Tensor):
        yield example(node)
        return
    if node.op == "placeholder":
        return
    found: list[Any] = []
    fx.map_arg((node.args, node.kwargs), lambda n: found.append(example(n)))
    stack: list[Any] = [node.args, node.kwargs]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, (tuple, list)):
            stack += value
        elif isinstance(value, int) and not isinstance(value, bool):
            found.append(value)
    yield from (n for n in found if isinstance(n, (int, torch.SymInt)))


def _speaks_of(number: Any, before: Any, after: Any) -> bool:
    if known(number == after):
        return False
    if known(number == before) and not _one(number):
        return True
    if not isinstance(number, torch.SymInt) or not isinstance(before, torch.SymInt):
        return False
    distance = number - after
    apart = distance.node.expr.is_number if isinstance(distance, torch.SymInt) else True
    return not apart and bool(number.node.expr.free_symbols & before.node.expr.free_symbols)


# === Boundaries that calls cut rows by, and slots =============================================================


def boundaries_behind(node: Any) -> fx.Node | None:
    """The boundaries that a call is given in a form for lookups: ``cu``, ``cu[1:]``, ``cu[None, :-1]``."""
    while isinstance(node, fx.Node) and isinstance(example(node), torch.Tensor):
        name, source = op_name(node), node.args[0] if node.args else None
        if is_boundaries(example(node)):
            node = root_of(node)
            name, source = op_name(node), node.args[0] if node.args else None
            if name != "getitem" or node.args[1] not in _ENDS:
                return node
        elif name == "getitem":
            index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
            if any(e is not None and e is not Ellipsis and e != slice(None) and e not in _ENDS for e in index):
                return None
        elif not isinstance(source, fx.Node) or (copied(node) is not source and not _same_slots(node, source)):
            return None
        node = source
    return None


def _same_slots(node: fx.Node, source: fx.Node) -> bool:
    """Is this a view of all slots of another?"""
    values = example(node), example(source)
    return (
        family_of(node) == "views"
        and all(isinstance(v, torch.Tensor) for v in values)
        and known(values[0].numel() == values[1].numel())
    )


def lengths_behind(node: Any) -> fx.Node | None:
    """The boundaries whose documents' lengths a value holds: ``cu.diff()``, ``cu[1:] - cu[:-1]``."""
    if not isinstance(node, fx.Node) or not is_boundaries(example(node)):
        return None
    node = root_of(node)
    if op_name(node) == "diff" and len(node.args) == 1 and not node.kwargs:
        return boundaries_behind(node.args[0])
    if op_name(node) == "sub" and len(node.args) == 2:
        ends, starts = node.args
        sliced = [op_name(n) == "getitem" for n in (ends, starts) if isinstance(n, fx.Node)]
        if sliced == [True, True] and (ends.args[1], starts.args[1]) == _ENDS[:2]:
            a, b = boundaries_behind(ends), boundaries_behind(starts)
            return a if a is b else None
    return None


def compared(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """``(slots, boundaries)`` of ``arange(n)[:, None] >= cu``, whichever side they stand on."""
    if op_name(node) not in ORDERINGS or len(node.args) != 2:
        return None
    for slots, cu in (node.args, node.args[::-1]):
        behind = boundaries_behind(cu)
        if isinstance(slots, fx.Node) and behind is not None and _is_slots(slots):
            return slots, behind
    return None


def _is_slots(node: fx.Node) -> bool:
    """``arange(n)``, in whatever form."""
    while contents_of(node) != Iota(0, 1):
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or not (
            copied(node) is source or op_name(node) == "getitem" or family_of(node) == "views"
        ):
            return False
        node = source
    return True


def repeated(node: fx.Node) -> tuple[Any, fx.Node] | None:
    """``(x, boundaries)`` of ``repeat_interleave(x, cu.diff())``: one of x for every slot of a document."""
    if op_name(node) != "repeat_interleave":
        return None
    x, repeats = argument(node, 0, "input"), argument(node, 1, "repeats")
    x, repeats = (None, x) if repeats is None else (x, repeats)
    behind = lengths_behind(repeats)
    return (x, behind) if behind is not None else None


def made_of(node: fx.Node, roots: Container[fx.Node], follow: Callable[[fx.Node], bool]) -> bool:
    """Does a value come from one of ``roots`` through calls that ``follow`` allows?"""
    seen, stack = set[fx.Node](), [node]
    while stack:
        at = stack.pop()
        if at in roots:
            return True
        if at not in seen:
            seen.add(at)
            if follow(at):
                stack += at.all_input_nodes
    return False
