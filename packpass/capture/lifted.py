"""Numbers of a document that are worked out from its entry of a vector: ``int(torch.round(parts[i] * x.shape[1]))``.

Lengths are sometimes given as parts of the longest, in floating point. The number that such a calculation ends with is
known to nobody but the data, and where it came from is lost in it. So the calculation is made once in front of the
loop, for the whole vector, and the number of a document is its entry: lengths like any others. What is lifted treats
every entry by itself and has no other tensor among its operands, so that it gives the same bits.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass._compat import hint_of
from packpass.capture import given_numbers, place_ends, sized
from packpass.capture.dynamo import SymNodeVariable, TensorVariable, call, constant, emit, example
from packpass.capture.entries import is_constant
from packpass.capture.frame import Mode
from packpass.capture.state import active, current_frame
from packpass.capture.watch import ROWS, enter_loop_mode, is_unknown, loops_are_sought, watch_one_row
from packpass.semantics.binding import example as example_of
from packpass.semantics.call import call_of
from packpass.semantics.effects import effects_of, mutated_after
from packpass.semantics.pointwise import tagged


def number(tx: Any, tensor: Any = None, *rest: Any, **kwargs: Any) -> Any:
    """``int(tensor)`` as an entry of a vector of integers; None if it is something else."""
    value = tensor.realize() if tensor is not None and not rest and not kwargs else None
    if active.regions and isinstance(value, SymNodeVariable) and isinstance(value.sym_num, torch.SymBool):
        return _of_comparison(tx, value.as_proxy().node)
    if value is not (alone := place_ends.number_in(tx, value)):
        return alone.call_method(tx, "item", [], {})
    made = None if value is None else sized.number(tx, value)
    if made is not None:
        return made
    given = None if value is None else given_numbers.item(tx, value)
    if given is not None or not active.regions:
        return given
    if not isinstance(value, TensorVariable) or not _is_single(example(value)):
        return None
    node = value.as_proxy().node
    if _source(node) is None or mutated_after(node.graph, node, node):
        return None  # what it holds now is not what it was made as
    return _entry(tx, active.regions[-1], value)


_ABOVE = {operator.gt: (0, 1, 0), operator.ge: (0, 1, 1), operator.lt: (1, 0, 0), operator.le: (1, 0, 1)}
"""Comparison of integers -> which of both is the larger one, which the smaller, and whether they may be equal."""


def _of_comparison(tx: Any, node: fx.Node) -> Any:
    """``int(t > 1)``: 1 or 0, without asking which; None if it is no comparison of integers."""
    if node.target not in _ABOVE or len(node.args) != 2:
        return None
    more, less, equal = _ABOVE[node.target]
    sides = [_integer(tx, part) for part in node.args]
    if None in sides:
        return None
    by = call(tx, operator.sub, sides[more], sides[less])
    by = call(tx, operator.add, by, constant(equal))
    return call(tx, torch.sym_min, call(tx, torch.sym_max, by, constant(0)), constant(1))


def _integer(tx: Any, part: Any) -> Any:
    if type(part) is int:
        return constant(part)
    value = part.meta.get("example_value") if isinstance(part, fx.Node) else None
    if not isinstance(value, torch.SymInt):
        return None
    return SymNodeVariable.create(tx, tx.output.current_tracer.proxy(part), value)


def item(tx: Any, tensor: Any = None, *rest: Any, **kwargs: Any) -> Any:
    """``tensor.item()``, or a tensor in a slice, where it is an integer: nothing is cut off here."""
    value = tensor.realize() if tensor is not None else None
    fake = example(value) if isinstance(value, TensorVariable) else None
    whole = isinstance(fake, torch.Tensor) and not (fake.dtype.is_floating_point or fake.dtype is torch.bool)
    return number(tx, value, *rest, **kwargs) if whole else None


def _entry(tx: Any, region: Any, value: Any) -> Any:
    """The number that such a calculation ends with, without what is behind its point."""
    vector = _lifted(tx, region, value.as_proxy().node)
    if vector is None:
        return None
    row = tx.output.current_tracer.proxy(vector)
    integers = region.in_front(("integers", vector), lambda: emit(tx, "to", row, torch.int64, method=True))
    own = integers.call_method(tx, "__getitem__", [region.index], {})
    return own.call_method(tx, "item", [], {})


def _is_single(fake: Any) -> bool:
    return isinstance(fake, torch.Tensor) and fake.dim() == 0


def _lifted(tx: Any, region: Any, node: fx.Node) -> fx.Node | None:
    """The node that holds what ``node`` is, for every entry of the vector that it was made from."""
    begin, index = region.indices[0], region.indices[-1]
    if node.target in ROWS and not node.kwargs and node.args[-1] is index:
        source: Any = node.args[0]
        one = (len(node.args) == 2 or node.args[1] == 0) and isinstance(source, fx.Node)
        return source if one and example_of(source).dim() == 1 and is_constant(source, begin) else None
    made = _operand(node)
    if made is None or made < begin or mutated_after(node.graph, made, made, node):
        return None
    vector = _lifted(tx, region, made)
    if vector is None:
        return None
    key = ("lifted", node.op, node.target, vector, _written(node.args[1:]), _written(node.kwargs))

    def lift() -> Any:
        args = [_placed(tx, arg, made, vector, begin) for arg in node.args]
        if any(arg is None for arg in args):
            return None
        return emit(tx, node.target, *args, method=node.op == "call_method")

    row = region.in_front(key, lift)
    return None if row is None else row.as_proxy().node


def _operand(node: fx.Node) -> fx.Node | None:
    """The one tensor among the operands of an operation on every entry by itself."""
    call = call_of(node) if node.op in ("call_function", "call_method") else None
    if call is None or not tagged(call) or node.kwargs or not effects_of(node).pure:
        return None
    tensors = [n for n in node.all_input_nodes if isinstance(example_of(n), torch.Tensor)]
    return tensors[0] if len(tensors) == 1 and _is_single(example_of(tensors[0])) else None


def _placed(tx: Any, arg: Any, made: Any, vector: fx.Node, begin: fx.Node) -> Any:
    """An argument of the calculation for all entries; None if it is not known in front of the loop."""
    tracer = tx.output.current_tracer
    if arg is made or (isinstance(arg, fx.Node) and arg < begin):
        return tracer.proxy(vector if arg is made else arg)
    if isinstance(arg, fx.Node):
        return same_for_all(tx, example_of(arg), begin)
    return arg if isinstance(arg, (bool, int, float, torch.dtype)) else None


def _written(args: Any) -> str:
    """An argument structure by the values of its numbers, which each iteration may read anew."""
    return repr(fx.node.map_arg(args, lambda n: str(getattr(example_of(n), "node", n))))


def same_for_all(tx: Any, size: Any, begin: fx.Node) -> Any:
    """The proxy of a size that was known before the loop; None if there is none."""
    if not isinstance(size, torch.SymInt) or is_unknown(size):
        return None
    tracer = tx.output.current_tracer
    for node in begin.graph.nodes:
        if node is begin:
            return None
        value = example_of(node)
        if isinstance(value, torch.SymInt) and value.node.expr == size.node.expr:
            return tracer.proxy(node)
        for dim, own in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(own, torch.SymInt) and own.node.expr == size.node.expr:
                return emit(tx, torch.ops.aten.sym_size.int, tracer.proxy(node), dim).as_proxy()
    return None


def _source(node: fx.Node) -> fx.Node | None:
    """The entry of a vector in floating point that a number is worked out from."""
    here: Any = node
    while here is not None and here.target not in ROWS:
        here = _operand(here) if here.op != "placeholder" else None
    source = here.args[0] if here is not None else None
    fake = example_of(source) if isinstance(source, fx.Node) else None
    # A compiled kernel keeps more digits of half precision than eager does, and might round to another number.
    parts = isinstance(fake, torch.Tensor) and fake.dim() == 1 and fake.dtype in (torch.float32, torch.float64)
    return here if parts else None


def watch(tx: Any, value: Any) -> None:
    """A number is worked out from a vector in floating point that has an entry for each row of a batch: where that is
    an entry, in a loop over rows, the vector tells how long documents are."""
    frame = current_frame()
    if value is None or frame.mode is not Mode.PROBE or frame.parts or not loops_are_sought():
        return
    value = value.realize()
    if not isinstance(value, TensorVariable) or not _is_single(example(value)):
        return
    entry = _source(value.as_proxy().node)
    if entry is None or not isinstance(entry.args[-1], int):
        return
    source: Any = entry.args[0]
    if example_of(source).shape[0] == 1:
        watch_one_row(tx)
        return
    frame.parts = True
    enter_loop_mode(tx, (hint_of(example_of(source).shape[0]) or 0,), padded=True)
    frame.parts = False


METHODS = {"item": item}
"""Name of a tensor's method -> ``replacement(tx, tensor)``."""
