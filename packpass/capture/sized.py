"""Numbers that are worked out from the sizes of a document while they are tensors of one number.

::

    for t, h, w in grid_thw:                                  # rows of a matrix, not taken to lists
        places = torch.arange(t * h * w).reshape(t, h, w)
        start += (t * h * w).item()

Torch makes a number up for every tensor that is read, and what it was made from is lost in it. So the entries are read,
each once in an iteration, and the calculation is made of these: ``t.item() * h.item() * w.item()``, as if the program
had gone over ``grid_thw.tolist()``. Only in int64, where tensors and Python's numbers hold the same.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.capture.dynamo import TensorVariable, call, constant, emit, example
from packpass.capture.entries import ARITHMETIC, is_constant
from packpass.capture.state import active, refuse
from packpass.capture.watch import ROWS
from packpass.semantics.binding import example as example_of
from packpass.semantics.effects import mutated_after
from packpass.semantics.integers import SMALL


def number(tx: Any, tensor: Any) -> Any:
    """The number that a tensor of one integer holds; None if it is none of sizes of the document."""
    value = tensor.realize() if active.regions and tensor is not None else None
    if not isinstance(value, TensorVariable) or not _is_single(example(value)):
        return None
    node = value.as_proxy().node
    columns: set[fx.Node] = set()
    if not _is_known(node, columns) or not columns or mutated_after(node.graph, node, node):
        return None
    return made_again(tx, node)


def _is_single(fake: Any) -> bool:
    return isinstance(fake, torch.Tensor) and not fake.dim() and fake.dtype is torch.int64


def _is_integer(part: Any) -> bool:
    fake = example_of(part) if isinstance(part, fx.Node) else None
    return type(part) is int or (isinstance(fake, torch.Tensor) and not fake.dim() and not fake.dtype.is_floating_point)


def _is_known(node: Any, columns: set[fx.Node]) -> bool:
    """Is this made from entries of the document's rows? Adds those of matrices to ``columns``."""
    if type(node) is int:
        return True
    if not isinstance(node, fx.Node) or not _is_single(example_of(node)):
        return False
    if node.target in ARITHMETIC and len(node.args) == 2:
        return all(_is_known(arg, columns) for arg in node.args)
    rank = _entry_of(node)
    if rank == 2:
        columns.add(node)
    return rank is not None


def _entry_of(node: fx.Node) -> int | None:
    """The rank of what a node is an entry of the document's row of; None if it is something else."""
    begin, index = active.regions[-1].indices[0], active.regions[-1].indices[-1]
    row: Any = node
    if node.target is operator.getitem and type(node.args[1]) is int and not node.kwargs:
        row = node.args[0]
    if not isinstance(row, fx.Node) or row.target not in ROWS or row.kwargs or row.args[-1] is not index:
        return None
    source: Any = row.args[0]
    one = (len(row.args) == 2 or row.args[1] == 0) and isinstance(source, fx.Node)
    rank = 1 if row is node else 2
    return rank if one and example_of(source).dim() == rank and is_constant(source, begin) else None


def made_again(tx: Any, node: Any) -> Any:
    """The number that a tensor without dimensions holds, from the numbers that it was made of."""
    if type(node) is int:
        return constant(node)
    if _is_made_of_numbers(node) and all(map(_is_as_it_was, node.args)):
        return call(tx, node.target, *(made_again(tx, arg) for arg in node.args))
    known = active.regions[-1].numbers
    if node not in known or mutated_after(node.graph, node, known[node].as_proxy().node):
        known[node] = emit(tx, "item", tx.output.current_tracer.proxy(node), method=True)
    return known[node]


def numbers_in(tx: Any, node: fx.Node) -> list[Any] | None:
    """The integers that a call was given, tensors of one as the numbers that they hold; None if it was given something
    else, or a tensor is changed afterwards."""
    if not all(type(arg) is int or (_is_integer(arg) and _is_as_it_was(arg)) for arg in node.args):
        return None
    return [made_again(tx, arg) for arg in node.args]


def _is_made_of_numbers(node: fx.Node) -> bool:
    """Is a tensor of one integer worked out from others, in a way in which 32 bits do not wrap around?"""
    if node.target not in ARITHMETIC or len(node.args) != 2 or not all(map(_is_integer, node.args)):
        return False
    small = all(type(arg) is not int or abs(arg) <= SMALL for arg in node.args)
    return small or example_of(node).dtype is torch.int64


def _is_as_it_was(part: Any) -> bool:
    """Does a part still hold what it held when something was made of it?"""
    if not isinstance(part, fx.Node):
        return True
    own = part.args if part.target in ARITHMETIC else ()
    return not mutated_after(part.graph, part, part) and all(map(_is_as_it_was, own))


# === Tensors that are taken for numbers ======================================================================


def taken(tx: Any, tensor: Any) -> Any:
    """The number that a tensor holds, to stand in its place: `check` sees to it that this makes no difference."""
    node = tensor.as_proxy().node
    active.trace.taken[node] = None
    return made_again(tx, node)


def check(location: str, loop: Any = None, ends: bool = False) -> None:
    """A loop is closed, or the graph ends: is a tensor changed that was taken for a number, or computed with where it
    would promote otherwise? Then it is left to stock torch. So it is where the graph ``ends`` in front of code of the
    function, which would get a number in the place of a tensor."""
    if ends and active.trace.taken:
        raise refuse(
            "list-use", "a graph ends behind sizes that stay tensors and were taken for numbers", location, loop
        )
    narrow = False
    for node in active.trace.taken:
        narrow = narrow or example_of(node).dtype is not torch.int64
        if mutated_after(node.graph, node, node.next):
            reason = "a tensor of one number is changed after it was taken for that number"
            raise refuse("aliasing", reason, location, loop)
    first = next(iter(active.trace.taken), None)
    if narrow and first is not None and any(map(_promotes, first.graph.nodes)):
        reason = "a tensor of 32 bits that was taken for a number is computed with truth values"
        raise refuse("index-as-number", reason, location, loop)


def _promotes(node: fx.Node) -> bool:
    """Does a call compute with truth values and a number?"""
    value = example_of(node)
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.int64:
        return False
    given = [example_of(n) for n in node.all_input_nodes]
    truths = any(isinstance(v, torch.Tensor) and v.dtype is torch.bool for v in given)
    return truths and any(isinstance(v, torch.SymInt) for v in given)
