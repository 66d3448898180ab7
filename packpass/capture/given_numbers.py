"""How many documents there are, where the model is told so: boundaries with padding behind them, and a number.

The number is a tensor of one integer, which is data, or one of Python's, which Dynamo takes for a variable once it has
changed from one call to the next; the number of layers never does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch

from packpass._compat import free_unbacked_symbols, hint_of
from packpass.capture import made_inputs
from packpass.capture.code_loops import line_of_loop, names_on_line
from packpass.capture.dynamo import SymNodeVariable, TensorVariable, call, constant, settled_within
from packpass.capture.frame import Mode
from packpass.capture.origins import has_integers, needed_for
from packpass.capture.state import active, current_frame, location_of
from packpass.semantics import example as example_of
from packpass.semantics.effects import mutated_after


def is_made_from_one(node: torch.fx.Node) -> bool:
    """Is a value made from tensors of one integer alone that are given to the model?"""
    inputs = [here.meta.get("example_value") for here in needed_for([node]) if here.op == "placeholder"]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(_is_number(value) for value in tensors)


def _is_number(value: torch.Tensor) -> bool:
    return (has_integers(value, 0) or has_integers(value, 1)) and all(size == 1 for size in value.shape)


def counts_entries(tx: Any, expr: Any) -> bool:
    """Is ``expr`` made from such numbers alone, and are there vectors with as many entries, or more?"""
    frame = current_frame()
    if active.regions or frame.counts is None or not getattr(expr, "free_symbols", None):
        return False
    given = dict[Any, Any]()
    for node in tx.output.root_tracer.graph.nodes:
        number = node.meta.get("example_value")
        if isinstance(number, torch.SymInt) and (_is_input(node) or is_made_from_one(node)):
            given |= dict.fromkeys(number.node.expr.free_symbols, hint_of(number))
    if not expr.free_symbols <= set(given):
        return False
    count = 1 if free_unbacked_symbols(expr) else sympy.sympify(expr.xreplace(given))
    found = count >= 1 and any(length is not None and length > 1 and length >= count for length in _lengths(tx))
    frame.counts = frame.counts or bool(found)
    return bool(found)


def item(tx: Any, tensor: Any) -> Any:
    """``(n - 1).item()`` of such a tensor as ``number - 1``, where the number is an input of the graph, so that it is
    known while the frame is traced; None if it is something else."""
    value = tensor.realize()
    node = value.as_proxy().node if isinstance(value, TensorVariable) else None
    if node is None or current_frame().mode is not Mode.SYMBOLIC or not is_made_from_one(node):
        return None
    steps = []
    while node.target in _ARITHMETIC and len(node.args) == 2 and not node.kwargs:
        if not any(type(side) is int for side in node.args):
            return None
        steps.append(node)
        (node,) = node.all_input_nodes
    if node.op != "placeholder" or _may_have_changed(node):
        return None
    number = _number_in(tx, node)
    for step in reversed(steps) if number is not None else ():
        number = call(tx, step.target, *(constant(side) if type(side) is int else number for side in step.args))
    return number


def _may_have_changed(node: torch.fx.Node) -> bool:
    """Has the program written to an input of integers, or to what may be one? Inputs may share memory."""
    inputs = (other for other in node.graph.find_nodes(op="placeholder") if isinstance(example_of(other), torch.Tensor))
    integers = [other for other in inputs if not example_of(other).dtype.is_floating_point]
    return any(mutated_after(node.graph, other, node) for other in integers)


def _number_in(tx: Any, node: torch.fx.Node) -> Any:
    """An input of the graph, of a tensor that can be read without waiting for a device; None for another."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    tensor = None if source is None or made_inputs.problem() else made_inputs.held(source, tx.output.root_tx.f_locals)
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.numel() != 1:
        return None
    return made_inputs.number(tx, source, tensor)


_ARITHMETIC = (operator.add, operator.sub, operator.mul)


def note_range(tx: Any, count: int) -> None:
    """``range(n)``: which numbers of Python's that the model is given may have decided how often the loop runs."""
    names, read = names_of(tx, count), names_on_line(tx)
    spelled = names & {f"L[{name!r}]" for name in read}
    spelled = spelled or _names_inside(tx, count, read)
    if (names or spelled) and not active.regions:
        current_frame().counted[location_of(tx)] = spelled or names


def names_of(tx: Any, count: int) -> set[str]:
    """Numbers of Python's that the model is given, and that may say that there are ``count`` documents; none if they
    are taken for variables already."""
    given = tx.output.root_tx.f_locals
    return _telling(((f"L[{name!r}]", value) for name, value in given.items()), count)


def _names_inside(tx: Any, count: int, read: set[str]) -> set[str]:
    """The same of numbers in a dict, or in an object, that the model is given, where a line reads holder and number."""
    places = (
        (f"L[{name!r}][{key!r}]" if type(holder) is dict else f"L[{name!r}].{key}", value)
        for name, holder in tx.output.root_tx.f_locals.items()
        for key, value in _inside(holder).items()
        if isinstance(key, str) and read.issuperset((name, key))
    )
    return _telling(places, count)


def _telling(given: Iterable[tuple[str, Any]], count: int) -> set[str]:
    """The sources of numbers that may say that there are ``count`` documents, and that are no variables yet."""
    frame = current_frame()
    if frame.counts is None or count <= 1:
        return set()
    names = {source for source, value in given if type(value) is int and value - count in (-1, 0, 1)}
    return names - frame.dynamic_sources


def is_within(stop: Any, length: Any) -> bool:
    """Is a number given to the model one of places in a list of so many entries? That is settled by a guard."""
    frame = current_frame()
    if frame.counts is None or not isinstance(stop, SymNodeVariable):
        return False
    found = settled_within(stop.sym_num, length)
    frame.counts = frame.counts or found
    return found


def cut_by(tx: Any, vector: torch.fx.Node) -> set[str]:
    """Of a vector that a loop is about to go over, ``cu[:n]``: the numbers that may have decided where it is cut off,
    and of which there are other values in other calls, for all that is known."""
    frame, names = current_frame(), set[str]()
    if frame.counts is None or active.regions:
        return names
    for node in needed_for([vector]):
        key = node.args[1] if node.target is operator.getitem else None
        if isinstance(key, slice) and type(key.stop) is int and key.stop > 1 and key.step is None:
            names |= names_of(tx, key.stop)
    return names


def counted_by(tx: Any, node: torch.fx.Node | None = None) -> set[str]:
    """Of a loop that is about to read boundaries one by one, from a list or as ``node``: the numbers that have decided
    how often it runs, and of which there are other values in other calls, for all that is known."""
    frame, names = current_frame(), set[str]()
    if not frame.counted or frame.counts is None:
        return names
    if node is not None and not any(map(is_an_entry, needed_for([node]))):
        return names
    while tx is not None:
        names |= frame.counted.get(line_of_loop(tx) or "", set())
        tx = tx.parent
    return names - frame.dynamic_sources


def is_an_entry(node: torch.fx.Node) -> bool:
    """Is it one of the entries of a vector, counted from its start, as a loop reads them? The last is the total."""
    return node.target is operator.getitem and isinstance(node.args[1], int) and node.args[1] >= 0


def _is_input(node: torch.fx.Node) -> bool:
    """A number that the model is given, and no size of a tensor."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    return node.op == "placeholder" and source is not None and not hasattr(source, "idx")


def has_vectors(tx: Any) -> bool:
    """Is there a vector of integers that a given number may count the entries of?"""
    return any((length or 0) > 1 for length in _lengths(tx))


def _lengths(tx: Any) -> Iterator[int | None]:
    """Of the vectors of integers that there are, and the rows of matrices that the model is given."""
    given = list(tx.output.root_tx.f_locals.values())
    made = [node.meta.get("example_value") for node in tx.output.root_tracer.graph.nodes]
    for value in [*given, *(entry for holder in given for entry in _inside(holder).values()), *made]:
        if has_integers(value, 1) or has_integers(value, 2):
            yield hint_of(value.shape[-1])


def _inside(value: Any) -> dict[Any, Any]:
    """What a dict holds, or an object with attributes, as the parameters of packed sequences are; nothing of others."""
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return {}
    return value if type(value) is dict else getattr(value, "__dict__", {})
